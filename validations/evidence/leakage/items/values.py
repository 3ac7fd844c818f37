"""Fields of benchmark rows by name, and the texts in their values."""

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from phasewise.validations.evidence.leakage.items.fields import IDS, INNER_TEXTS, NESTED

Fields = Mapping[str, object]


def named_fields(row: Fields) -> dict[str, object]:
    """The row's fields by their names as they are compared; of a row inside a row, the inner one's."""
    fields = {_spelling(str(name)): value for name, value in row.items()}
    for name in NESTED:
        inner = fields.get(name)
        if isinstance(inner, dict):
            return {**{key: fields[key] for key in IDS if key in fields}, **named_fields(cast(Fields, inner))}
    question = fields.get("question")
    if isinstance(question, dict):
        return {**{key: value for key, value in fields.items() if key != "question"}, **named_fields(cast(Fields, question))}
    return fields


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def texts_of(value: object) -> tuple[str, ...]:
    """The texts in a value: itself, its members, or the field of it that holds text. Numbers and truth become words."""
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("yes" if value else "no",)
    if isinstance(value, float) and value.is_integer():
        return (str(int(value)),)
    if isinstance(value, str):
        listed = _listed(value)
        return texts_of(listed) if listed is not None else (value,) if value.strip() else ()
    if isinstance(value, dict):
        inner = named_fields(cast(Fields, value))
        return next((texts for name in INNER_TEXTS if (texts := texts_of(inner.get(name)))), ())
    if isinstance(value, list | tuple):
        return tuple(text for member in cast(Sequence[object], value) for text in texts_of(member))
    return (str(value),)


def _listed(text: str) -> list[object] | None:
    """The list that a string spells, as JSON or Python."""
    if not (text.startswith("[") and text.rstrip().endswith("]")):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return cast(list[object], value) if isinstance(value, list) else None


def spells_list(text: str) -> bool:
    """Whether a string spells a list, as JSON or Python."""
    return _listed(text) is not None
