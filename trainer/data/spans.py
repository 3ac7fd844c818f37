"""Which tokens of a cache of conversations count: those of the answers, as spans of token numbers."""

import numpy as np
from jaxtyping import Bool, Int

Spans = Int[np.ndarray, "n 2"]
"""Start and stop of each: ascending, disjoint, not empty."""


def counted(spans: Spans, first: int, length: int) -> Bool[np.ndarray, " length"]:
    """Which of the tokens `[first, first + length)` lie in a span."""
    return counted_rows(spans, np.array([first]), length)[0]


def counted_rows(spans: Spans, firsts: Int[np.ndarray, " b"], length: int) -> Bool[np.ndarray, "b length"]:
    """The same for several rows of one length, by their first tokens."""
    numbers = np.asarray(firsts, np.int64)[:, None] + np.arange(length)
    return counted_before(spans, numbers + 1) > counted_before(spans, numbers)


def counted_before(spans: Spans, numbers: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """How many tokens before each of these token numbers lie in a span."""
    if not len(spans):
        return np.zeros(np.shape(numbers), np.int64)
    lengths = spans[:, 1] - spans[:, 0]
    before = np.cumsum(lengths) - lengths
    last = np.searchsorted(spans[:, 0], numbers, "right") - 1
    within = np.clip(numbers - spans[last, 0], 0, lengths[last])
    return np.where(last < 0, 0, before[last] + within)
