"""The base of every configuration, plan and verdict, and pydantic's errors as `field: expected E, found F`."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

SHOWN = 80
EXPECTED: Mapping[str, str] = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("dict_type", "model_attributes_type", "model_type"), "an object"),
    "finite_number": "a finite number",
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    **dict.fromkeys(("int_from_float", "int_parsing", "int_type"), "a whole number"),
    "int_parsing_size": "a whole number of fewer digits",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "literal_error": "{expected}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_pattern_mismatch": "a text like {pattern}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_type": "a text",
    "union_tag_invalid": "{discriminator} to be {expected_tags}",
}
"""Kind of pydantic's error → what was expected, with the terms of its context."""


class Frozen(BaseModel):
    """Immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def but(self, **fields: Any) -> Self:
        """Return a copy with other fields, validated as a new one is. (`model_copy` validates nothing.)"""
        return type(self).model_validate(self.model_dump() | fields)


def join_problems(error: ValidationError, of_field: Callable[[ErrorDetails], str] | None = None) -> str:
    """Join all problems in one line, without mere consequences of another problem. `of_field` writes one problem with its field."""
    write = of_field or (lambda item: f"{'.'.join(map(str, item['loc'])) or error.title}: {state_problem(item)}")
    items = error.errors()
    problems: dict[str, None] = {}
    for item in items:
        at = item["loc"]
        follows = item["type"] == "too_short" and any(len(one["loc"]) > len(at) and one["loc"][: len(at)] == at for one in items)
        if not follows:
            problems[write(item)] = None
    return "; ".join(problems)


def in_one_line(error: Exception) -> str:
    """Return any error's message in one line, for a refusal that quotes it."""
    return join_problems(error) if isinstance(error, ValidationError) else " ".join(str(error).split())


def state_problem(item: ErrorDetails) -> str:
    """State the expected and found values, without the field."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "missing":
        return "expected a value, found none"
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind == "too_short":
        return f"expected at least {context['min_length']}, found {context['actual_length']}"
    if kind not in EXPECTED:
        return item["msg"].removeprefix("Value error, ").replace("\n", " ")
    terms = {name: f"{term:g}" if isinstance(term, float) else term for name, term in context.items()}
    found = " ".join(repr(terms.get("tag", item["input"])).split())
    return f"expected {EXPECTED[kind].format(**terms)}, found {found if len(found) <= SHOWN else f'{found[:SHOWN]}…'}"
