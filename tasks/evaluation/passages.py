"""Passages of held-out documents: an opening and what follows it, cut where digests say."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.trainer.base.identity import digest_of_json

STRIDE_WORDS = 80
MIN_WORDS = 20
MIN_DISTINCT_WORDS = 15
MAX_CHARACTERS = 420
MAX_WORD_CHARACTERS = 40
WORD = re.compile(r"\S+")
HAS_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
HAS_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")


class Cut(NamedTuple):
    """How passages are cut: words in the opening, from–to, and in what follows.

    `fits` is asked of the last word of the opening and of what follows; the cut moves on by at most `max_shift_words` until it does.
    """

    name: str
    opening_words: tuple[int, int]
    following_words: int
    max_shift_words: int
    fits: Callable[[str, str], bool]


class Passage(NamedTuple):
    """An opening, and what follows it after exactly one space. `key` orders passages and depends on nothing but the passage."""

    key: str
    component: str
    document: str
    opening: str
    following: str

    @property
    def text(self) -> str:
        """Both parts, as they are in the document."""
        return f"{self.opening} {self.following}"


def cut_passages(documents: Sequence[HeldOutDocument], component: str, cut: Cut) -> list[Passage]:
    """Passages of a component that read as words; every document gives one before any gives its second. Equal openings count once."""
    seen: set[str] = set()
    ranked: list[tuple[int, Passage]] = []
    for document in sorted(documents):
        found = [passage for passage in _passages_of(document, component, cut) if _reads_as_words(passage)]
        for rank, passage in enumerate(sorted(found)):
            if passage.opening not in seen:
                seen.add(passage.opening)
                ranked.append((rank, passage))
    return [passage for _, passage in sorted(ranked)]


def pick(digest: str, field: int, bounds: tuple[int, int]) -> int:
    """A number within bounds, both included, from the digest's `field`-th eight digits."""
    low, high = bounds
    return low + int(digest[8 * field : 8 * field + 8], 16) % (high - low + 1)


def first_words(text: str, count: int) -> str:
    """The first `count` words, with the spaces and line breaks between them."""
    return text[: [match.end() for match in WORD.finditer(text)][:count][-1]]


def _passages_of(document: HeldOutDocument, component: str, cut: Cut) -> Iterator[Passage]:
    """At most one passage for every `STRIDE_WORDS` words."""
    text = document.text
    spans = [match.span() for match in WORD.finditer(text)]
    for block in range(0, len(spans), STRIDE_WORDS):
        digest = digest_of_json([cut.name, component, document.id, block])
        start = block + pick(digest, 0, (0, STRIDE_WORDS // 4))
        earliest = start + pick(digest, 1, cut.opening_words)
        for middle in range(earliest, min(earliest + cut.max_shift_words, len(spans) - cut.following_words + 1)):
            (opening_from, _), (_, opening_to) = spans[start], spans[middle - 1]
            following_from, _ = spans[middle]
            _, following_to = spans[middle + cut.following_words - 1]
            following = text[following_from:following_to]
            before = text[slice(*spans[middle - 1])]
            if text[opening_to:following_from] == " " and cut.fits(before, following):
                yield Passage(digest, component, document.id, text[opening_from:opening_to], following)
                break


def _reads_as_words(passage: Passage) -> bool:
    """Not a table, a listing of numbers or one word over and over, and long enough for a 13-gram search to find it."""
    words = passage.text.split()
    solid = [word for word in words if HAS_LETTER_OR_DIGIT.search(word)]
    return (
        len(passage.text) <= MAX_CHARACTERS
        and max(map(len, words)) <= MAX_WORD_CHARACTERS
        and len(solid) >= MIN_WORDS
        and len(set(solid)) >= MIN_DISTINCT_WORDS
        and 2 * sum(bool(HAS_TWO_LETTERS.search(word)) for word in words) >= len(words)
    )
