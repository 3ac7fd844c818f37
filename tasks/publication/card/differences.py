"""Comparing two accounts of the same things, field by field."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phasewise.tasks.publication.card.home_files import Disagreement, shown

SPEAKERS = {
    "lineage": "the home's results say",
    "training": "the run says",
    "mixture": "the run says",
    "order": "the checkpoint says",
    "data": "the cache says",
    "tokenizer": "the home says",
    "hand_off": "the evidence says",
    "gates": "the verdict says",
    "evaluation": "the evaluation says",
    "checkpoint": "the checkpoint's files say",
    "export": "the exported folder says",
}
ABSENT = "nothing"
_NOTHING = object()


def disagreements(said: Any, found: Any, field: str = "", *, other: str | None = None) -> Iterator[Disagreement]:
    """Each field in which the card says something else than was found, the deepest that can be named.

    Args:
        other: who says what was found; None is by the first part of the field.
    """
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for name in dict.fromkeys([*said, *found]):
            yield from disagreements(said.get(name, _NOTHING), found.get(name, _NOTHING), _below(field, str(name)), other=other)
    elif _is_list(said) and _is_list(found) and len(said) == len(found):
        for number, (one, another) in enumerate(zip(said, found, strict=True)):
            yield from disagreements(one, another, f"{field}[{number}]", other=other)
    elif not _is_same(said, found):
        speaker = other or SPEAKERS.get(field.partition(".")[0].partition("[")[0], "the home says")
        yield Disagreement(field, f"the card says {_words(said)}, {speaker} {_words(found)}")


def _below(field: str, name: str) -> str:
    if name.isdecimal():
        return f"{field}[{name}]"
    return f"{field}.{name}" if field else name


def _is_same(said: Any, found: Any) -> bool:
    """Not a number is the same as not a number, and True is not 1."""
    if isinstance(said, float) and isinstance(found, float) and math.isnan(said):
        return math.isnan(found)
    return said == found and isinstance(said, bool) == isinstance(found, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _words(value: Any) -> str:
    return ABSENT if value is _NOTHING else shown(value)
