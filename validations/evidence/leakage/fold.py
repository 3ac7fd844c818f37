"""Folding of letters: a table from code point to the code that texts are compared by, and escapes and tags, which are undone.

Compatibility forms, case, accents and look-alikes of other scripts become plain lower-case letters, decimal digits become ASCII digits.
Marks and invisible characters are dropped. All other characters separate words. Look-alikes come from Unicode's confusables (Unicode
Technical Standard 39), and from the names of small capitals and letters with strokes.
"""

import json
import re
import unicodedata
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from phasewise.validations.evidence.leakage.jit_cache import compiled, inlined

# pyright: basic
# Compiled functions take their types from their arguments.

MAX_TAG_CHARACTERS, MAX_CALCULATION_CHARACTERS = 300, 120
HASH_START, HASH_FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
LESS, BRACKET, BACKSLASH, NOTHING, SOFT_HYPHEN = ord("<"), ord("["), ord("\\"), ord(" "), 0xAD
_AMPERSAND, _GREATER, _PERCENT = ord("&"), ord(">"), ord("%")
TAGS = (
    "a abbr article aside b big blockquote body br caption center cite code dd del details dfn div dl dt em figcaption figure font footer "
    "h1 h2 h3 h4 h5 h6 header hr i img ins kbd label legend li main mark ol option p pre q s samp section select small span strike strong "
    "sub summary sup table tbody td tfoot th thead tr tt u ul var wbr"
)
FORUM_TAGS = "b i u s quote code url img size color list center font"
TABLE_SIZE = 0x20000
SEPARATOR, DROPPED = 0, 1
LETTER, DIGIT, WORD = 1, 2, 3  # kinds of code point: words are runs of letters or of digits. An ideograph or kana is a word
KIND_SHIFT, MAX_EXPANSION = 24, 8
UNASSIGNED = {"Cn", "Co", "Cs"}
BYTE_LEVEL_SPACES = {0x100 + ord(" "), 0x100 + ord("\n")}
"""Ġ and Ċ, which encode white space in byte-level vocabularies and in texts made of their entries. As letters, only Maltese uses them."""
FIRST_IDEOGRAPH, END_OF_IDEOGRAPHS = 0x3400, 0xA000
_LATIN_NAME = re.compile(r"LATIN (?:(?:SMALL|CAPITAL) LETTER|LETTER SMALL CAPITAL) (?:DOTLESS )?([A-Z])(?: WITH .*)?$")
_AMBIGUOUS = {"\u04cf": "l", "\u04c0": "i", "\u0406": "i", "\u0399": "i", "\u03c7": "x"}
"""Palochkas, capital I and iota resemble both i and l, and the confusables lack chi: each is read as the letter that it replaces."""
_OWN_WORDS = re.compile("[\u2e80-\u2fff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@compiled()
def next_point(text, at):
    """Return the code point at a position with its escapes undone, and the next position."""
    byte = text[at]
    if byte < 0x80:
        if byte == BACKSLASH:
            return _unescape_backslash(text, at)
        if byte == _AMPERSAND:
            return _unescape_entity(text, at)
        if byte == _PERCENT:
            return _unescape_percent(text, at)
        return np.int64(byte), at + 1
    point, size = np.int64(byte), len(text)
    length = 2 if 0xC2 <= point < 0xE0 else 3 if 0xE0 <= point < 0xF0 else 4 if 0xF0 <= point < 0xF5 else 0
    if length == 0 or at + length > size:
        return np.int64(NOTHING), at + 1
    point &= 0x7F >> length
    for offset in range(1, length):
        following = np.int64(text[at + offset])
        if following & 0xC0 != 0x80:
            return np.int64(NOTHING), at + 1
        point = (point << 6) | (following & 0x3F)
    return point, at + length


@compiled()
def _unescape_percent(text, at):
    """Decode the bytes of one character, such as `%20` or `%E2%80%99`, else a percent sign."""
    first, after = _hexadecimal(text, at + 1, 2)
    if first < 0:
        return np.int64(_PERCENT), at + 1
    if first < 0x80:
        return first, after
    length = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 0
    point = first & (0x7F >> length)
    for _ in range(1, length):
        following = np.int64(-1)
        if after < len(text) and text[after] == _PERCENT:
            following, after = _hexadecimal(text, after + 1, 2)
        if following & 0xC0 != 0x80:
            length = 0
            break
        point = (point << 6) | (following & 0x3F)
    return (point, after) if length else (np.int64(NOTHING), at + 3)


@compiled()
def _unescape_backslash(text, at):
    r"""Decode `\uXXXX` or `\xXX` after any number of backslashes, else one backslash."""
    size = len(text)
    while at < size and text[at] == BACKSLASH:
        at += 1
    if at >= size:
        return np.int64(BACKSLASH), at
    letter = text[at]
    if letter == 117:  # u
        point, after = _hexadecimal(text, at + 1, 4)
        if point < 0:
            return np.int64(BACKSLASH), at
        if 0xD800 <= point < 0xDC00:
            low_at = after
            while low_at < size and text[low_at] == BACKSLASH:
                low_at += 1
            if low_at < size and text[low_at] == 117:
                low, low_after = _hexadecimal(text, low_at + 1, 4)
                if 0xDC00 <= low < 0xE000:
                    return np.int64(0x10000) + ((point - 0xD800) << 10) + (low - 0xDC00), low_after
        return point, after
    if letter == 120:  # x
        point, after = _hexadecimal(text, at + 1, 2)
        if point >= 0:
            return point, after
    return np.int64(BACKSLASH), at


@compiled()
def _hexadecimal(text, at, digits):
    """Return the number of hexadecimal digits and the next position, or -1."""
    if at + digits > len(text):
        return np.int64(-1), at
    value = np.int64(0)
    for offset in range(digits):
        digit = _hexadecimal_digit(text[at + offset])
        if digit < 0:
            return np.int64(-1), at
        value = value * 16 + digit
    return value, at + digits


@inlined()
def _hexadecimal_digit(byte):
    if 48 <= byte <= 57:
        return np.int64(byte) - 48
    lower = np.int64(byte) | 32
    return lower - 87 if 97 <= lower <= 102 else np.int64(-1)


@compiled()
def _unescape_entity(text, at):
    """Decode `&lt;`, `&#39;`, `&#x27;` or `&eacute;`, also if escaped again (`&amp;lt;`). Any other entity separates words."""
    size, plain = len(text), at + 1
    body = plain
    while body + 4 <= size and text[body] == 97 and text[body + 1] == 109 and text[body + 2] == 112 and text[body + 3] == 59:  # amp;
        body += 4
    if body < size and text[body] == 35:  # #
        value, end, base = np.int64(0), body + 1, 10
        if end < size and (text[end] | 32) == 120:
            end, base = end + 1, 16
        first_digit = end
        while end < size and end - first_digit < 7:
            digit = _hexadecimal_digit(text[end])
            if digit < 0 or digit >= base:
                break
            value = value * base + digit
            end += 1
        if end == first_digit or end >= size or text[end] != 59 or value > 0x10FFFF:
            return np.int64(_AMPERSAND), body
        return value, end + 1
    end = body
    while end < size and end - body < 10 and (97 <= (text[end] | 32) <= 122 or 48 <= text[end] <= 57):
        end += 1
    if end < body + 2 or end >= size or text[end] != 59:
        return np.int64(NOTHING), body
    length, first, second = end - body, text[body], text[body + 1] if end > body + 1 else 0
    if length == 3 and first == 115 and second == 104:  # shy
        return np.int64(SOFT_HYPHEN), end + 1
    if length == 2 and second == 116 and (first == 108 or first == 103):  # lt, gt
        return np.int64(LESS if first == 108 else _GREATER), end + 1
    if length >= 4:
        # `acute`, `grave`, `circ`, `uml`, `tilde`, `cedil`, `ring`, `slash` and `caron` by their first two letters
        pair = np.int64(text[body + 1]) << 8 | np.int64(text[body + 2])
        known = (0x6163, 0x6772, 0x6369, 0x756D, 0x7469, 0x6365, 0x7269, 0x736C, 0x6361)
        if pair in known and (3 if pair == 0x756D else 4) <= length - 1 <= 5:
            return np.int64(first), end + 1
    return np.int64(NOTHING), end + 1


@compiled()
def _is_among(name, sorted_names):
    low, high = 0, len(sorted_names)
    while low < high:
        middle = (low + high) // 2
        if sorted_names[middle] < name:
            low = middle + 1
        else:
            high = middle
    return low < len(sorted_names) and sorted_names[low] == name


@compiled()
def skip_tag(text, at, tag_hashes):
    """Return the position after a calculator or formatting tag whose `<` ends at `at`, or `at` without a tag."""
    if at >= len(text):
        return at
    point, after = next_point(text, at)
    if point == LESS:  # `<<16-7=9>>`: digits, operators and at least one equals sign
        has_equals = False
        for _ in range(MAX_CALCULATION_CHARACTERS):
            if after >= len(text):
                return at
            point, after = next_point(text, after)
            if point == _GREATER:
                if not has_equals or after >= len(text):
                    return at
                point, after = next_point(text, after)
                return after if point == _GREATER else at
            is_operator = point in (32, 36, 37, 40, 41, 42, 43, 44, 45, 46, 47, 61, 120)  # space $ % ( ) * + , - . / = x
            if not is_operator and not 48 <= point <= 57:
                return at
            has_equals = has_equals or point == 61
        return at
    if point == 47:  # a closing tag
        if after >= len(text):
            return at
        point, after = next_point(text, after)
    name, letters = HASH_START, 0
    while (97 <= (point | 32) <= 122 or 48 <= point <= 57) and letters < 11 and after < len(text):
        name = (name ^ np.uint64(point | 32 if point > 57 else point)) * HASH_FACTOR
        letters += 1
        point, after = next_point(text, after)
    if letters == 0 or not _is_among(name, tag_hashes):
        return at
    for _ in range(MAX_TAG_CHARACTERS):
        if point == _GREATER:
            return after
        if point == LESS or after >= len(text):
            return at
        point, after = next_point(text, after)
    return at


@compiled()
def skip_forum_tag(text, at, tag_hashes):
    """Return the position after `[b]`, `[/quote]` or `[url=…]` whose bracket ends at `at`, or `at` without a tag."""
    size, place = len(text), at
    if place < size and text[place] == 47:
        place += 1
    name = HASH_START
    while place < size and 97 <= (text[place] | 32) <= 122 and place - at < 8:
        name = (name ^ np.uint64(text[place] | 32)) * HASH_FACTOR
        place += 1
    if not _is_among(name, tag_hashes) or place >= size or (text[place] != 93 and text[place] != 61):
        return at
    for _ in range(MAX_CALCULATION_CHARACTERS):
        if place >= size or text[place] == 10:
            return at
        if text[place] == 93:
            return place + 1
        place += 1
    return at


@compiled()
def skip_thousands(text, at, after):
    r"""Return the position after a `,`, `{,}` or `,\!` with exactly three digits behind it, or `at` for any other separator.

    `after`: the position after the comma or brace, which may be escaped.
    """
    size, place = len(text), after
    has_brace = text[at] == 123
    if has_brace and (place >= size or text[place] != 44):
        return at
    place += has_brace
    if has_brace:
        if place >= size or text[place] != 125:
            return at
        place += 1
    elif place < size and text[place] == BACKSLASH:
        while place < size and text[place] == BACKSLASH:  # several where they were escaped
            place += 1
        if place >= size or text[place] != 33:
            return at
        place += 1
    if place + 3 > size:
        return at
    for offset in range(3):
        if not 48 <= text[place + offset] <= 57:
            return at
    return at if place + 3 < size and 48 <= text[place + 3] <= 57 else place


class Fold(NamedTuple):
    """Table of codes."""

    codes: Int32[np.ndarray, "131072"]
    """Code point → 0 (separates words), 1 (dropped), kind << 24 | code point, or minus the row in `expansions`."""
    expansions: Int32[np.ndarray, "e 8"]  # codes of code points that become several


@cache
def fold_table() -> Fold:
    """Build the table from the Unicode data of this Python."""
    codes = np.zeros(TABLE_SIZE, np.int32)
    expansions = [np.zeros(MAX_EXPANSION, np.int32)]
    confusables = json.loads((resources.files("confusable_homoglyphs") / "confusables.json").read_text(encoding="utf-8"))
    looks_like: dict[str, str] = dict(_AMBIGUOUS)  # non-ASCII letter → ASCII letter in lower case
    for point in range(0x80, TABLE_SIZE):
        character = chr(point)
        if unicodedata.category(character)[0] == "L" and (match := _LATIN_NAME.match(unicodedata.name(character, ""))):
            looks_like[character] = match[1].lower()
    letters = {
        character: [other["c"] for other in others]
        for character, others in confusables.items()
        if len(character) == 1 and unicodedata.category(character)[0] == "L" and not unicodedata.normalize("NFKD", character).isascii()
    }
    for character, others in letters.items():
        if plain := sorted(other for other in others if len(other) == 1 and other.isascii() and other.isalpha()):
            looks_like.setdefault(character, plain[0].lower())
    for character, others in letters.items():  # a look-alike of a look-alike: the small в of Cyrillic is a small capital B
        if character not in looks_like and (through := sorted(looks_like[other] for other in others if other in looks_like)):
            looks_like[character] = through[0]
    for point in range(TABLE_SIZE):
        if unicodedata.category(chr(point)) in UNASSIGNED or point in BYTE_LEVEL_SPACES:
            continue
        if FIRST_IDEOGRAPH <= point < END_OF_IDEOGRAPHS and chr(point) not in looks_like:
            codes[point] = WORD << KIND_SHIFT | point
            continue
        character = chr(point)
        if "\uac00" <= character <= "\ud7a3":  # a Hangul syllable is one letter
            codes[point] = LETTER << KIND_SHIFT | point
            continue
        if character in looks_like:
            spelled = looks_like[character]
        else:
            decomposed = unicodedata.normalize("NFKD", character).casefold()
            spelled = "".join(looks_like.get(part, part) for part in unicodedata.normalize("NFKD", decomposed))
        folded: list[int] = []
        for part in spelled:
            category = unicodedata.category(part)
            if category == "Nd":
                folded.append(DIGIT << KIND_SHIFT | ord(str(unicodedata.decimal(part))))
            elif category not in ("Mn", "Me", "Cf"):
                kind = WORD if _OWN_WORDS.match(part) else LETTER if category[0] == "L" or category == "Mc" else SEPARATOR
                folded.append(kind << KIND_SHIFT | ord(part) if kind else SEPARATOR)
        if len(folded) <= 1:
            codes[point] = folded[0] if folded else DROPPED
            continue
        row = np.full(MAX_EXPANSION, DROPPED, np.int32)
        row[: len(folded[:MAX_EXPANSION])] = folded[:MAX_EXPANSION]
        codes[point] = -len(expansions)
        expansions.append(row)
    return Fold(codes, np.array(expansions, np.int32))
