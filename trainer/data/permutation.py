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

ROUNDS = 8

LEVANTER_ROUNDS = 5

LEVANTER_MULTIPLIER = 2654435761

CHUNK_INDICES = 16_384

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class TableFeistel:
    """A network whose round functions are tables of random numbers, drawn from the key. Its rounds are twice as many as the probes ask for.

    An index is `left · side + right` with `side` the root of the length, rounded up, and a round adds to one half, modulo `side`, what
    its table holds for the other half (a generalised Feistel network; Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
    2002). Next to nothing is walked, as the square is hardly larger than the length. A table takes the place of any mixing arithmetic:
    it is as random as a function can be and costs one look-up.
    """

    def __init__(self, length: int, key: int):
        self._length = length
        self._side = math.isqrt(length - 1) + 1
        # A table a round, of `side` numbers below `side`
        side = self._side
        tables = np.empty((ROUNDS, side), np.uint32)
        for number, table in enumerate(tables):
            upper_bits = random_numbers(key, number * side, side) >> np.uint64(24)
            table[:] = (upper_bits * np.uint64(side)) >> np.uint64(40)  # the share of 2^40, times the side
        tables.setflags(write=False)
        self._tables = tables
        views = [table.data for table in self._tables]  # memory views: indexing one is far quicker than indexing an array
        self._rounds = tuple(zip(views[::2], views[1::2], strict=True))

    @property
    def num_bytes(self) -> int:
        """Memory of the tables."""
        return self._tables.nbytes

    def forward(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes."""
        return walk(self._network, indices, self._length)

    def backward(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        return walk(self._network_backward, places, self._length)

    def forward_one(self, index: int) -> int:
        """Where one index goes."""
        side, place = self._side, index
        while True:
            left, right = divmod(place, side)
            for first, second in self._rounds:
                left = (left + first[right]) % side
                right = (right + second[left]) % side
            place = left * side + right
            if place < self._length:
                return place

    def _network(self, indices: np.ndarray) -> np.ndarray:
        halves = _Halves(indices, self._side)
        for first, second in zip(self._tables[::2], self._tables[1::2], strict=True):
            halves.add(first, by=halves.right, to=halves.left)
            halves.add(second, by=halves.left, to=halves.right)
        return halves.joined()

    def _network_backward(self, places: np.ndarray) -> np.ndarray:
        halves = _Halves(places, self._side)
        for first, second in zip(self._tables[-2::-2], self._tables[::-2], strict=True):
            halves.subtract(second, by=halves.left, of=halves.right)
            halves.subtract(first, by=halves.right, of=halves.left)
        return halves.joined()


class _Halves:
    """Both halves of some indices and the room to work in: nothing is allocated between the rounds."""

    def __init__(self, indices: np.ndarray, side: int):
        left = indices // side
        self.left, self.right = left.astype(np.uint32), (indices - left * side).astype(np.uint32)
        self._side = np.uint32(side)
        self._where = np.empty(indices.size, np.intp)
        self._sum, self._turned = np.empty(indices.size, np.uint32), np.empty(indices.size, np.uint32)

    def add(self, table: np.ndarray, *, by: np.ndarray, to: np.ndarray) -> None:
        """`to += table[by]` modulo the side: where the sum is below the side, taking the side away wraps around and is the larger."""
        self._look_up(table, by)
        np.add(to, self._sum, out=self._sum)
        np.subtract(self._sum, self._side, out=self._turned)
        np.minimum(self._sum, self._turned, out=to)

    def subtract(self, table: np.ndarray, *, by: np.ndarray, of: np.ndarray) -> None:
        """`of -= table[by]` modulo the side, by the same trick."""
        self._look_up(table, by)
        np.subtract(of, self._sum, out=self._sum)
        np.add(self._sum, self._side, out=self._turned)
        np.minimum(self._sum, self._turned, out=of)

    def joined(self) -> np.ndarray:
        """The indices that the halves now make."""
        return self.left.astype(np.int64) * int(self._side) + self.right

    def _look_up(self, table: np.ndarray, by: np.ndarray) -> None:
        np.copyto(self._where, by)
        table.take(self._where, out=self._sum, mode="clip")  # never clips; the mode that checks would buffer `out`


class ShuffledRange:
    """All places of a short range, in the order in which random numbers sort its indices.

    A network needs halves of some size to mix: over nine values it reaches half of the orders, and not all of them alike.
    """

    def __init__(self, length: int, key: int):
        self._places = np.argsort(random_numbers(key, 0, length))
        self._indices = np.argsort(self._places)
        self._view = self._places.data

    @property
    def num_bytes(self) -> int:
        """Memory of both directions."""
        return self._places.nbytes + self._indices.nbytes

    def forward(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes."""
        return self._places[indices]

    def backward(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        return self._indices[places]

    def forward_one(self, index: int) -> int:
        """Where one index goes."""
        return self._view[index]


class LevanterFeistel:
    """Levanter's `FeistelPermutation`, the order of Marin's later runs, index by index.

    Five rounds of `F(right) = (right · 2654435761 + key) mod 2^right_bits` over halves of `bits // 2` and `bits - bits // 2` bits. The
    halves change places but the mask stays that of the right one, so that at an odd number of bits the walk is over `2^(bits + 1)`
    values. The lowest bit of `F` is linear: at a power of two the lowest bit of a place is one bit of its index. Levanter draws the seed
    from the component's JAX key as `jax.random.randint(key, (), 0, 2**30)`; here it is given. The round keys are what this NumPy draws
    from it, and a length of 1, which Levanter once refused, is the identity.
    """

    def __init__(self, length: int, seed: int):
        self._length = length
        bits = (length - 1).bit_length()
        self._right_bits = bits - bits // 2
        generator = np.random.Generator(np.random.PCG64(seed))
        self._keys = generator.integers(0, 1 << self._right_bits, size=LEVANTER_ROUNDS, dtype=np.uint64).tolist()

    @property
    def num_bytes(self) -> int:
        """It has no tables."""
        return 0

    def forward(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes."""
        return walk(self._network, indices, self._length)

    def backward(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        return walk(self._network_backward, places, self._length)

    def forward_one(self, index: int) -> int:
        """Where one index goes."""
        shift, mask = self._right_bits, (1 << self._right_bits) - 1
        place = index
        while True:
            left, right = place >> shift, place & mask
            for key in self._keys:
                left, right = right, left ^ ((right * LEVANTER_MULTIPLIER + key) & mask)
            place = (left << shift) | right
            if place < self._length:
                return place

    def _network(self, indices: np.ndarray) -> np.ndarray:
        left, right = self._cut(indices)
        for key in self._keys:
            left ^= self._function(right, key)
            left, right = right, left
        return (left << self._right_bits) | right

    def _network_backward(self, places: np.ndarray) -> np.ndarray:
        left, right = self._cut(places)
        for key in reversed(self._keys):
            left, right = right, left
            left ^= self._function(right, key)
        return (left << self._right_bits) | right

    def _cut(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values >> self._right_bits, values & ((1 << self._right_bits) - 1)

    def _function(self, right: np.ndarray, key: int) -> np.ndarray:
        mixed = right * LEVANTER_MULTIPLIER
        mixed += key
        mixed &= (1 << self._right_bits) - 1
        return mixed


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


_recent = RecentPermutations(MAX_RECENT_BYTES)


def walk(network: Callable[[np.ndarray], np.ndarray], indices: np.ndarray, length: int) -> np.ndarray:
    """Send indices through, in chunks that stay in the processor's cache; what lands beyond the length goes through again."""
    places = np.empty_like(indices)
    for start in range(0, indices.size, CHUNK_INDICES):
        chunk = network(indices[start : start + CHUNK_INDICES])
        outside = np.flatnonzero(chunk >= length)
        while outside.size:
            again = network(chunk[outside])
            chunk[outside] = again
            outside = outside[again >= length]
        places[start : start + CHUNK_INDICES] = chunk
    return places


def random_numbers(key: int, start: int, count: int) -> np.ndarray:
    """Those from `start` on of SplitMix64's sequence (Steele et al., 2014): 64 bits each, no two alike."""
    # Its finaliser: every bit of the result depends on every bit of `x`. Wraps around on purpose
    x = np.arange(start + 1, start + count + 1, dtype=np.uint64) * GOLDEN_GAMMA + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


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
    values, a, b, n = numbers.view(np.uint64), np.uint64(multiplier), np.uint64(offset), np.uint64(length)
    if length <= 2**32:
        return _modulo(a * values + b, n).view(np.int64)
    upper, lower = values >> np.uint64(20), values & np.uint64(2**20 - 1)
    return _modulo((_modulo(a * upper, n) << np.uint64(20)) + a * lower + b, n).view(np.int64)


def _modulo(values: np.ndarray, divisor: np.uint64) -> np.ndarray:
    return values - values // divisor * divisor


def _rebuild(kind: Kind, length: int, key: int) -> Permutation:
    return Permutation.build(kind, length=length, key=key)
