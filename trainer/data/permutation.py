"""Stateless permutations of `range(length)`: the place of any index without the places of the others."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from phasewise.trainer.base.errors import DataError

Kind = Literal["linear", "linear_levanter", "feistel", "feistel_levanter"]
PERMUTATION_VERSIONS: dict[Kind, int] = {"linear": 1, "linear_levanter": 1, "feistel": 2, "feistel_levanter": 1}
MAX_LENGTH = 2**40
MAX_SHUFFLED_LENGTH = 4096
ROUNDS = 8  # twice as many as the probes of randomness need
LEVANTER_ROUNDS = 5
LEVANTER_MULTIPLIER = 2654435761
CHUNK_INDICES = 16_384  # a chunk stays in the processor's cache
TABLES_KEPT = 64
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Permutation:
    """A bijection on `range(length)`, given by kind, length and key."""

    # `linear` is (a · index + b) mod length with a coprime to the length (Marin paper, Equation 1), exact at every length. `feistel` has
    # the statistics of a random permutation. The kinds of Levanter are the published orders of Marin's runs
    kind: Kind
    length: int  # from 1 to 2^40
    key: int  # from 0 to 2^64 - 1. The kinds of Levanter take it as the seed that Levanter draws from its own key

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAX_LENGTH:
            raise DataError(f"A permutation needs a length from 1 to 2^40, found {self.length}.")
        if not 0 <= self.key < 2**64:
            raise DataError(f"A permutation's key must be from 0 to 2^64 - 1, found {self.key}: `derive_key` makes one from any parts.")

    def inverse(self, places: np.ndarray) -> np.ndarray:
        """Return the index at each place."""
        return self(places, inverse=True)

    def __call__(self, indices: np.ndarray, *, inverse: bool = False) -> np.ndarray:
        """Return the place of each index, as int64. Raises DataError for an index that is not an integer in `[0, length)`."""
        array = np.asarray(indices)
        if array.dtype.kind not in "iu":
            raise DataError(f"A {self.kind} permutation of {self.length} needs integers, found {array.dtype}: convert them first.")
        flat = array.astype(np.int64, copy=False).ravel()
        if flat.size and flat.view(np.uint64).max() >= self.length:  # as an unsigned number a negative one is the largest
            found = array.flat[int(flat.view(np.uint64).argmax())]
            raise DataError(
                f"A {self.kind} permutation of {self.length} takes numbers from 0 to {self.length - 1}, found {found}: "
                "take positions modulo the length, and key each pass."
            )
        match self.kind:
            case "linear" | "linear_levanter":
                factors = draw_levanter if self.kind == "linear_levanter" else draw_linear
                mapped = map_linear(flat, self.length, *factors(self.length, self.key), inverse=inverse)
            case "feistel":
                key = derive_key("feistel", self.length, self.key)
                if self.length <= MAX_SHUFFLED_LENGTH:
                    mapped = _shuffled(self.length, key)[inverse][flat]
                else:
                    network = partial(_feistel_network, tables=_feistel_tables(self.length, key), inverse=inverse)
                    mapped = _walk(network, flat, self.length)
            case "feistel_levanter":
                mapped = map_levanter(flat, self.length, self.key, inverse=inverse)
        return mapped.reshape(array.shape)


def derive_key(*parts: str | int) -> int:
    """Return a 64-bit key. Different parts give independent keys."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()[:8], "little")


def draw_linear(length: int, key: int) -> tuple[int, int]:
    """Return the factor, coprime to the length, and the addend of `linear`."""
    multiplier = 1 + derive_key("multiplier", key) % max(length - 1, 1)
    while math.gcd(multiplier, length) != 1:
        multiplier = 1 + multiplier % length
    return multiplier, derive_key("offset", key) % length


def draw_levanter(length: int, seed: int) -> tuple[int, int]:
    """Return factor and addend of Levanter's `LcgPermutation` since January 2025, with the seed that `map_levanter` describes.

    Since April 2025 Levanter multiplies in float64, which is exact up to 94,906,265 indices. Beyond this length Levanter's rounded products
    repeat some indices and omit others. This permutation stays exact.
    """
    if length == 1:
        return 1, 0
    generator = np.random.Generator(np.random.PCG64(seed))
    multiplier = int(generator.integers(1, length))
    while math.gcd(multiplier, length) != 1:
        multiplier = int(generator.integers(1, length))
    return multiplier, int(generator.integers(0, length))


