"""Which finds in a document are of another item than they are named for: a clearer one stands at the same place."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

CLEARLY_BETTER, MOSTLY = 0.1, 0.5
MAX_HULL = 1.5


class Places(NamedTuple):
    """Finds: the document and the item of each, the number of the item's benchmark, score, and the bytes between which it stands."""

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
    kept: list[int] = []
    starts, ends, lengths = _whole(found)
    order = np.lexsort((found.starts, found.benchmarks, found.documents))
    groups = np.flatnonzero(np.diff(found.documents[order], prepend=-1) | np.diff(found.benchmarks[order], prepend=-1))
    for first, stop in pairwise([*groups.tolist(), len(order)]):
        of_group = order[first:stop]
        for number in of_group[~is_example[of_group]].tolist():
            start, end = found.starts[number], found.ends[number]
            covers = np.minimum(end, ends[of_group]) - np.maximum(start, starts[of_group]) > MOSTLY * (end - start)
            better = found.scores[of_group] - found.scores[number]
            explains = (better > 0) | ((better == 0) & (lengths[of_group] > lengths[number]))
            if not (covers & np.where(is_example[of_group], explains, better > CLEARLY_BETTER)).any():
                kept.append(number)
    return sorted(kept)


def _whole(found: Places) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"], Float64[np.ndarray, "n"]]:
    """Of the item of each find in its document: first and last byte, where all its finds stand close to one another, and their length."""
    _, group = np.unique(np.stack([found.documents, found.items]), axis=1, return_inverse=True)
    first, last = np.full(len(group), np.iinfo(np.int64).max), np.zeros(len(group), np.int64)
    np.minimum.at(first, group, found.starts)
    np.maximum.at(last, group, found.ends)
    lengths = np.bincount(group, weights=found.ends - found.starts, minlength=len(group))
    is_close = (last - first <= MAX_HULL * lengths)[group]
    return np.where(is_close, first[group], found.starts), np.where(is_close, last[group], found.ends), lengths[group]
