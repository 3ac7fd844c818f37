"""Stateless permutations of `range(length)`: the place of any index without the places of the others."""

import hashlib
import math
from typing import Literal

import numpy as np

PERMUTATION_VERSION = 1
FEISTEL_ROUNDS = 8
Kind = Literal["linear", "feistel"]


def derive_key(*parts: str | int) -> int:
    """A 64-bit key from its parts; different parts give independent keys."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()[:8], "little")


def permute(kind: Kind, indices: np.ndarray, *, length: int, key: int) -> np.ndarray:
    """Where each index goes. A bijection on `range(length)` for every key; `length` is below 2^40.

    Args:
        kind: `linear` is (a · index + b) mod length with a prime to the length (the Marin paper's Equation 1), exact at every length;
            `feistel` is a keyed network whose rounds mix all bits, walked until it lands inside.
        indices: integers in `[0, length)`, any shape.
    """
    flat = np.atleast_1d(np.asarray(indices, np.uint64))
    places = _linear(flat, length, key) if kind == "linear" else _feistel(flat, length, key)
    return places.reshape(np.shape(indices))


def _linear(indices: np.ndarray, length: int, key: int) -> np.ndarray:
    """Products of two numbers below 2^40 do not fit 64 bits: multiply by the upper and the lower 20 bits in turn."""
    multiplier = 1 + derive_key("multiplier", key) % max(length - 1, 1)
    while math.gcd(multiplier, length) != 1:
        multiplier = 1 + multiplier % length
    a, n, low_bits = np.uint64(multiplier), np.uint64(length), np.uint64(20)
    upper = (a * (indices >> low_bits)) % n
    lower = a * (indices & np.uint64((1 << 20) - 1)) % n
    offset = np.uint64(derive_key("offset", key) % length)
    return ((upper << low_bits) % n + lower + offset) % n


def _feistel(indices: np.ndarray, length: int, key: int) -> np.ndarray:
    """An alternating Feistel network over the next power of two; values beyond the length are sent through again."""
    bits = max(2, (length - 1).bit_length())
    keys = [np.uint64(derive_key("round", number, key)) for number in range(FEISTEL_ROUNDS)]
    result = _network(indices, bits, keys)
    outside = np.flatnonzero(result.ravel() >= length)
    while outside.size:
        result.flat[outside] = _network(result.flat[outside], bits, keys)
        outside = outside[result.flat[outside] >= length]
    return result


def _network(values: np.ndarray, bits: int, keys: list[np.uint64]) -> np.ndarray:
    """One pass: the halves have `bits // 2` and the remaining bits, and change places every round."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = values >> np.uint64(right_bits), values & np.uint64((1 << right_bits) - 1)
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) >> np.uint64(64 - left_bits))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every output bit depends on every input bit (Steele et al., 2014). Wraps around on purpose."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
