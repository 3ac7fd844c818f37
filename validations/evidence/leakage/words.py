"""Words of a text for comparison, read from its UTF-8 bytes by compiled loops.

The loops undo, in texts and in items: JSON and HTML escapes at any depth, HTML formatting tags, calculator tags `<<16-7=9>>` of GSM8K,
commas between thousands, numbers written as words, and the differences that `fold` folds. A backslash removes a following n, t or r, so
that an escaped line break and unescaped LaTeX give the same words.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt8, UInt64

from phasewise.validations.evidence.leakage.fold import (
    BACKSLASH,
    BRACKET,
    DIGIT,
    DROPPED,
    FORUM_TAGS,
    HASH_FACTOR,
    HASH_START,
    KIND_SHIFT,
    LESS,
    LETTER,
    MAX_EXPANSION,
    NOTHING,
    SEPARATOR,
    TABLE_SIZE,
    TAGS,
    WORD,
    fold_table,
    next_point,
    skip_forum_tag,
    skip_tag,
    skip_thousands,
)  # fmt: skip
from phasewise.validations.evidence.leakage.jit_cache import compiled, inlined

# pyright: basic
# Compiled functions take their types from their arguments.


MIX = np.uint64(0x9E3779B97F4A7C15)
SIGN_MARK, NUMBER_MARK = np.uint64(1), np.uint64(2)
_TEN, _ZERO = np.uint64(10), np.uint64(ord("0"))


def letters_hash(letters: str) -> int:
    """Return the unfinished hash of folded lower-case letters."""
    value = int(HASH_START)
    for letter in letters:
        value = ((value ^ ord(letter)) * int(HASH_FACTOR)) % 2**64
    return value


def word_hash(letters: str) -> int:
    """Return the hash of a word of at least two lower-case letters."""
    value = letters_hash(letters)
    value = ((value ^ (value >> 29)) * int(MIX)) % 2**64
    return ((value ^ (value >> 32)) >> 2) << 2


@inlined()
def finish(value, kind, letters):
    """Mix the hash. Its lowest bits mark signs (numbers and single letters) and numbers."""
    value = (value ^ (value >> np.uint64(29))) * MIX
    value = value ^ (value >> np.uint64(32))
    value = (value >> np.uint64(2)) << np.uint64(2)
    if kind == DIGIT:
        return value | SIGN_MARK | NUMBER_MARK
    return value | SIGN_MARK if kind == LETTER and letters == 1 else value


@compiled()
def number_hash(number):
    """Return the hash of a number below 10^18 from its digits."""
    rest, scale = np.uint64(number), np.uint64(1)
    while rest // scale >= _TEN:
        scale *= _TEN
    value = HASH_START
    while scale > np.uint64(0):
        value = (value ^ (_ZERO + (rest // scale) % _TEN)) * HASH_FACTOR
        scale //= _TEN
    return finish(value, DIGIT, 1)


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
"""Word → number to add or to multiply by. `fourty` is a common misspelling."""
_SLOTS = 1024


def numeral_table() -> tuple[UInt64[np.ndarray, "1024"], Int64[np.ndarray, "1024"]]:
    """Build an open-addressing table from word hash to number, `NONE` at free slots."""
    hashes, values = np.zeros(_SLOTS, np.uint64), np.full(_SLOTS, NONE, np.int64)
    for word, value in NUMERALS.items():
        at = (word_hash(word) >> 2) % _SLOTS
        while values[at] != NONE:
            at = (at + 1) % _SLOTS
        hashes[at], values[at] = word_hash(word), value
    return hashes, values


@inlined()
def _value(word, table_hashes, table_values):
    at = np.int64(word >> np.uint64(2)) & (_SLOTS - 1)
    while table_values[at] != NONE and table_hashes[at] != word:
        at = (at + 1) & (_SLOTS - 1)
    return table_values[at]


@compiled()
def join_numerals(hashes, starts, ends, count, table_hashes, table_values):
    """Replace each run of number words by one number. Return the new number of words."""
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
            takes_more = below % HUNDRED == 0 and (below > 0 or total > 0)  # a number below a hundred may follow
            if value == AND and place + 1 < count and takes_more:
                value, length = _value(hashes[place + 1], table_hashes, table_values), 2
                if value >= HUNDRED:  # "two hundred and thousand"
                    break
            if value == HUNDRED and 0 < below < HUNDRED:
                below *= HUNDRED
            elif value >= THOUSAND and below > 0 and value < scale:
                total, below, scale = total + below * value, np.int64(0), value
            elif 0 < value < HUNDRED and (takes_more or (value < 10 and below % HUNDRED >= 20 and below % 10 == 0)):
                below += value
            else:
                break
            place, last = place + length, place + length - 1
        hashes[kept], starts[kept], ends[kept] = number_hash(total + below), starts[first], ends[last]
        kept += 1
    return kept


FULLWIDTH_BACKSLASH = 0xFF3C
LETTER_N, LETTER_T, LETTER_R = (LETTER << KIND_SHIFT | ord(letter) for letter in "ntr")
MAX_WORDS_PER_BYTE = 2  # the square kilometre of Japanese has three bytes and six words


class Words(NamedTuple):
    """Words in text order: hashes, whose lowest bits mark signs and numbers, and the byte range of each word."""

    hashes: UInt64[np.ndarray, "w"]
    starts: Int32[np.ndarray, "w"]
    ends: Int32[np.ndarray, "w"]


def split_words(text: bytes | UInt8[np.ndarray, "n"], room: Words | None = None) -> Words:
    """Split a UTF-8 text of less than 2 GiB into words, in arrays of `room_for` if given. Invalid UTF-8 separates words."""
    content = np.frombuffer(text, np.uint8) if isinstance(text, bytes) else text
    hashes, starts, ends = room or room_for(len(content))
    codes, expansions = fold_table()
    count = _split(content, codes, expansions, _TAG_HASHES, _FORUM_TAG_HASHES, hashes, starts, ends)
    count = join_numerals(hashes, starts, ends, count, *_NUMERALS)
    words = Words(hashes[:count], starts[:count], ends[:count])
    return words if room else Words(*(column.copy() for column in words))


def room_for(num_bytes: int) -> Words:
    """Allocate arrays for the words of any text of this size."""
    hashes, starts, ends = (np.empty(MAX_WORDS_PER_BYTE * num_bytes, kind) for kind in (np.uint64, np.int32, np.int32))
    return Words(hashes, starts, ends)


def is_sign(hashes: UInt64[np.ndarray, "w"]) -> np.ndarray:
    """Mark numbers and single letters, as in any formula."""
    return (hashes & SIGN_MARK).astype(bool)


def is_number(hashes: UInt64[np.ndarray, "w"]) -> np.ndarray:
    """Mark numbers."""
    return (hashes & NUMBER_MARK).astype(bool)


_TAG_HASHES, _FORUM_TAG_HASHES = (np.array(sorted(map(letters_hash, names.split())), np.uint64) for names in (TAGS, FORUM_TAGS))
_NUMERALS = numeral_table()
_SPACE, _COMMA = 4, 5  # beside the kinds of ASCII letters and digits: separators, and those that may stand between thousands
_PLAIN = np.zeros(256, np.uint8)  # 0: not ASCII, or may begin an escape or a tag
_PLAIN[:128] = [LETTER if chr(byte).isalpha() else DIGIT if chr(byte).isdigit() else _SPACE for byte in range(128)]
_PLAIN[list(b",{")] = _COMMA
_PLAIN[list(b"\\&%<[")] = 0


@compiled()
def _split(text, codes, expansions, tag_hashes, forum_tag_hashes, hashes, starts, ends):  # compiled for its arguments' types
    size = len(text)
    count, at = np.int64(0), np.int64(0)
    kind, value, first, last, letters = 0, HASH_START, 0, 0, 0  # of the word being read; kind 0 is none
    escapes = False  # whether a backslash comes before
    while at < size:
        begin, byte = at, text[at]
        plain = _PLAIN[byte]
        if plain != 0 and not escapes and (plain != _COMMA or kind != DIGIT):
            if kind != 0 and plain != kind:
                hashes[count], starts[count], ends[count] = finish(value, kind, letters), first, last
                count += 1
                kind = 0
            if plain > DIGIT:
                at += 1
                continue
            if kind == 0:
                kind, value, first, letters = np.int64(plain), HASH_START, at, 0
            while plain == kind:
                value = (value ^ np.uint64(byte | 0x20)) * HASH_FACTOR
                at += 1
                byte = text[at] if at < size else np.uint8(BACKSLASH)
                plain = _PLAIN[byte]
            letters += at - begin
            last = at
            continue
        point, at = next_point(text, at)
        if point == LESS:
            after = skip_tag(text, at, tag_hashes)
            if after > at:
                at, point = after, NOTHING
        elif point == BRACKET:
            at = skip_forum_tag(text, at, forum_tag_hashes)
        elif kind == DIGIT and (point == 44 or point == 123):  # a comma, or one in braces, as LaTeX has it
            after = skip_thousands(text, begin, at)
            if after > begin:
                at = after
                continue
        if point < TABLE_SIZE:
            code = np.int64(codes[point])
        elif 0x20000 <= point < 0x40000:  # an ideograph is a word
            code = np.int64((WORD << KIND_SHIFT) | point)
        else:
            code = np.int64(DROPPED if 0xE0000 <= point < 0xE1000 else SEPARATOR)
        if point in (BACKSLASH, FULLWIDTH_BACKSLASH):
            escapes = True
        elif escapes and point != NOTHING:
            if code in (LETTER_N, LETTER_T, LETTER_R):
                code = SEPARATOR
            escapes = code == DROPPED
        parts = 1 if code >= 0 else MAX_EXPANSION
        for part in range(parts):
            piece = code if code >= 0 else expansions[-code, part]
            if piece == DROPPED:
                continue
            new_kind = piece >> KIND_SHIFT
            if kind != 0 and (new_kind != kind or kind == WORD):
                hashes[count], starts[count], ends[count] = finish(value, kind, letters), first, last
                count += 1
                kind = 0
            if new_kind != 0:
                if kind == 0:
                    kind, value, first, letters = new_kind, HASH_START, begin, 0
                value = (value ^ np.uint64(piece & 0xFFFFFF)) * HASH_FACTOR
                last = at
                letters += 1
    if kind != 0:
        hashes[count], starts[count], ends[count] = finish(value, kind, letters), first, last
        count += 1
    return count
