"""What an item says that other items don't: only that is evidence of it. What many items share finds none of them, wherever it is."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

from phasewise.validations.evidence.leakage.segments import CHOICE, GRAM_FACTOR, NUM_KINDS, SOLUTION, Segments
from phasewise.validations.evidence.leakage.words.words import is_sign

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
    return _is_own(segments, grams, tasks) & ~is_shared[: len(grams)]


def own_runs(segments: Segments, is_own: Bool[np.ndarray, "w"], groups: Sequence[str]) -> Bool[np.ndarray, "w"]:
    """Which runs of `RUN_WORDS` are an item's own, of the parts that have too few grams of their own (`is_own`)."""
    runs = segments.runs(RUN_WORDS)
    part = _parts(segments)[segments.segment_of_word]
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


def _is_own(segments: Segments, features: UInt64[np.ndarray, "w"], tasks: Sequence[str]) -> Bool[np.ndarray, "w"]:
    """Which features few items of the same task hold; 0 is none."""
    _, task_of_item = np.unique(np.array(tasks), return_inverse=True)
    limit = np.maximum(MAX_OWN_ITEMS, MAX_OWN_SHARE * np.bincount(task_of_item)[task_of_item[segments.item_of_word]])
    return (features != 0) & (_held_by(segments, features, tasks) <= limit)


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


def _parts(segments: Segments) -> Int64[np.ndarray, "s"]:
    """A number for the part of each segment: all choices of an item are one part, each solution is one."""
    item = segments.item_of_word[segments.starts[:-1]].astype(np.int64)
    count = len(segments.kinds)
    key = np.where(segments.kinds == SOLUTION, np.arange(count), count + item * NUM_KINDS + segments.kinds)
    return np.unique(key, return_inverse=True)[1]
