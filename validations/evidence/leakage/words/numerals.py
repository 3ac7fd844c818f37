"""Numbers that are written as words are numbers: `twenty-five` is `25`, `three hundred and four` is `304`, whatever is between.

What names no number by itself stays a word: `hundred`, `second`, `dozen`, `half`. `one` is the number, though it often is not meant as one:
items and texts are read alike.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np
from jaxtyping import Int64, UInt64

from phasewise.validations.evidence.leakage.compiled import compiled, inlined
from phasewise.validations.evidence.leakage.words.hashes import number_hash, word_hash

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
HUNDRED, THOUSAND, MILLION, AND, NONE = 100, 1_000, 1_000_000, -1, -2
NUMERALS = {
    **{word: value for value, word in enumerate(_UNITS)},
    **{word: 10 * ten for ten, word in enumerate(_TENS, start=2)},
    "fourty": 40,
    "hundred": HUNDRED,
    "thousand": THOUSAND,
    "million": MILLION,
    "and": AND,
}
"""What each word adds or multiplies by; `fourty` is a common misspelling."""
_SLOTS = 1024


def numeral_table() -> tuple[UInt64[np.ndarray, "1024"], Int64[np.ndarray, "1024"]]:
    """Hashes of the words, each at the first free place from its own on, and what they are worth; `NONE` where a place is free."""
    hashes, values = np.zeros(_SLOTS, np.uint64), np.full(_SLOTS, NONE, np.int64)
    for word, value in NUMERALS.items():
        at = (word_hash(word) >> 2) % _SLOTS
        while values[at] != NONE:
            at = (at + 1) % _SLOTS
        hashes[at], values[at] = word_hash(word), value
    return hashes, values


@inlined()
def _value(word, table_hashes, table_values):
    """What a word is worth; `NONE` where it is no numeral."""
    at = np.int64(word >> np.uint64(2)) & (_SLOTS - 1)
    while table_values[at] != NONE and table_hashes[at] != word:
        at = (at + 1) & (_SLOTS - 1)
    return table_values[at]


@compiled()
def join_numerals(hashes, starts, ends, count, table_hashes, table_values):
    """Put one number in the place of each run of words that name it. Gives how many words there are then."""
    kept = place = 0
    while place < count:
        value = _value(hashes[place], table_hashes, table_values)
        if value < 0 or value >= HUNDRED:
            hashes[kept], starts[kept], ends[kept] = hashes[place], starts[place], ends[place]
            kept, place = kept + 1, place + 1
            continue
        first, last, total, below, scale = place, place, np.int64(0), value, np.int64(MILLION * THOUSAND)  # read so far: total + below
        place += 1
        while place < count:
            value, length = _value(hashes[place], table_hashes, table_values), 1
            if value == AND and place + 1 < count and _takes_more(total, below):
                value, length = _value(hashes[place + 1], table_hashes, table_values), 2
                if value >= HUNDRED:  # "two hundred and thousand"
                    break
            if value == HUNDRED and 0 < below < HUNDRED:
                below *= HUNDRED
            elif value >= THOUSAND and below > 0 and value < scale:
                total, below, scale = total + below * value, np.int64(0), value
            elif 0 < value < HUNDRED and (_takes_more(total, below) or (value < 10 and _takes_unit(below))):
                below += value
            else:
                break
            place, last = place + length, place + length - 1
        hashes[kept], starts[kept], ends[kept] = number_hash(total + below), starts[first], ends[last]
        kept += 1
    return kept


@inlined()
def _takes_more(total, below):
    """Whether a number below a hundred may follow: behind `hundred`, `thousand` or `million`."""
    return below % HUNDRED == 0 and (below > 0 or total > 0)


@inlined()
def _takes_unit(below):
    """Whether a number below ten may follow: behind `twenty` to `ninety`."""
    return below % HUNDRED >= 20 and below % 10 == 0