def map_linear(numbers: np.ndarray, length: int, multiplier: int, offset: int, *, inverse: bool) -> np.ndarray:
    """Map int64 numbers by an affine function over the integers modulo the length, without overflow up to a length of 2^40."""
    if inverse:
        multiplier = pow(multiplier, -1, length)
        offset = -multiplier * offset % length

    values, a, b, n = numbers.view(np.uint64), np.uint64(multiplier), np.uint64(offset), np.uint64(length)
    if length <= 2**32:
        mapped = a * values + b
    else:
        upper = a * (values >> np.uint64(20))
        mapped = ((upper - upper // n * n) << np.uint64(20)) + a * (values & np.uint64(2**20 - 1)) + b
    return (mapped - mapped // n * n).view(np.int64)


@lru_cache(maxsize=TABLES_KEPT)
def _shuffled(length: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places by index and indices by place.

    A Feistel network needs halves of some size to mix: over nine values it reaches half of the orders, with unequal chances.
    """
    places = np.argsort(random_numbers(key, 0, length))
    return places, np.argsort(places)


@lru_cache(maxsize=TABLES_KEPT)
def _feistel_tables(length: int, key: int) -> np.ndarray:
    side = math.isqrt(length - 1) + 1
    tables = np.empty((ROUNDS, side), np.uint32)
    for number, table in enumerate(tables):
        upper_bits = random_numbers(key, number * side, side) >> np.uint64(24)
        table[:] = (upper_bits * np.uint64(side)) >> np.uint64(40)  # the share of 2^40, times the side
    tables.setflags(write=False)
    return tables


def _feistel_network(indices: np.ndarray, *, tables: np.ndarray, inverse: bool) -> np.ndarray:
    """Map int64 numbers by a Feistel network whose round functions are tables of random numbers from the key.

    An index is `left · side + right` with `side` the root of the length, rounded up. A round adds to one half, modulo `side`, the table's
    entry for the other half (a generalised Feistel network: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The walk is
    short, as the square is hardly larger than the length. A table is as random as a function can be and costs one look-up.
    """
    side = tables.shape[1]
    left = indices // side
    halves = left.astype(np.uint32), (indices - left * side).astype(np.uint32)
    index = np.empty(indices.size, np.intp)
    total, wrapped = np.empty(indices.size, np.uint32), np.empty(indices.size, np.uint32)
    for number in reversed(range(ROUNDS)) if inverse else range(ROUNDS):
        changed, other = halves[number % 2], halves[1 - number % 2]
        np.copyto(index, other)
        tables[number].take(index, out=total, mode="clip")  # never clips (the mode that checks would buffer `out`)
        # Modulo the side: an unsigned number that leaves the range wraps around and is the larger of the two
        if inverse:
            np.subtract(changed, total, out=total)
            np.add(total, np.uint32(side), out=wrapped)
        else:
            np.add(changed, total, out=total)
            np.subtract(total, np.uint32(side), out=wrapped)
        np.minimum(total, wrapped, out=changed)
    return halves[0].astype(np.int64) * side + halves[1]


def map_levanter(numbers: np.ndarray, length: int, seed: int, *, inverse: bool) -> np.ndarray:
    """Map int64 numbers by Levanter's `FeistelPermutation`, the order of Marin's later runs, index by index.

    Five rounds of `F(right) = (right · 2654435761 + key) mod 2^right_bits` over halves of `bits // 2` and `bits - bits // 2` bits. The
    halves change places but the mask stays the right half's, so that with an odd number of bits the walk is over `2^(bits + 1)` values.
    Levanter draws the seed from the component's JAX key as `jax.random.randint(key, (), 0, 2**30)`.
    """
    bits = (length - 1).bit_length()
    right_bits = bits - bits // 2
    mask = (1 << right_bits) - 1
    generator = np.random.Generator(np.random.PCG64(seed))
    keys: list[int] = generator.integers(0, 1 << right_bits, size=LEVANTER_ROUNDS, dtype=np.uint64).tolist()

    def network(values: np.ndarray) -> np.ndarray:
        left, right = values >> right_bits, values & mask
        for key in reversed(keys) if inverse else keys:
            if inverse:
                left, right = right, left
            mixed = right * LEVANTER_MULTIPLIER
            mixed += key
            mixed &= mask
            left ^= mixed
            if not inverse:
                left, right = right, left
        return (left << right_bits) | right

    return _walk(network, numbers, length)


def _walk(network: Callable[[np.ndarray], np.ndarray], indices: np.ndarray, length: int) -> np.ndarray:
    """Map indices in chunks, and map results beyond the length again until they are inside."""
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
    """Return numbers `start` to `start + count - 1` of SplitMix64's sequence (Steele et al., 2014): 64 bits each, all different."""
    x = np.arange(start + 1, start + count + 1, dtype=np.uint64) * GOLDEN_GAMMA + np.uint64(key)  # wraps around on purpose
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
