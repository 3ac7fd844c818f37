"""Stateless permutations of `range(length)`: the place of any index without the places of the others."""

import hashlib
import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.feistel import LevanterFeistel, ShuffledRange, TableFeistel

Kind = Literal["linear", "feistel", "feistel_levanter"]
PERMUTATION_VERSIONS: dict[Kind, int] = {"linear": 1, "feistel": 2, "feistel_levanter": 1}
MAX_LENGTH = 2**40
MAX_SHUFFLED_LENGTH = 4096
MAX_RECENT_BYTES = 64 * 2**20


class Bijection(Protocol):
    """What a kind has to offer, on flat int64 arrays of numbers that are known to be inside."""

    @property
    def num_bytes(self) -> int:
        """Memory of its tables."""
        ...

    def forward(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes."""
        ...

    def backward(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        ...

    def forward_one(self, index: int) -> int:
        """Where one index goes."""
        ...


@dataclass(frozen=True)
class Permutation:
    """A bijection on `range(length)` that kind, length and key decide.

    Attributes:
        kind: `linear` is (a · index + b) mod length with a prime to the length (the Marin paper's Equation 1), exact at every length;
            `feistel` has the statistics of a true random permutation; `feistel_levanter` is the record's.
        length: from 1 to 2^40.
        key: from 0 up to, not including, 2^64. `feistel_levanter` takes it as the seed that Levanter draws from its own key.
    """

    kind: Kind
    length: int
    key: int
    _bijection: Bijection = field(repr=False, compare=False)

    @classmethod
    def build(cls, kind: Kind, *, length: int, key: int) -> "Permutation":
        """The permutation, kept for the next call while the tables of those used last fit `MAX_RECENT_BYTES`."""
        return _recent.get(kind, operator.index(length), operator.index(key))

    @property
    def num_bytes(self) -> int:
        """The memory it holds: its tables, and about a kibibyte for itself."""
        return 1024 + self._bijection.num_bytes

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes, as int64 in the shape of `indices`. Indices that are no integers in `[0, length)` are refused."""
        return self._apply(self._bijection.forward, indices)

    def inverse(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        return self._apply(self._bijection.backward, places)

    def at(self, index: int) -> int:
        """Where one index goes."""
        index = operator.index(index)
        if not 0 <= index < self.length:
            raise self._outside(index)
        return self._bijection.forward_one(index)

    def _apply(self, bijection: Callable[[np.ndarray], np.ndarray], numbers: np.ndarray) -> np.ndarray:
        array = np.asarray(numbers)
        if array.dtype.kind not in "iu":
            raise DataError(f"A {self.kind} permutation of {self.length} needs integers, found {array.dtype}: convert them first.")
        flat = array.astype(np.int64, copy=False).ravel()
        if flat.size and flat.view(np.uint64).max() >= self.length:  # as an unsigned number a negative one is the largest
            raise self._outside(array.flat[int(flat.view(np.uint64).argmax())])
        return bijection(flat).reshape(array.shape)

    def _outside(self, number: object) -> DataError:
        return DataError(
            f"A {self.kind} permutation of {self.length} takes numbers from 0 to {self.length - 1}, found {number}: "
            "take positions modulo the length, and key each pass."
        )

    def __reduce__(self):
        """Another process draws the tables again: three values travel."""
        return _rebuild, (self.kind, self.length, self.key)


class _Linear:
    """An affine map over the integers modulo the length."""

    num_bytes = 0

    def __init__(self, length: int, key: int):
        multiplier = 1 + derive_key("multiplier", key) % max(length - 1, 1)
        while math.gcd(multiplier, length) != 1:
            multiplier = 1 + multiplier % length
        offset = derive_key("offset", key) % length
        inverse = pow(multiplier, -1, length)
        self._length, self._forward, self._backward = length, (multiplier, offset), (inverse, -inverse * offset % length)

    def forward(self, indices: np.ndarray) -> np.ndarray:
        return _affine(indices, *self._forward, self._length)

    def backward(self, places: np.ndarray) -> np.ndarray:
        return _affine(places, *self._backward, self._length)

    def forward_one(self, index: int) -> int:
        multiplier, offset = self._forward
        return (multiplier * index + offset) % self._length


class RecentPermutations:
    """The permutations used last. Threads share it; two that miss at once build the same one twice, which is harmless."""

    def __init__(self, max_bytes: int):
        self._max_bytes, self.num_bytes = max_bytes, 0
        self._kept: OrderedDict[tuple[Kind, int, int], Permutation] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, kind: Kind, length: int, key: int) -> Permutation:
        """That permutation, built where it is not kept."""
        wanted = (kind, length, key)
        with self._lock:
            if found := self._kept.get(wanted):
                self._kept.move_to_end(wanted)
                return found
        made = Permutation(kind, length, key, _build_bijection(kind, length, key))
        with self._lock:
            if wanted not in self._kept:
                self._kept[wanted] = made
                self.num_bytes += made.num_bytes
            while self.num_bytes > self._max_bytes and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self.num_bytes -= dropped.num_bytes
        return made


def permute(kind: Kind, indices: np.ndarray, *, length: int, key: int) -> np.ndarray:
    """Where each index goes: `Permutation.build(kind, length=length, key=key)(indices)`."""
    return Permutation.build(kind, length=length, key=key)(indices)


def derive_key(*parts: str | int) -> int:
    """A 64-bit key from its parts; different parts give independent keys."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()[:8], "little")


def _build_bijection(kind: Kind, length: int, key: int) -> Bijection:
    if not 1 <= length <= MAX_LENGTH:
        raise DataError(f"A permutation needs a length from 1 to 2^40, found {length}.")
    if not 0 <= key < 2**64:
        raise DataError(f"A permutation's key must be from 0 to 2^64 - 1, found {key}: `derive_key` makes one from any parts.")
    match kind:
        case "linear":
            return _Linear(length, key)
        case "feistel":
            own_key = derive_key("feistel", length, key)
            return ShuffledRange(length, own_key) if length <= MAX_SHUFFLED_LENGTH else TableFeistel(length, own_key)
        case "feistel_levanter":
            return LevanterFeistel(length, key)


def _affine(numbers: np.ndarray, multiplier: int, offset: int, length: int) -> np.ndarray:
    """(multiplier · number + offset) mod length. From 2^32 on the product does not fit 64 bits and is made in two parts of 20 bits."""
    values, a, b, n = numbers.view(np.uint64), np.uint64(multiplier), np.uint64(offset), np.uint64(length)
    if length <= 2**32:
        return _modulo(a * values + b, n).view(np.int64)
    upper, lower = values >> np.uint64(20), values & np.uint64(2**20 - 1)
    return _modulo((_modulo(a * upper, n) << np.uint64(20)) + a * lower + b, n).view(np.int64)


def _modulo(values: np.ndarray, divisor: np.uint64) -> np.ndarray:
    """The same as `%` at half its time: NumPy divides by a constant with multiplications, and only in `//`."""
    return values - values // divisor * divisor


def _rebuild(kind: Kind, length: int, key: int) -> Permutation:
    return Permutation.build(kind, length=length, key=key)


_recent = RecentPermutations(MAX_RECENT_BYTES)
