"""Which documents of a source are taken: by a field, or by what the text, as it is in the file, measures."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import assert_never

import numpy as np

from phasewise.tasks.data.formats.fields import reach
from phasewise.tasks.data.formats.findings import LeftOut, Record, Sift
from phasewise.tasks.data.source import FieldFilter, Filter, TextFilter

STRETCH_CHARACTERS = 2**20


def build_sift(filters: Sequence[Filter]) -> Sift:
    """Takes a document with some text that passes each filter; otherwise the first that it fails is the reason."""
    named = [(_name(each), _build_test(each)) for each in filters]

    def sift(text: str, where: str, fields: Mapping[str, object]) -> Record | LeftOut:
        if not text or text.isspace():
            return LeftOut("empty text", where)
        for name, passes in named:
            if not passes(text, fields):
                return LeftOut(name, where)
        return Record(text, where)

    return sift


def field_keys(filters: Sequence[Filter]) -> tuple[str, ...]:
    """The fields that the filters look at, each once."""
    return tuple(dict.fromkeys(each.key for each in filters if isinstance(each, FieldFilter)))


def digit_percent(text: str) -> float:
    """Share of the characters that are digits (`str.isdigit`, of any script) in percent."""
    return _percent(text, str.isdigit)


def special_percent(text: str) -> float:
    """Share of the characters that are neither letter, digit or other number (`str.isalnum`) nor whitespace (`str.isspace`) in percent."""
    return _percent(text, _is_special)


def _is_special(character: str) -> bool:
    return not character.isalnum() and not character.isspace()


@cache
def _table(belongs: Callable[[str], bool]) -> np.ndarray:
    """For every character whether it belongs: a loop over a text's characters takes tens of times as long as looking them up."""
    return np.fromiter((belongs(chr(code)) for code in range(sys.maxunicode + 1)), dtype=bool)


def _percent(text: str, belongs: Callable[[str], bool]) -> float:
    count = 0
    for start in range(0, len(text), STRETCH_CHARACTERS):
        codes = np.frombuffer(text[start : start + STRETCH_CHARACTERS].encode("utf-32-le"), dtype="<u4")
        count += int(np.count_nonzero(_table(belongs)[codes]))
    return 100 * count / len(text)


def _words(text: str) -> int:
    return len(text.split())


_MEASURES: Mapping[str, Callable[[str], float]] = {
    "characters": len,
    "words": _words,
    "digit_percent": digit_percent,
    "special_percent": special_percent,
}


def _name(each: Filter) -> str:
    return f"filter field {each.key}" if isinstance(each, FieldFilter) else f"filter {each.measure}"


def _build_test(each: Filter) -> Callable[[str, Mapping[str, object]], bool]:
    match each:
        case FieldFilter():
            keep = frozenset(each.keep)
            return lambda text, fields: _spelled(reach(fields, each.key)) in keep
        case TextFilter():
            measure = _MEASURES[each.measure]
            lowest = float("-inf") if each.min is None else each.min
            highest = float("inf") if each.max is None else each.max
            return lambda text, fields: lowest <= measure(text) <= highest
        case _:
            assert_never(each)


def _spelled(value: object) -> str | None:
    """A field's value as a filter spells it: numbers in digits, `true` and `false`; `None` for what a filter cannot name."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            return None
