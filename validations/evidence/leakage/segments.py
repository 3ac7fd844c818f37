"""The words of benchmark items, cut into their parts, and what is known of them before any text is seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt8, UInt64

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.items.item import BenchmarkItem
from phasewise.validations.evidence.leakage.words.words import is_sign, split_words

QUESTION, CHOICE, ANSWER, SOLUTION, PASSAGE = range(5)
NUM_KINDS = 5
MAX_ITEM_WORDS = 20_000
MIN_WEIGHT, MAX_SIGN_WEIGHT = 0.02, 0.4
GRAM_FACTOR = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Segments:
    """The words of all items, cut into segments."""

    hashes: UInt64[np.ndarray, "w"]
    starts: Int32[np.ndarray, "s+1"]
    kinds: UInt8[np.ndarray, "s"]
    item_segments: Int32[np.ndarray, "i+1"]

    @classmethod
    def of(cls, items: Sequence[BenchmarkItem]) -> "Segments":
        """The words of these items."""
        hashes: list[np.ndarray] = []
        kinds: list[int] = []
        item_segments = [0]
        for item in items:
            room = MAX_ITEM_WORDS
            for kind, text in _parts(item):
                of_part = split_words(text.encode(errors="replace")).hashes[:room]
                if len(of_part):
                    hashes.append(of_part)
                    kinds.append(kind)
                    room -= len(of_part)
            item_segments.append(len(kinds))
        starts = np.cumsum([0, *map(len, hashes)])
        if starts[-1] == 0:
            raise DataError(f"a benchmark index needs at least one word, found none in {len(items)} items. Check the files' fields.")
        if starts[-1] >= 2**31:
            raise DataError(f"a benchmark index holds at most {2**31:,} words, found {starts[-1]:,}. Scan for fewer benchmarks at once.")
        return cls(
            hashes=np.concatenate([np.empty(0, np.uint64), *hashes]),
            starts=starts.astype(np.int32),
            kinds=np.array(kinds, np.uint8),
            item_segments=np.array(item_segments, np.int32),
        )

    @cached_property
    def segment_of_word(self) -> Int32[np.ndarray, "w"]:
        """The segment of each word."""
        return np.repeat(np.arange(len(self.kinds), dtype=np.int32), np.diff(self.starts))

    @cached_property
    def item_of_word(self) -> Int32[np.ndarray, "w"]:
        """The item of each word."""
        item_of_segment = np.repeat(np.arange(len(self.item_segments) - 1, dtype=np.int32), np.diff(self.item_segments))
        return item_of_segment[self.segment_of_word]

    @cached_property
    def vocabulary(self) -> Int64[np.ndarray, "w"]:
        """Each word's number among the distinct ones."""
        return np.unique(self.hashes, return_inverse=True)[1]

    @cached_property
    def words_left(self) -> Int32[np.ndarray, "w"]:
        """Words from each one to its segment's end, itself included."""
        return self.starts[self.segment_of_word + 1] - np.arange(len(self.hashes), dtype=np.int32)

    def runs(self, length: int) -> UInt64[np.ndarray, "w"]:
        """Hash of the `length` words from each one on; 0 where the segment ends before."""
        padded = np.concatenate([self.hashes, np.zeros(length, np.uint64)])
        found = np.zeros(len(self.hashes), np.uint64)
        for offset in range(length):
            found = found * GRAM_FACTOR + padded[offset : offset + len(self.hashes)]
        return np.where(self.words_left >= length, found, np.uint64(0))


