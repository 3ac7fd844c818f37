"""Words of benchmark items, split into their parts, and statistics of the words that need no scanned text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Int32, Int64, UInt8, UInt64

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.words import MAX_WORDS_PER_BYTE, is_sign, room_for, split_words

QUESTION, CHOICE, ANSWER, SOLUTION, PASSAGE = range(5)
NUM_KINDS = 5
MAX_OWN_ITEMS, MAX_OWN_SHARE = 3, 0.005  # an item's own words may be in this number of items of its task, or in this share of them
SHARED_WORDS, MAX_SHARED_ITEMS, MAX_CHOICE_ITEMS = 4, 9, 4
"""A run of this length in more items of any benchmark is no evidence, nor are its pairs, nor is a shorter choice in more items."""
RUN_WORDS, MAX_RUN_ITEMS = 8, 6
"""Length of the runs that identify parts with few own pairs, and the items that may share a run: several questions on one paragraph."""
MIN_OWN_GRAMS = 3  # a part with fewer own pairs is identified by longer runs, such as a puzzle made of the same sentences as its neighbours
COMMON_CHOICES, SAME_CHOICES = np.uint8(1), np.uint8(2)
MAX_ITEM_WORDS = 20_000
MIN_WEIGHT, MAX_SIGN_WEIGHT = 0.02, 0.4
GRAM_FACTOR = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Segments:
    """The words of all items, split into segments."""

    hashes: UInt64[np.ndarray, "w"]
    starts: Int32[np.ndarray, "s+1"]
    kinds: UInt8[np.ndarray, "s"]
    item_segments: Int32[np.ndarray, "i+1"]

    @classmethod
    def of(cls, items: Sequence[BenchmarkItem]) -> "Segments":
        """Split the words of items."""
        hashes: list[np.ndarray] = []
        kinds: list[int] = []
        item_segments = [0]
        room = room_for(0)
        for item in items:
            words_left = MAX_ITEM_WORDS
            parts = [(QUESTION, item.question), *((CHOICE, choice) for choice in item.choices), (ANSWER, item.answer)]
            parts += [*((SOLUTION, solution) for solution in item.solutions), (PASSAGE, item.passage)]
            for kind, text in parts:
                content = text.encode(errors="replace")
                if MAX_WORDS_PER_BYTE * len(content) > len(room.hashes):
                    room = room_for(2 * len(content))
                if len(of_part := split_words(content, room).hashes[:words_left]):
                    hashes.append(of_part.copy())
                    kinds.append(kind)
                    words_left -= len(of_part)
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
        """Segment of each word."""
        return np.repeat(np.arange(len(self.kinds), dtype=np.int32), np.diff(self.starts))

    @cached_property
    def item_of_word(self) -> Int32[np.ndarray, "w"]:
        """Item of each word."""
        item_of_segment = np.repeat(np.arange(len(self.item_segments) - 1, dtype=np.int32), np.diff(self.item_segments))
        return item_of_segment[self.segment_of_word]

    @cached_property
    def vocabulary(self) -> Int64[np.ndarray, "w"]:
        """Number of each word among the distinct words."""
        return pd.factorize(self.hashes)[0]

    @cached_property
    def words_left(self) -> Int32[np.ndarray, "w"]:
        """Number of words from each word to its segment's end, including the word."""
        return self.starts[self.segment_of_word + 1] - np.arange(len(self.hashes), dtype=np.int32)

    def runs(self, length: int) -> UInt64[np.ndarray, "w"]:
        """Hash the `length` words from each word, 0 if the segment ends before."""
        padded = np.concatenate([self.hashes, np.zeros(length, np.uint64)])
        found = np.zeros(len(self.hashes), np.uint64)
        for offset in range(length):
            found = found * GRAM_FACTOR + padded[offset : offset + len(self.hashes)]
        return np.where(self.words_left >= length, found, np.uint64(0))


def own_grams(segments: Segments, grams: UInt64[np.ndarray, "w"], tasks: Sequence[str], groups: Sequence[str]) -> Bool[np.ndarray, "w"]:
    """Mark the words that begin an item's own gram: few items of its task hold the gram, and no common run covers it.

    `groups` are test items, examples, or readings without punctuation.
    """
    shared = segments.runs(SHARED_WORDS)
    starts = np.flatnonzero((shared != 0) & (_held_by(segments, shared, groups) > MAX_SHARED_ITEMS))
    is_shared = np.zeros(len(grams) + SHARED_WORDS, bool)
    for offset in range(SHARED_WORDS - 1):
        is_shared[starts + offset] = True
    _, task_of_item = np.unique(np.array(tasks), return_inverse=True)
    limit = np.maximum(MAX_OWN_ITEMS, MAX_OWN_SHARE * np.bincount(task_of_item)[task_of_item[segments.item_of_word]])
    return ((grams != 0) & (_held_by(segments, grams, tasks) <= limit)) & ~is_shared[: len(grams)]


def own_runs(segments: Segments, is_own: Bool[np.ndarray, "w"], groups: Sequence[str]) -> Bool[np.ndarray, "w"]:
    """Mark the words that begin an item's own run of `RUN_WORDS`, in parts with too few own grams (`is_own`)."""
    runs = segments.runs(RUN_WORDS)
    # All choices of an item are one part. Each solution is a part.
    item = segments.item_of_word[segments.starts[:-1]].astype(np.int64)
    count = len(segments.kinds)
    key = np.where(segments.kinds == SOLUTION, np.arange(count), count + item * NUM_KINDS + segments.kinds)
    part = np.unique(key, return_inverse=True)[1][segments.segment_of_word]
    is_poor = np.bincount(part[is_own], minlength=int(part.max()) + 1) < MIN_OWN_GRAMS
    return is_poor[part] & (runs != 0) & (_held_by(segments, runs, groups) <= MAX_RUN_ITEMS)


