"""The part of a permutation that is looked at: a stretch of indices in a row, and indices from all over."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

STRETCH = 2**16
"""Ranges up to here are looked at whole."""
SAMPLED = 2**14


class Shuffle(Protocol):
    """What is judged: `trainer.data.permutation.Permutation` is one."""

    @property
    def length(self) -> int:
        """It permutes `range(length)`."""
        ...

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes."""
        ...

    def inverse(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        ...


@dataclass(frozen=True)
class Sample:
    """Places of a permutation.

    Attributes:
        stretch: those of indices in a row, from a multiple of their number on.
        indices: all of them where the stretch is the whole range, else some drawn at random, in order.
        places: those of `indices`.
        misses: places that are outside the range, or that the inverse does not bring back, or that two indices share.
    """

    length: int
    stretch: np.ndarray
    indices: np.ndarray
    places: np.ndarray
    misses: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out."""
        return len(self.stretch) == self.length


def take_sample(shuffle: Shuffle, *, near: int = 0) -> Sample:
    """Look at the stretch that holds index `near`, and all over. What is looked at depends on the length alone."""
    length = shuffle.length
    start = near // STRETCH * STRETCH
    start = start if start + STRETCH <= length else 0
    in_a_row = np.arange(start, min(start + STRETCH, length))
    stretch = shuffle(in_a_row)
    if len(in_a_row) == length:
        return Sample(length, stretch, in_a_row, stretch, _misses(shuffle, in_a_row, stretch))
    indices = random_indices(np.random.default_rng(length), length)
    places = shuffle(indices)
    looked_at, first = np.unique(np.concatenate([in_a_row, indices]), return_index=True)
    return Sample(length, stretch, indices, places, _misses(shuffle, looked_at, np.concatenate([stretch, places])[first]))


def random_indices(rng: np.random.Generator, length: int) -> np.ndarray:
    """Different indices from all over a range longer than a stretch, in order."""
    return np.unique(rng.integers(0, length, SAMPLED))


def _misses(shuffle: Shuffle, indices: np.ndarray, places: np.ndarray) -> int:
    outside = (places < 0) | (places >= shuffle.length)
    wrong = int(outside.sum() + (shuffle.inverse(places[~outside]) != indices[~outside]).sum())
    return max(wrong, len(places) - len(np.unique(places)))
