"""The words by which texts are compared: the same for a text in whatever dress, as compiled loops over its UTF-8 bytes.

Undone on the way, in texts and in items alike: JSON's and HTML's escapes (however often they were applied), HTML's formatting tags,
GSM8K's calculator tags `<<16-7=9>>`, commas between thousands, numbers written as words, and everything that `fold` folds.
A backslash takes the letters n, t and r after it with it: so a line break that was escaped, and LaTeX that was not, give the same words.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8, UInt64

from phasewise.validations.evidence.leakage.compiled import compiled, inlined
from phasewise.validations.evidence.leakage.words.escapes import (
    BACKSLASH,
    BRACKET,
    FORUM_TAGS,
    HASH_FACTOR,
    HASH_START,
    LESS,
    NOTHING,
    TAGS,
    next_point,
    skip_forum_tag,
    skip_tag,
    skip_thousands,
)  # fmt: skip
from phasewise.validations.evidence.leakage.words.fold import (
    DIGIT,
    DROPPED,
    KIND_SHIFT,
    LETTER,
    MAX_EXPANSION,
    SEPARATOR,
    TABLE_SIZE,
    WORD,
    fold_table,
)
from phasewise.validations.evidence.leakage.words.hashes import NUMBER_MARK, SIGN_MARK, finish, letters_hash
from phasewise.validations.evidence.leakage.words.numerals import join_numerals, numeral_table

FULLWIDTH_BACKSLASH = 0xFF3C
LETTER_N, LETTER_T, LETTER_R = (LETTER << KIND_SHIFT | ord(letter) for letter in "ntr")
MAX_WORDS_PER_BYTE = 2
"""One character of three bytes, the square kilometre of Japanese, is six words."""


class Words(NamedTuple):
    """Words of a text in order: hash, and the bytes that it was read from. The hash's lowest bits mark signs and numbers."""

    hashes: UInt64[np.ndarray, "w"]
    starts: Int32[np.ndarray, "w"]
    ends: Int32[np.ndarray, "w"]


def split_words(text: bytes | UInt8[np.ndarray, "n"], room: Words | None = None) -> Words:
    """The words of a UTF-8 text, of less than 2 GiB. What isn't UTF-8 separates words.

    Args:
        room: from `room_for`; the words are written there, and are lost when it is used again.
    """
    content = np.frombuffer(text, np.uint8) if isinstance(text, bytes) else text
    hashes, starts, ends = room or room_for(len(content))
    codes, expansions = fold_table()
    count = _split(content, codes, expansions, _TAG_HASHES, _FORUM_TAG_HASHES, hashes, starts, ends)
    count = join_numerals(hashes, starts, ends, count, *_NUMERALS)
    words = Words(hashes[:count], starts[:count], ends[:count])
    return words if room else Words(*(column.copy() for column in words))


def room_for(num_bytes: int) -> Words:
    """Arrays that the words of any text of so many bytes fit into."""
    hashes, starts, ends = (np.empty(MAX_WORDS_PER_BYTE * num_bytes, kind) for kind in (np.uint64, np.int32, np.int32))
    return Words(hashes, starts, ends)


def is_sign(hashes: UInt64[np.ndarray, "w"]) -> np.ndarray:
    """Which words are numbers or single letters, as in any formula."""
    return (hashes & SIGN_MARK).astype(bool)


def is_number(hashes: UInt64[np.ndarray, "w"]) -> np.ndarray:
    """Which words are numbers."""
    return (hashes & NUMBER_MARK).astype(bool)


_TAG_HASHES, _FORUM_TAG_HASHES = (np.array(sorted(map(letters_hash, names.split())), np.uint64) for names in (TAGS, FORUM_TAGS))
_NUMERALS = numeral_table()


@compiled()
def _split(text, codes, expansions, tag_hashes, forum_tag_hashes, hashes, starts, ends):  # compiled for its arguments' types
    size = len(text)
    count, at = np.int64(0), np.int64(0)
    kind, value, first, last, letters = 0, HASH_START, 0, 0, 0  # of the word being read; kind 0 is none
    escapes = False  # whether a backslash comes before
    while at < size:
        begin = at
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
        code = codes[point] if point < TABLE_SIZE else _code_beyond(point)
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
        while kind == LETTER and at < size and text[at] < 0x80 and codes[text[at]] >> KIND_SHIFT == LETTER:
            value = (value ^ np.uint64(codes[text[at]] & 0xFFFFFF)) * HASH_FACTOR
            at += 1
            last = at
            letters += 1
    if kind != 0:
        hashes[count], starts[count], ends[count] = finish(value, kind, letters), first, last
        count += 1
    return count


@inlined()
def _code_beyond(point):
    """Beyond the table: ideographs are words, tags are dropped, the rest separates."""
    if 0x20000 <= point < 0x40000:
        return (WORD << KIND_SHIFT) | point
    return DROPPED if 0xE0000 <= point < 0xE1000 else SEPARATOR