def shared_choices(segments: Segments, groups: Sequence[str]) -> UInt8[np.ndarray, "i"]:
    """Mark the items with `SAME_CHOICES`, the same list as other items, or `COMMON_CHOICES`: half of the choices are short and shared.

    Choices of only numbers and letters do not count for `COMMON_CHOICES`.
    """
    starts = segments.starts.tolist()
    is_plain = np.logical_and.reduceat(is_sign(segments.hashes), segments.starts[:-1]).tolist()
    choices: dict[int, list[bytes]] = {}
    telling: dict[int, list[bytes]] = {}
    for one in np.flatnonzero(segments.kinds == CHOICE).tolist():
        item, text = int(segments.item_of_word[starts[one]]), segments.hashes[starts[one] : starts[one + 1]].tobytes()
        choices.setdefault(item, []).append(text)
        if not is_plain[one]:
            telling.setdefault(item, []).append(text)
    lists = Counter((groups[item], *texts) for item, texts in choices.items())
    held = Counter((groups[item], text) for item, texts in telling.items() for text in set(texts))
    found = np.zeros(len(groups), np.uint8)
    for item, texts in telling.items():
        common = sum(len(text) <= 8 * SHARED_WORDS and held[groups[item], text] > MAX_CHOICE_ITEMS for text in texts)
        found[item] = COMMON_CHOICES if 2 * common >= len(texts) else 0
    for item, texts in choices.items():
        if lists[groups[item], *texts] > MAX_OWN_ITEMS:
            found[item] = SAME_CHOICES
    return found


def _held_by(segments: Segments, features: UInt64[np.ndarray, "w"], groups: Sequence[str]) -> Int64[np.ndarray, "w"]:
    """Count the items of the same group that hold each word's feature."""
    _, group_of_item = np.unique(np.array(groups), return_inverse=True)
    keys = features ^ ((group_of_item + 1).astype(np.uint64) * GRAM_FACTOR)[segments.item_of_word]
    return count_holders(keys, segments.item_of_word)


def word_weights(segments: Segments, tasks: Sequence[str]) -> Float32[np.ndarray, "w"]:
    """Weigh each word by minus the log of the share of items that hold it, among all items or the items of its task, the larger share.

    The unit is the mean over all words, so that weights do not depend on the number of items. Words of a task's template weigh little, and
    numbers and single letters never much. A share counts one more item with the word and one more without.
    """
    word = segments.vocabulary
    _, task_of_item = np.unique(np.array(tasks), return_inverse=True)
    item, num_words = segments.item_of_word.astype(np.int64), int(word.max()) + 1
    of_all, of_task = count_holders(word, item), count_holders(task_of_item[item] * num_words + word, item)
    task_items = np.bincount(task_of_item)[task_of_item[item]]
    share = np.maximum((of_all + 1) / (len(tasks) + 2), of_task / (task_items + 2))
    surprise = -np.log(share)
    weights = np.maximum(surprise / surprise.mean(), MIN_WEIGHT)
    return np.where(is_sign(segments.hashes), np.minimum(weights, MAX_SIGN_WEIGHT), weights).astype(np.float32)


class PartSizes(NamedTuple):
    """Sizes per item and kind of part. Several solutions count as one, with the words and the weight of the largest."""

    words: Int32[np.ndarray, "i 5"]
    distinct: Int32[np.ndarray, "i 5"]
    telling: Int32[np.ndarray, "i 5"]  # distinct words without numbers and single letters
    telling_with_question: Int32[np.ndarray, "i 5"]
    weights: Float32[np.ndarray, "i 5"]


def part_sizes(segments: Segments, weights: Float32[np.ndarray, "w"]) -> PartSizes:
    """Measure all parts."""
    num_items, num_words = len(segments.item_segments) - 1, int(segments.vocabulary.max()) + 1
    kind_of_word = segments.kinds[segments.segment_of_word]
    in_item = segments.item_of_word.astype(np.int64) * num_words + segments.vocabulary
    is_telling = ~is_sign(segments.hashes)
    telling = [in_item[is_telling & (kind_of_word == kind)] for kind in range(NUM_KINDS)]

    def count(words_of_items: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "i"]:
        return np.bincount(distinct(words_of_items) // num_words, minlength=num_items).astype(np.int32)

    def of_parts(of_segments: np.ndarray) -> np.ndarray:
        item, is_solution = segments.item_of_word[segments.starts[:-1]], segments.kinds == SOLUTION
        found = np.zeros((num_items, NUM_KINDS))
        np.add.at(found, (item[~is_solution], segments.kinds[~is_solution]), of_segments[~is_solution])
        np.maximum.at(found[:, SOLUTION], item[is_solution], of_segments[is_solution])
        return found

    return PartSizes(
        words=of_parts(np.diff(segments.starts)).astype(np.int32),
        distinct=np.stack([count(in_item[kind_of_word == kind]) for kind in range(NUM_KINDS)], axis=1),
        telling=np.stack([count(words) for words in telling], axis=1),
        telling_with_question=np.stack([count(np.concatenate([words, telling[QUESTION]])) for words in telling], axis=1),
        weights=of_parts(np.add.reduceat(weights, segments.starts[:-1])).astype(np.float32),
    )


def count_holders(features: np.ndarray, items: Int32[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """Count the items with each feature. `items`: the item of each feature."""
    codes, num_items = pd.factorize(features)[0], int(items.max(initial=0)) + 1
    return np.bincount(distinct(codes * num_items + items) // num_items)[codes]


def distinct(values: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "m"]:
    """Return the sorted distinct values by sorting, which is faster than hashing for many values."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values
