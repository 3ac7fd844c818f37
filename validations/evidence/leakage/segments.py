"""The words of benchmark items, cut into their parts, and what is known of them before any text is seen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt8, UInt64

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.words import is_sign, split_words

MAX_OWN_ITEMS, MAX_OWN_SHARE = 3, 0.005
"""So many items of a task, or such a share of them, may hold what is an item's own."""


SHARED_WORDS, MAX_SHARED_ITEMS, MAX_CHOICE_ITEMS = 4, 9, 4
"""A run of so many words that more items hold, of whatever benchmarks, is no evidence, and neither are the pairs in it; nor is a choice of
fewer words that more than `MAX_CHOICE_ITEMS` have."""


RUN_WORDS, MAX_RUN_ITEMS = 8, 6
"""Length of the runs by which poor parts are known, and how many items may hold one: a few ask several times about one paragraph."""


COMMON_CHOICES, SAME_CHOICES = np.uint8(1), np.uint8(2)


MIN_OWN_GRAMS = 3
"""A part with fewer pairs of its own is known by longer runs: a puzzle that is made of the same few sentences as its neighbours."""


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
            for kind, text in [
                (QUESTION, item.question),
                *((CHOICE, choice) for choice in item.choices),
                (ANSWER, item.answer),
                *((SOLUTION, solution) for solution in item.solutions),
                (PASSAGE, item.passage),
            ]:
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


def own_grams(segments: Segments, grams: UInt64[np.ndarray, "w"], tasks: Sequence[str], groups: Sequence[str]) -> Bool[np.ndarray, "w"]:
    """Which grams are an item's own, by the word that they begin at.

    Args:
        tasks: of each item, the group that shares a template.
        groups: of each item; test items, examples, and readings without punctuation.
    """
    shared = segments.runs(SHARED_WORDS)
    starts = np.flatnonzero((shared != 0) & (_held_by(segments, shared, groups) > MAX_SHARED_ITEMS))
    is_shared = np.zeros(len(grams) + SHARED_WORDS, bool)
    for offset in range(SHARED_WORDS - 1):
        is_shared[starts + offset] = True
    # Which features few items of the same task hold; 0 is none
    _, task_of_item = np.unique(np.array(tasks), return_inverse=True)
    limit = np.maximum(MAX_OWN_ITEMS, MAX_OWN_SHARE * np.bincount(task_of_item)[task_of_item[segments.item_of_word]])
    return ((grams != 0) & (_held_by(segments, grams, tasks) <= limit)) & ~is_shared[: len(grams)]


def own_runs(segments: Segments, is_own: Bool[np.ndarray, "w"], groups: Sequence[str]) -> Bool[np.ndarray, "w"]:
    """Which runs of `RUN_WORDS` are an item's own, of the parts that have too few grams of their own (`is_own`)."""
    runs = segments.runs(RUN_WORDS)
    # A number for the part of each segment: all choices of an item are one part, each solution is one
    item = segments.item_of_word[segments.starts[:-1]].astype(np.int64)
    count = len(segments.kinds)
    key = np.where(segments.kinds == SOLUTION, np.arange(count), count + item * NUM_KINDS + segments.kinds)
    part = np.unique(key, return_inverse=True)[1][segments.segment_of_word]
    is_poor = np.bincount(part[is_own], minlength=int(part.max()) + 1) < MIN_OWN_GRAMS
    return is_poor[part] & (runs != 0) & (_held_by(segments, runs, groups) <= MAX_RUN_ITEMS)


def shared_choices(segments: Segments, groups: Sequence[str]) -> UInt8[np.ndarray, "i"]:
    """Of each item: `SAME_CHOICES` where others have its very choices in their order; `COMMON_CHOICES` where half of those that say more
    than signs are short ones that others have, such as `I and II only`.
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
    """How many items of the same group hold each word's feature. By one stable sort, which leaves the items of equal features in order."""
    _, group_of_item = np.unique(np.array(groups), return_inverse=True)
    keys = features ^ ((group_of_item + 1).astype(np.uint64) * GRAM_FACTOR)[segments.item_of_word]
    order = np.argsort(keys, kind="stable")
    keys, items = keys[order], segments.item_of_word[order]
    is_first = np.append(True, keys[1:] != keys[:-1])
    firsts = np.flatnonzero(is_first)
    counts = np.add.reduceat((is_first | np.append(True, items[1:] != items[:-1])).astype(np.int64), firsts)
    found = np.empty(len(keys), np.int64)
    found[order] = np.repeat(counts, np.diff(np.append(firsts, len(keys))))
    return found


def word_weights(segments: Segments, tasks: Sequence[str]) -> Float32[np.ndarray, "w"]:
    """How telling each word is: minus the log of the share of items that hold it, among all or among those of its task, the larger.

    The unit is the mean over all words, so that many items and few give like weights. The words of a task's template weigh little,
    and numbers and single letters never much. A share is estimated with one item more that holds the word and one that doesn't.
    """
    word = segments.vocabulary
    _, task_of_item = np.unique(np.array(tasks), return_inverse=True)
    item, num_words = segments.item_of_word.astype(np.int64), int(word.max()) + 1
    of_all = np.bincount(distinct(item * num_words + word) % num_words, minlength=num_words)
    # How many items have each word's feature. By sorting alone: searching a table of millions for each word is ten times slower
    features = task_of_item[item] * num_words + word
    num_items = len(tasks)
    pairs, pair_of_word = np.unique(features * num_items + item, return_inverse=True)
    counts = np.diff(np.flatnonzero(np.diff(pairs // num_items, prepend=-1, append=-1)))
    of_task = np.repeat(counts, counts)[pair_of_word]
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


def distinct(values: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "m"]:
    """The distinct values, sorted: by sorting, which for many values is much faster than by hashing."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values
