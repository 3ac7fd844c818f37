"""Bijections on `[0, length)`: the project's own Feistel network, Levanter's as its runs recorded it, and a shuffle of short ranges.

A network cuts an index into two halves and changes one half by what the other one says, round after round, which is a bijection
whatever it says. What it sends beyond the length is sent through again until it lands inside (cycle walking).
"""

import math
from collections.abc import Callable

import numpy as np

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
        self._tables = draw_tables(self._side, key)
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
        """A product of 20 and 32 bits fits an int64."""
        mixed = right * LEVANTER_MULTIPLIER
        mixed += key
        mixed &= (1 << self._right_bits) - 1
        return mixed


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


def draw_tables(side: int, key: int) -> np.ndarray:
    """A table a round, of `side` numbers below `side`."""
    tables = np.empty((ROUNDS, side), np.uint32)
    for number, table in enumerate(tables):
        upper_bits = random_numbers(key, number * side, side) >> np.uint64(24)
        table[:] = (upper_bits * np.uint64(side)) >> np.uint64(40)  # the share of 2^40, times the side
    tables.setflags(write=False)
    return tables


def random_numbers(key: int, start: int, count: int) -> np.ndarray:
    """Those from `start` on of SplitMix64's sequence (Steele et al., 2014): 64 bits each, no two alike."""
    return splitmix64(np.arange(start + 1, start + count + 1, dtype=np.uint64) * GOLDEN_GAMMA + np.uint64(key))


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Its finaliser: every bit of the result depends on every bit of `x`. Wraps around on purpose."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
