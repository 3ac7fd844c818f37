"""Which documents of a source are taken: by a field, or by what the text, as it is in the file, measures."""

import hashlib
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Literal, assert_never

import numpy as np
from pydantic import Field, model_validator

from phasewise.tasks.data.findings import LeftOut, Record, Sift, reach
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import code_digest

REASON = "length bias"
"""Under it a manifest counts the documents that were not taken."""
LINE_END = re.compile(r"(\r\n|\r|\n)")
NORMALIZER = f"nfc-lf-2+{code_digest(sys.modules[__name__])}+unicode-{unicodedata.unidata_version}"
"""Version of the code and of the Unicode tables that made a text even."""
STRETCH_CHARACTERS = 2**20


class LengthBias(Frozen):
    """The chance of a document of n tokens is `ceiling` · n / `full_tokens`, but at least `floor` and at most `ceiling`.

    Attributes:
        full_tokens: from this length on a document has the highest chance; the tokens that begin and end it do not count.
        seed: another one takes other documents.
    """

    floor: float = Field(ge=0, le=1)
    ceiling: float = Field(gt=0, le=1)
    full_tokens: int = Field(gt=0)
    seed: int = 0

    @model_validator(mode="after")
    def _rises(self) -> "LengthBias":
        if self.floor > self.ceiling:
            raise ValueError(f"the chance of a short document must be at most that of a long one, found {self.floor} and {self.ceiling}")
        return self

    def chance(self, tokens: int) -> float:
        """How likely a document of so many tokens is taken."""
        return max(self.floor, self.ceiling * min(1.0, tokens / self.full_tokens))

    def takes(self, document: str, tokens: int) -> bool:
        """Whether the document of this digest is taken."""
        drawn = hashlib.sha256(f"length bias {self.seed} {document}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") < self.chance(tokens) * 2**64


class FieldFilter(Frozen):
    """Keeps a document whose field is one of these values. A dot reaches into an object: `metadata.extension`."""

    kind: Literal["field"] = "field"
    key: str
    keep: tuple[str, ...] = Field(min_length=1)


class TextFilter(Frozen):
    """Keeps a document whose text measures at least `min` and at most `max`. Shares are in percent of the characters."""

    kind: Literal["text"] = "text"
    measure: Literal["characters", "words", "digit_percent", "special_percent"]
    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> "TextFilter":
        if self.min is None and self.max is None:
            raise ValueError(f"a filter by {self.measure} needs a min or a max")
        return self


Filter = Annotated[FieldFilter | TextFilter, Field(discriminator="kind")]


class Normalization(Frozen):
    """What is normalised in every text: Unicode's composed form, plain line ends, and, if wished, no spaces at the ends of lines."""

    unicode: Literal["NFC"] | None = "NFC"
    line_ends: Literal["lf", "keep"] = "lf"
    trailing_spaces: Literal["keep", "strip"] = "keep"


def normalize(text: str, how: Normalization) -> str:
    """Unicode's composed form, plain line ends, and no spaces and tabs at the ends of lines, as far as each is wished.

    A second time changes nothing.
    """
    if how.unicode == "NFC" and not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if how.line_ends == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if how.trailing_spaces == "strip":  # line by line: a pattern of spaces before an end takes quadratic time on a long run of spaces
        text = "".join(part.rstrip(" \t") for part in LINE_END.split(text))
    return text


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
