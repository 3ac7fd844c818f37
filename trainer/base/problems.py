"""What pydantic finds wrong with a value, in the words of every refusal: `field: expected E, found F`."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

SHOWN = 80
EXPECTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "multiple_of": "a multiple of {multiple_of}",
    "string_pattern_mismatch": "a text like {pattern}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_type": "a text",
    "tuple_type": "a list",
    "union_tag_invalid": "{discriminator} to be {expected_tags}",
}
"""Kind of pydantic's error → what was expected, with the terms of its context."""


def join_problems(error: ValidationError, of_field: Callable[[ErrorDetails], str] | None = None) -> str:
    """All problems in one line, each with the field's dotted path. What only follows from another problem is left out.

    Args:
        of_field: how one problem is written; None is the field, a colon and `state_problem`.
    """
    write = of_field or (lambda item: f"{'.'.join(map(str, item['loc'])) or error.title}: {state_problem(item)}")
    items = error.errors()
    places = [item["loc"] for item in items]
    first = [item for item in items if item["type"] != "too_short" or not any(_is_below(place, item["loc"]) for place in places)]
    return "; ".join(dict.fromkeys(map(write, first)))


def in_one_line(error: Exception) -> str:
    """Any error's message in one line, for a refusal that quotes it."""
    return join_problems(error) if isinstance(error, ValidationError) else " ".join(str(error).split())


def state_problem(item: ErrorDetails) -> str:
    """What was expected and found, without the field."""
    kind, value = item["type"], item["input"]
    if kind == "missing":
        return "expected a value, found none"
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind == "too_short":
        return f"expected at least {item.get('ctx', {})['min_length']}, found {item.get('ctx', {})['actual_length']}"
    if kind in EXPECTED:
        terms = {name: f"{term:g}" if isinstance(term, float) else term for name, term in item.get("ctx", {}).items()}
        return f"expected {EXPECTED[kind].format(**terms)}, found {_show(terms.get('tag', value))}"
    return item["msg"].removeprefix("Value error, ").replace("\n", " ")


def _is_below(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    return len(place) > len(other) and place[: len(other)] == other


def _show(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