def word_weights(segments: Segments, tasks: Sequence[str]) -> Float32[np.ndarray, "w"]:
    """How telling each word is: minus the log of the share of items that hold it, among all or among those of its task, the larger.

    The unit is the mean over all words, so that many items and few give like weights. The words of a task's template weigh little,
    and numbers and single letters never much. A share is estimated with one item more that holds the word and one that doesn't.
    """
    word = segments.vocabulary
    _, task_of_item = np.unique(np.array(tasks), return_inverse=True)
    item, num_words = segments.item_of_word.astype(np.int64), int(word.max()) + 1
    of_all = np.bincount(distinct(item * num_words + word) % num_words, minlength=num_words)
    of_task = num_items_with(task_of_item[item] * num_words + word, item, len(tasks))
    task_items = np.bincount(task_of_item)[task_of_item[item]]
    share = np.maximum((of_all[word] + 1) / (len(tasks) + 2), of_task / (task_items + 2))
    surprise = -np.log(share)
    weights = np.maximum(surprise / surprise.mean(), MIN_WEIGHT)
    return np.where(is_sign(segments.hashes), np.minimum(weights, MAX_SIGN_WEIGHT), weights).astype(np.float32)


class PartSizes(NamedTuple):
    """Of each item and kind of part: words, distinct words, distinct words without signs, these together with the question's, weight.

    Several solutions count as one, with the words and the weight of the largest.
    """

    words: Int32[np.ndarray, "i 5"]
    distinct: Int32[np.ndarray, "i 5"]
    telling: Int32[np.ndarray, "i 5"]
    telling_with_question: Int32[np.ndarray, "i 5"]
    weights: Float32[np.ndarray, "i 5"]


def part_sizes(segments: Segments, weights: Float32[np.ndarray, "w"]) -> PartSizes:
    """The sizes of all parts."""
    num_items, num_words = len(segments.item_segments) - 1, int(segments.vocabulary.max()) + 1
    kind_of_word = segments.kinds[segments.segment_of_word]
    in_item = segments.item_of_word.astype(np.int64) * num_words + segments.vocabulary
    is_telling = ~is_sign(segments.hashes)
    telling = [in_item[is_telling & (kind_of_word == kind)] for kind in range(NUM_KINDS)]

    def count(words_of_items: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "i"]:
        return np.bincount(distinct(words_of_items) // num_words, minlength=num_items).astype(np.int32)

    return PartSizes(
        words=_of_parts(segments, np.diff(segments.starts)).astype(np.int32),
        distinct=np.stack([count(in_item[kind_of_word == kind]) for kind in range(NUM_KINDS)], axis=1),
        telling=np.stack([count(words) for words in telling], axis=1),
        telling_with_question=np.stack([count(np.concatenate([words, telling[QUESTION]])) for words in telling], axis=1),
        weights=_of_parts(segments, np.add.reduceat(weights, segments.starts[:-1])).astype(np.float32),
    )


def _of_parts(segments: Segments, of_segments: np.ndarray) -> np.ndarray:
    """What segments have, summed over each kind of part; of solutions the largest."""
    item_of_segment = segments.item_of_word[segments.starts[:-1]]
    found = np.zeros((len(segments.item_segments) - 1, NUM_KINDS))
    of_solutions = segments.kinds == SOLUTION
    np.add.at(found, (item_of_segment[~of_solutions], segments.kinds[~of_solutions]), of_segments[~of_solutions])
    np.maximum.at(found[:, SOLUTION], item_of_segment[of_solutions], of_segments[of_solutions])
    return found


def num_items_with(features: Int64[np.ndarray, "w"], items: Int64[np.ndarray, "w"], num_items: int) -> Int64[np.ndarray, "w"]:
    """How many items have each word's feature. By sorting alone: searching a table of millions for each word is ten times slower."""
    pairs, pair_of_word = np.unique(features * num_items + items, return_inverse=True)
    counts = np.diff(np.flatnonzero(np.diff(pairs // num_items, prepend=-1, append=-1)))
    return np.repeat(counts, counts)[pair_of_word]


def distinct(values: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "m"]:
    """The distinct values, sorted: by sorting, which for many values is much faster than by hashing."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values


def _parts(item: BenchmarkItem) -> list[tuple[int, str]]:
    return [
        (QUESTION, item.question),
        *((CHOICE, choice) for choice in item.choices),
        (ANSWER, item.answer),
        *((SOLUTION, solution) for solution in item.solutions),
        (PASSAGE, item.passage),
    ]
