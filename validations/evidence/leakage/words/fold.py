"""One spelling for every letter: a table from code point to what it is compared as.

Compatibility forms, case, accents and look-alikes of other scripts are folded to plain lower-case letters, decimal digits to ASCII
digits; marks and invisible characters are dropped; everything else separates words. Look-alikes are those of Unicode's confusables
(Unicode Technical Standard 39), and small capitals and letters with strokes by their names.
"""

import json
import re
import unicodedata
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

TABLE_SIZE = 0x20000
SEPARATOR, DROPPED = 0, 1
LETTER, DIGIT, WORD = 1, 2, 3
"""Kinds of code point: words are runs of letters or of digits; an ideograph or kana is a word of its own."""
KIND_SHIFT = 24
MAX_EXPANSION = 8
UNASSIGNED = {"Cn", "Co", "Cs"}
BYTE_LEVEL_SPACES = {0x100 + ord(" "), 0x100 + ord("\n")}
"""Ġ and Ċ, which stand for white space in the vocabularies of byte-level tokenizers and in texts made of their entries. As letters, only
Maltese has them.
"""
FIRST_IDEOGRAPH, END_OF_IDEOGRAPHS = 0x3400, 0xA000
_LATIN_NAME = re.compile(r"LATIN (?:(?:SMALL|CAPITAL) LETTER|LETTER SMALL CAPITAL) (?:DOTLESS )?([A-Z])(?: WITH .*)?$")
_AMBIGUOUS = {"\u04cf": "l", "\u04c0": "i", "\u0406": "i", "\u0399": "i", "\u03c7": "x"}
"""Palochkas, capital I and iota look like i, l and 1 alike, chi is left out of the confusables: read as the letter they stand in for."""
_OWN_WORDS = re.compile("[\u2e80-\u2fff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class Fold(NamedTuple):
    """The table.

    Attributes:
        codes: code point → 0 (separates words), 1 (dropped), kind << 24 | code point, or minus the row of `expansions`.
        expansions: what one code point becomes several of; zeros after their end separate nothing.
    """

    codes: Int32[np.ndarray, "131072"]
    expansions: Int32[np.ndarray, "e 8"]


@cache
def fold_table() -> Fold:
    """The table, made once a process from the Unicode data of this Python."""
    codes = np.zeros(TABLE_SIZE, np.int32)
    expansions = [np.zeros(MAX_EXPANSION, np.int32)]
    looks_like = _look_alikes()
    for point in range(TABLE_SIZE):
        if unicodedata.category(chr(point)) in UNASSIGNED or point in BYTE_LEVEL_SPACES:
            continue
        if FIRST_IDEOGRAPH <= point < END_OF_IDEOGRAPHS and chr(point) not in looks_like:
            codes[point] = WORD << KIND_SHIFT | point
            continue
        folded = _folded(chr(point), looks_like)
        if len(folded) <= 1:
            codes[point] = folded[0] if folded else DROPPED
            continue
        row = np.full(MAX_EXPANSION, DROPPED, np.int32)
        row[: len(folded[:MAX_EXPANSION])] = folded[:MAX_EXPANSION]
        codes[point] = -len(expansions)
        expansions.append(row)
    return Fold(codes, np.array(expansions, np.int32))


def _folded(character: str, looks_like: dict[str, str]) -> list[int]:
    """What a character is compared as; empty where it is dropped."""
    if "\uac00" <= character <= "\ud7a3":  # a Hangul syllable is one letter
        return [LETTER << KIND_SHIFT | ord(character)]
    if character in looks_like:
        spelled = looks_like[character]
    else:
        decomposed = unicodedata.normalize("NFKD", character).casefold()
        spelled = "".join(looks_like.get(part, part) for part in unicodedata.normalize("NFKD", decomposed))
    codes = [_code(part) for part in spelled]
    return [code for code in codes if code != DROPPED]


def _code(character: str) -> int:
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return DROPPED
    if category == "Nd":
        return DIGIT << KIND_SHIFT | ord(str(unicodedata.decimal(character)))
    if _OWN_WORDS.match(character):
        return WORD << KIND_SHIFT | ord(character)
    return LETTER << KIND_SHIFT | ord(character) if category[0] == "L" or category == "Mc" else SEPARATOR


def _look_alikes() -> dict[str, str]:
    """Non-ASCII letter → the ASCII letter that it looks like, in lower case."""
    confusables = json.loads((resources.files("confusable_homoglyphs") / "confusables.json").read_text(encoding="utf-8"))
    found: dict[str, str] = dict(_AMBIGUOUS)
    for point in range(0x80, TABLE_SIZE):
        character = chr(point)
        if unicodedata.category(character)[0] == "L" and (match := _LATIN_NAME.match(unicodedata.name(character, ""))):
            found[character] = match[1].lower()
    letters = {
        character: [other["c"] for other in others]
        for character, others in confusables.items()
        if len(character) == 1 and unicodedata.category(character)[0] == "L" and not unicodedata.normalize("NFKD", character).isascii()
    }
    for character, others in letters.items():
        if plain := sorted(other for other in others if len(other) == 1 and other.isascii() and other.isalpha()):
            found.setdefault(character, plain[0].lower())
    for character, others in letters.items():  # a look-alike of a look-alike: the small в of Cyrillic is a small capital B
        if character not in found and (through := sorted(found[other] for other in others if other in found)):
            found[character] = through[0]
    return found
