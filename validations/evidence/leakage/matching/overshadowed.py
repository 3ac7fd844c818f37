"""Which finds in a document are of another item than they are named for: a clearer one is at the same place."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

CLEARLY_BETTER, MOSTLY = 0.1, 0.5
MAX_HULL = 1.5
_MAX_PAIRS = 2**20


class Places(NamedTuple):
    """Finds: the document and the item of each, the number of the item's benchmark, score, and the bytes between which it is."""

    documents: Int32[np.ndarray, "n"]
    items: Int32[np.ndarray, "n"]
    benchmarks: Int64[np.ndarray, "n"]
    scores: Float64[np.ndarray, "n"]
    starts: Int64[np.ndarray, "n"]
    ends: Int64[np.ndarray, "n"]


def without_overshadowed(found: Places, is_example: Bool[np.ndarray, "n"]) -> list[int]:
    """Numbers of the finds that are kept: those of test items, of which nothing clearer of the same benchmark covers the same place.

    A sibling by template must be clearly better. An example of another split, of which a copy is no leak, need only be better, or be as
    good and explain more of the document.
    """
    starts, ends, lengths = _whole(found)
    order = np.lexsort((found.starts, found.benchmarks, found.documents))
    is_first = np.diff(found.documents[order], prepend=-1) | np.diff(found.benchmarks[order], prepend=-1)
    groups = np.flatnonzero(is_first)
    sizes = np.diff(np.append(groups, len(order)))
    is_test = ~is_example[order]
    numbers, firsts, counts = order[is_test], np.repeat(groups, sizes)[is_test], np.repeat(sizes, sizes)[is_test]
    kept: list[int] = []
    for some in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(np.cumsum(counts) // _MAX_PAIRS)) + 1):
        of_some = counts[some]
        rows = np.cumsum(of_some) - of_some
        number = np.repeat(numbers[some], of_some)
        other = order[np.repeat(firsts[some] - rows, of_some) + np.arange(of_some.sum())]
        start, end = found.starts[number], found.ends[number]
        covers = np.minimum(end, ends[other]) - np.maximum(start, starts[other]) > MOSTLY * (end - start)
        better = found.scores[other] - found.scores[number]
        explains = (better > 0) | ((better == 0) & (lengths[other] > lengths[number]))
        is_covered = covers & np.where(is_example[other], explains, better > CLEARLY_BETTER)
        kept += numbers[some][~np.logical_or.reduceat(is_covered, rows)].tolist() if len(some) else []
    return sorted(kept)


def _whole(found: Places) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"], Float64[np.ndarray, "n"]]:
    """Of the item of each find in its document: first and last byte, where all its finds are close to one another, and their length."""
    of_item = found.documents.astype(np.int64) * (int(found.items.max(initial=0)) + 1) + found.items
    group = np.unique(of_item, return_inverse=True)[1]
    first, last = np.full(len(group), np.iinfo(np.int64).max), np.zeros(len(group), np.int64)
    np.minimum.at(first, group, found.starts)
    np.maximum.at(last, group, found.ends)
    lengths = np.bincount(group, weights=found.ends - found.starts, minlength=len(group))
    is_close = (last - first <= MAX_HULL * lengths)[group]
    return np.where(is_close, first[group], found.starts), np.where(is_close, last[group], found.ends), lengths[group]
