"""The default permutation against the arithmetic of Levanter's, at N = 10^9 + 7, on one core."""

from collections.abc import Iterator

import numpy as np

from experiments.bench.measure import Options, Row, in_turns, on_cores, seconds
from phasewise.trainer.data.permutation import Permutation

LENGTH, SEED = 1_000_000_007, 7
VECTOR = 1_000_000
MULTIPLIER, ROUNDS = 2654435761, 5


class LevanterArithmetic:
    def __init__(self, length: int, seed: int):
        bits = (length - 1).bit_length()
        self._shift = np.uint64(bits - bits // 2)
        self._mask = np.uint64((1 << int(self._shift)) - 1)
        self._length = length
        self._keys = np.random.Generator(np.random.PCG64(seed)).integers(0, 1 << int(self._shift), size=ROUNDS, dtype=np.uint64)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        values = indices.astype(np.uint64)
        if np.any(values < 0) or np.any(values >= self._length):
            raise IndexError(f"indices from 0 to {self._length - 1} are needed")
        places = self._network(values)
        while np.any(outside := places >= self._length):
            places[outside] = self._network(places[outside])
        return places

    def _network(self, values: np.ndarray) -> np.ndarray:
        left = values >> self._shift
        right = values & self._mask
        for key in self._keys:
            left, right = right, left ^ self._round(right, key)
        return np.asarray((left << self._shift) | right)

    def _round(self, right: np.ndarray, key: np.uint64) -> np.ndarray:
        return ((right & self._mask) * np.uint64(MULTIPLIER) + key) & self._mask


def rows(options: Options) -> Iterator[Row]:
    indices = np.random.default_rng(0).integers(0, LENGTH, VECTOR)
    ours = Permutation("feistel", length=LENGTH, key=SEED)
    levanter = LevanterArithmetic(LENGTH, SEED)
    _check_same(levanter, indices)
    table = np.random.default_rng(1).permutation(VECTOR)
    inside = indices % VECTOR
    sides = {
        "ours": lambda: seconds(lambda: ours(indices)),
        "levanter": lambda: seconds(lambda: levanter(indices)),
        "table": lambda: seconds(lambda: table[inside]),
    }
    with on_cores(1):
        in_turns(sides, 1)
        medians = in_turns(sides, 3 * options.repeats)
    yield Row("feistel, vectorised, times Levanter's arithmetic", medians["ours"] / medians["levanter"], at_most=1.5)
    yield Row("feistel, vectorised, times a look-up in a table of 10^6", medians["ours"] / medians["table"])


def _check_same(levanter: LevanterArithmetic, indices: np.ndarray) -> None:
    record = Permutation("feistel_levanter", length=LENGTH, key=SEED)
    assert np.array_equal(levanter(indices), record(indices)), "the baseline is not Levanter's permutation"
