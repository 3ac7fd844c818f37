"""What a word is compared by: a hash, whose lowest bits mark signs and numbers."""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from phasewise.validations.evidence.leakage.compiled import compiled, inlined
from phasewise.validations.evidence.leakage.words.escapes import HASH_FACTOR, HASH_START
from phasewise.validations.evidence.leakage.words.fold import DIGIT, LETTER

MIX = np.uint64(0x9E3779B97F4A7C15)
SIGN_MARK, NUMBER_MARK = np.uint64(1), np.uint64(2)
_TEN, _ZERO = np.uint64(10), np.uint64(ord("0"))


def letters_hash(letters: str) -> int:
    """A word's hash before it is finished: of plain lower-case letters, as they come out of the folding."""
    value = int(HASH_START)
    for letter in letters:
        value = ((value ^ ord(letter)) * int(HASH_FACTOR)) % 2**64
    return value


def word_hash(letters: str) -> int:
    """The hash of a word of two plain lower-case letters or more."""
    value = letters_hash(letters)
    value = ((value ^ (value >> 29)) * int(MIX)) % 2**64
    return ((value ^ (value >> 32)) >> 2) << 2


@inlined()
def finish(value, kind, letters):
    """A well mixed hash; its lowest bits say whether the word is a sign, and a number."""
    value = (value ^ (value >> np.uint64(29))) * MIX
    value = value ^ (value >> np.uint64(32))
    value = (value >> np.uint64(2)) << np.uint64(2)
    if kind == DIGIT:
        return value | SIGN_MARK | NUMBER_MARK
    return value | SIGN_MARK if kind == LETTER and letters == 1 else value


@compiled()
def number_hash(number):
    """The hash of a number as its digits have it; it is below 10^18."""
    rest, scale = np.uint64(number), np.uint64(1)
    while rest // scale >= _TEN:
        scale *= _TEN
    value = HASH_START
    while scale > np.uint64(0):
        value = (value ^ (_ZERO + (rest // scale) % _TEN)) * HASH_FACTOR
        scale //= _TEN
    return finish(value, DIGIT, 1)
