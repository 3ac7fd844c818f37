"""Finding test items in documents by the word n-grams that they share.

Words are numbered once; an n-gram's hash is a polynomial over random 64-bit values of its words, computed for all positions at once.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from jaxtyping import Int, UInt64

from trainer.errors import DataError
from trainer.storage import digest_of_json

NORMALIZATION = r"lower-case, words by \w+"
MIN_ITEM_WORDS = 5
EXCERPT_CHARACTERS = 200
_WORD = re.compile(r"\w+")
_MULTIPLIER = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Item:
    """Something that must not be trained on: an item of a benchmark, or a held-out document."""

    benchmark: str
    id: str
    text: str


@dataclass(frozen=True)
class Match:
    """`document` and `item` are numbers in the sequences that were compared; `containment` is a share of the item's distinct n-grams."""

    document: int
    item: int
    containment: float
    excerpt: str


@dataclass(frozen=True)
class _Grams:
    """All n-grams of one length: sorted distinct hashes; those of gram g belong to `items[starts[g] : starts[g + 1]]`."""

    hashes: UInt64[np.ndarray, "g"]
    starts: Int[np.ndarray, "g+1"]
    items: Int[np.ndarray, "p"]


@dataclass(frozen=True)
class ItemIndex:
    """The n-grams of all items. An item of fewer than `ngram_words` words is one n-gram of its own length."""

    items: tuple[Item, ...]
    ngram_words: int
    _numbers: dict[str, int]
    _values: UInt64[np.ndarray, "w"]
    _grams: dict[int, _Grams]
    _distinct: Int[np.ndarray, "i"]

    @classmethod
    def build(cls, items: Sequence[Item], ngram_words: int) -> "ItemIndex":
        """Index the items.

        Raises:
            DataError: an item has fewer than five words, or two items of a benchmark have the same id.
        """
        words = [split_words(item.text) for item in items]
        _check(items, words)
        numbers: dict[str, int] = {}
        for word in (word for of_item in words for word in of_item):
            numbers.setdefault(word, len(numbers) + 1)
        values = np.random.default_rng(0).integers(0, 2**64, len(numbers) + 1, np.uint64)
        lengths = np.array([min(len(of_item), ngram_words) for of_item in words], np.int64)
        grams: dict[int, _Grams] = {}
        distinct = np.zeros(len(items), np.int64)
        for length in np.unique(lengths).tolist():
            members = np.flatnonzero(lengths == length)
            grams[length] = _index_grams([words[member] for member in members], members, length, numbers, values)
            distinct += np.bincount(grams[length].items, minlength=len(items))
        return cls(tuple(items), ngram_words, numbers, values, grams, distinct)

    @cached_property
    def digest(self) -> str:
        """Digest of everything that decides what is found, except `min_containment`."""
        items = sorted((item.benchmark, item.id, item.text) for item in self.items)
        return digest_of_json({"ngram_words": self.ngram_words, "normalization": NORMALIZATION, "items": items})

    @cached_property
    def items_per_benchmark(self) -> dict[str, int]:
        """Benchmark → number of items."""
        names = [item.benchmark for item in self.items]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    def matches(self, texts: Sequence[str], min_containment: float) -> list[Match]:
        """The pairs of text and item in which the text has at least `min_containment` of the item's distinct n-grams."""
        lowered = [text.lower() for text in texts]
        words, documents, firsts = _concatenate([_WORD.findall(text) for text in lowered], self._numbers, self.ngram_words)
        found: list[Match] = []
        for length, grams in self._grams.items():
            hashes = _hashes(words, self._values, length)
            positions, gram_numbers = _look_up(hashes, _known(words, length), grams)
            owners = documents[positions]
            for document, item, containment in _contained(owners, gram_numbers, grams, self._distinct, min_containment):
                of_document = positions[slice(*np.searchsorted(owners, [document, document + 1]))]
                first = of_document[np.isin(hashes[of_document], self._hashes_of(item, length))][0] - firsts[document]
                found.append(Match(document, item, containment, _excerpt(texts[document], lowered[document], int(first))))
        return sorted(found, key=lambda match: (match.document, match.item))

    def _hashes_of(self, item: int, length: int) -> UInt64[np.ndarray, "n"]:
        words = [self._numbers[word] for word in split_words(self.items[item].text)]
        return _hashes(np.array(words), self._values, length)


def split_words(text: str) -> list[str]:
    """The words by which texts are compared."""
    return _WORD.findall(text.lower())


def _check(items: Sequence[Item], words: Sequence[Sequence[str]]) -> None:
    seen: set[tuple[str, str]] = set()
    for item, of_item in zip(items, words, strict=True):
        if len(of_item) < MIN_ITEM_WORDS:
            raise DataError(
                f"a test item needs at least {MIN_ITEM_WORDS} words to be told apart from ordinary text, found {len(of_item)} in item "
                f"{item.id} of benchmark {item.benchmark}: {item.text!r}. Put question, choices and answer into one text, or leave it out."
            )
        if (item.benchmark, item.id) in seen:
            raise DataError(f"item ids must be unique within a benchmark, found {item.id} twice in {item.benchmark}. Rename one.")
        seen.add((item.benchmark, item.id))


