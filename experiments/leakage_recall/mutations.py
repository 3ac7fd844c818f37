"""The scan without one of its parts: a named row of the table must fall, which shows that the row measures the part."""

import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from experiments.leakage_recall.cached import CACHED_FORMAT, cached_row
from experiments.leakage_recall.detectors import Detect, Detector, Found, ours
from experiments.leakage_recall.formats import FORMATS
from experiments.leakage_recall.material import Material
from experiments.leakage_recall.measure import RecallRow
from phasewise.validations.evidence.leakage import words
from phasewise.validations.evidence.leakage.fold import DIGIT, KIND_SHIFT, LETTER, MAX_EXPANSION, TABLE_SIZE, Fold
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document
from phasewise.validations.evidence.leakage.words import NONE, numeral_table


@dataclass(frozen=True)
class Mutation:
    part: str
    row: str
    detector: Detector = ours
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    reads_cache: bool = True

    def measure(self, material: Material, count: int, *, whole: bool = False) -> RecallRow:
        """The named row without the part, or `whole`, with it."""
        detector, reads_cache = (ours, True) if whole else (self.detector, self.reads_cache)
        with nullcontext() if whole else self.around():
            detect = detector(material.items)
            if self.row == CACHED_FORMAT.name:
                with tempfile.TemporaryDirectory() as folder:
                    return cached_row(material, detect, Path(folder), count=count, reads_cache=reads_cache)
            return material.recall_row(FORMATS[self.row], detect, count)


@contextmanager
def _unfolded() -> Iterator[None]:
    codes = np.zeros(TABLE_SIZE, np.int32)
    for point in range(TABLE_SIZE):
        category = unicodedata.category(chr(point))
        if category[0] == "L" or category == "Nd":
            codes[point] = (DIGIT if category == "Nd" else LETTER) << KIND_SHIFT | point
    with patch.object(words, "fold_table", lambda: Fold(codes, np.zeros((1, MAX_EXPANSION), np.int32))):
        yield


def _with_tags(items: Sequence[BenchmarkItem]) -> Detect:
    marked = [item._replace(question=_hide(item.question), solutions=tuple(map(_hide, item.solutions))) for item in items]
    detect = ours(marked)

    def look(documents: Sequence[Document]) -> Sequence[Found]:
        return detect([document._replace(text=document.text.replace(b"<", b"( ")) for document in documents])

    return look


@contextmanager
def _without_numerals() -> Iterator[None]:
    hashes, values = numeral_table()
    with patch.object(words, "_NUMERALS", (hashes, np.full_like(values, NONE))):
        yield


def _hide(text: str) -> str:
    return text.replace("<", "( ")


def _without_answers(items: Sequence[BenchmarkItem]) -> Detect:
    return ours([item._replace(answer="", solutions=()) for item in items])


MUTATIONS = (
    Mutation("normaliser", "fullwidth letters, whole", around=_unfolded),
    Mutation("numbers in words", "questions with two numbers below 100, in words", around=_without_numerals),
    Mutation("tag stripping", "a span around every word, a part alone", _with_tags),
    Mutation("answer part", "solution alone", _without_answers),
    Mutation("cache scan", CACHED_FORMAT.name, reads_cache=False),
)
