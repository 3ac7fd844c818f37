"""Selection of documents by fields, by measures of the original text, and by length, and the normalisation of texts."""

import hashlib
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from phasewise.tasks.data.findings import LeftOut, Record, Sift, reach
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import code_digest

REASON = "length bias"  # name in a manifest of the count of documents that a length bias rejects
LINE_END = re.compile(r"(\r\n|\r|\n)")
NORMALIZER = f"nfc-lf-2+{code_digest(sys.modules[__name__])}+unicode-{unicodedata.unidata_version}"
"""Version of the code and of the Unicode tables of the normalisation."""
STRETCH_CHARACTERS = 2**20
Measure = Literal["characters", "words", "digit_percent", "special_percent"]


class LengthBias(Frozen):
    """A document of n tokens is taken with the probability `ceiling` · n / `full_tokens`, at least `floor` and at most `ceiling`.

    `full_tokens`: length with the highest probability, without the BOS and EOS token.
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
        """The probability to take a document of this length."""
        return max(self.floor, self.ceiling * min(1.0, tokens / self.full_tokens))

    def takes(self, document: str, tokens: int) -> bool:
        """Whether to take the document with this digest."""
        drawn = hashlib.sha256(f"length bias {self.seed} {document}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") < self.chance(tokens) * 2**64


class FieldFilter(Frozen):
    """Keep a document if its field has one of these values. A dot selects a field of an object: `metadata.extension`."""

    kind: Literal["field"] = "field"
    key: str
    keep: tuple[str, ...] = Field(min_length=1)


class TextFilter(Frozen):
    """Keep a document if a measure of its text is between `min` and `max`. Shares are in percent of the characters."""

    kind: Literal["text"] = "text"
    measure: Measure
    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> "TextFilter":
        if self.min is None and self.max is None:
            raise ValueError(f"a filter by {self.measure} needs a min or a max")
        return self


Filter = Annotated[FieldFilter | TextFilter, Field(discriminator="kind")]


class Normalization(Frozen):
    """The normalisation of every text: Unicode's composed form, line feeds as line ends, and optionally no spaces at line ends."""

    unicode: Literal["NFC"] | None = "NFC"
    line_ends: Literal["lf", "keep"] = "lf"
    trailing_spaces: Literal["keep", "strip"] = "keep"


def normalize(text: str, how: Normalization) -> str:
    """Normalise a text. The function is idempotent."""
    if how.unicode == "NFC" and not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if how.line_ends == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if how.trailing_spaces == "strip":  # line by line, because a pattern takes quadratic time on a long run of spaces
        text = "".join(part.rstrip(" \t") for part in LINE_END.split(text))
    return text


def build_sift(filters: Sequence[Filter]) -> Sift:
    """Take documents with text that pass every filter. The first failed filter is the reason against a document."""
    keep = {id(one): frozenset(one.keep) for one in filters if isinstance(one, FieldFilter)}

    def sift(text: str, where: str, fields: Mapping[str, object]) -> Record | LeftOut:
        if not text or text.isspace():
            return LeftOut("empty text", where)
        for one in filters:
            if isinstance(one, FieldFilter):
                value = reach(fields, one.key)
                if isinstance(value, bool):
                    value = str(value).lower()
                elif isinstance(value, int | float):
                    value = str(value)
                if not isinstance(value, str) or value not in keep[id(one)]:
                    return LeftOut(f"filter field {one.key}", where)
                continue
            value = measured(text, one.measure)
            if (one.min is not None and value < one.min) or (one.max is not None and value > one.max):
                return LeftOut(f"filter {one.measure}", where)
        return Record(text, where)

    return sift


def field_keys(filters: Sequence[Filter]) -> tuple[str, ...]:
    """The fields in the filters, without repetition."""
    return tuple(dict.fromkeys(each.key for each in filters if isinstance(each, FieldFilter)))


def measured(text: str, measure: Measure) -> float:
    """A measure of a text. Percentages are shares of its characters."""
    if measure == "characters":
        return len(text)
    if measure == "words":
        return len(text.split())
    count = 0
    for start in range(0, len(text), STRETCH_CHARACTERS):
        codes = np.frombuffer(text[start : start + STRETCH_CHARACTERS].encode("utf-32-le"), dtype="<u4")
        count += int(np.count_nonzero(_characters_of(measure)[codes]))
    return 100 * count / len(text)


@cache
def _characters_of(measure: Measure) -> np.ndarray:
    """Whether each character counts. A table is tens of times as fast as a loop over a text."""
    characters = map(chr, range(sys.maxunicode + 1))
    if measure == "digit_percent":  # digits in any script
        return np.fromiter((one.isdigit() for one in characters), dtype=bool)
    return np.fromiter((not one.isalnum() and not one.isspace() for one in characters), dtype=bool)