def _index_grams(
    words: Sequence[Sequence[str]], members: Int[np.ndarray, "m"], length: int, numbers: dict[str, int], values: UInt64[np.ndarray, "w"]
) -> _Grams:
    concatenated, owners, _ = _concatenate(words, numbers, length)
    known = _known(concatenated, length)
    hashes, items = _hashes(concatenated, values, length)[known], members[owners[known]]
    order = np.lexsort((items, hashes))
    hashes, items = hashes[order], items[order]
    is_first = np.append(True, (hashes[1:] != hashes[:-1]) | (items[1:] != items[:-1]))
    distinct, starts = np.unique(hashes[is_first], return_index=True)
    return _Grams(distinct, np.append(starts, int(is_first.sum())), items[is_first])


def _concatenate(
    words: Sequence[Sequence[str]], numbers: dict[str, int], gap: int
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Int[np.ndarray, "d"]]:
    """Word numbers of all texts (0 is unknown) with `gap` zeros after each, the text each word belongs to, and where each text starts."""
    lengths = np.array([len(of_text) + gap for of_text in words], np.int64)
    firsts = np.cumsum(lengths) - lengths
    concatenated = np.zeros(int(lengths.sum()), np.int64)
    for first, of_text in zip(firsts.tolist(), words, strict=True):
        concatenated[first : first + len(of_text)] = [numbers.get(word, 0) for word in of_text]
    return concatenated, np.repeat(np.arange(len(words)), lengths), firsts


def _hashes(words: Int[np.ndarray, "n"], values: UInt64[np.ndarray, "w"], length: int) -> UInt64[np.ndarray, "n-length+1"]:
    """Hash of the n-gram that starts at each position."""
    of_words = values[words]
    count = max(len(words) - length + 1, 0)
    hashes = np.zeros(count, np.uint64)
    for position in range(length):
        hashes *= np.uint64(_MULTIPLIER)
        hashes += of_words[position : position + count]
    return hashes


def _known(words: Int[np.ndarray, "n"], length: int) -> Int[np.ndarray, "m"]:
    """Positions at which `length` known words start: no n-gram reaches over the end of a text."""
    known = np.concatenate([[0], np.cumsum(words > 0)])
    return np.flatnonzero(known[length:] - known[:-length] == length)


def _look_up(
    hashes: UInt64[np.ndarray, "n"], candidates: Int[np.ndarray, "m"], grams: _Grams
) -> tuple[Int[np.ndarray, "k"], Int[np.ndarray, "k"]]:
    """Positions, among the candidates, of n-grams that the index has, and which these are."""
    wanted = hashes[candidates]
    nearest = np.minimum(np.searchsorted(grams.hashes, wanted), len(grams.hashes) - 1)
    equal = grams.hashes[nearest] == wanted
    return candidates[equal], nearest[equal]


def _contained(
    documents: Int[np.ndarray, "k"],
    gram_numbers: Int[np.ndarray, "k"],
    grams: _Grams,
    distinct_per_item: Int[np.ndarray, "i"],
    min_containment: float,
) -> Iterator[tuple[int, int, float]]:
    """(document, item, containment) where this is at least `min_containment`, given which n-grams were seen in which documents."""
    num_grams = len(grams.hashes)
    seen = np.unique(documents * num_grams + gram_numbers)
    documents, gram_numbers = seen // num_grams, seen % num_grams
    owners = grams.starts[gram_numbers + 1] - grams.starts[gram_numbers]
    before = np.cumsum(owners) - owners
    items = grams.items[np.arange(int(owners.sum())) + np.repeat(grams.starts[gram_numbers] - before, owners)]
    present = np.bincount(items, minlength=len(distinct_per_item)) > 0
    columns, column_of_item = np.flatnonzero(present), np.cumsum(present) - 1
    counts = np.bincount(np.repeat(documents, owners) * len(columns) + column_of_item[items])
    cells = np.flatnonzero(counts)
    cell_items = columns[cells % max(len(columns), 1)]
    containment = counts[cells] / distinct_per_item[cell_items]
    for number in np.flatnonzero(containment >= min_containment).tolist():
        yield int(cells[number]) // len(columns), int(cell_items[number]), float(containment[number])


def _excerpt(text: str, lowered: str, first_word: int) -> str:
    """The text from its n-gram on, on one line."""
    start = next(islice(_WORD.finditer(lowered), first_word, None)).start()
    source = text if len(text) == len(lowered) else lowered
    return " ".join(source[start : start + EXCERPT_CHARACTERS].split())
