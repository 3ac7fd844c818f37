"""Light edits of about every tenth word, by a careless copy or a careful cheat."""

import re
from collections.abc import Callable
from random import Random

from experiments.leakage_recall.word_lists import WORD_LISTS

ONE_IN = 10
OTHER_WORDS = WORD_LISTS["other words"]
UNITS, TENS = WORD_LISTS["numbers to nineteen"], WORD_LISTS["tens"]
SMALL_NUMERAL = re.compile(r"<<[^<>]*>>|(?<![\w\\.,/])\d{1,2}(?![\w/]|[.,]\d)")
"""A number below 100 that stands for itself, or a calculator tag, which stays as it is."""
Edit = Callable[[list[str], int, Random], None]


def edit_words(text: str, rng: Random, edit: Edit) -> str:
    pieces = re.split(r"(\s+)", text)
    numbers = [number for number, piece in enumerate(pieces) if piece and not piece.isspace()]
    for number in rng.sample(numbers, min(len(numbers), max(1, round(len(numbers) / ONE_IN)))):
        edit(pieces, number, rng)
    return "".join(pieces)


def drop(pieces: list[str], number: int, _rng: Random) -> None:
    """Leave the word out, with the space after it."""
    pieces[number] = ""
    if number + 1 < len(pieces) and pieces[number + 1] == " ":
        pieces[number + 1] = ""


def replace(pieces: list[str], number: int, rng: Random) -> None:
    pieces[number] = rng.choice(OTHER_WORDS)


def insert(pieces: list[str], number: int, rng: Random) -> None:
    pieces[number] = f"{rng.choice(OTHER_WORDS)} {pieces[number]}"


def swap(pieces: list[str], number: int, _rng: Random) -> None:
    other = number + 2 if number + 2 < len(pieces) and pieces[number + 2] else number - 2
    if other >= 0:
        pieces[number], pieces[other] = pieces[other], pieces[number]


def mistype(pieces: list[str], number: int, rng: Random) -> None:
    """One character swapped with the next, dropped or doubled."""
    word = pieces[number]
    place = rng.randrange(max(1, len(word) - 1))
    first, rest = word[:place], word[place:]
    pieces[number] = first + rng.choice((rest[1:2] + rest[:1] + rest[2:], rest[1:], rest[:1] + rest))


def any_edit(pieces: list[str], number: int, rng: Random) -> None:
    rng.choice((drop, replace, insert, swap, mistype))(pieces, number, rng)


def change_thousands(text: str, _rng: Random) -> str:
    """1000 becomes 1,000, and 1,000 becomes 1000."""
    return re.sub(r"\d{1,3}(?:,\d{3})+(?!\d)|(?<![\d.])\d{4,}", lambda found: _other_thousands(found.group()), text)


def numerals_as_words(text: str, _rng: Random) -> str:
    """Words for the numbers below 100: three, twenty-five. Not in calculator tags, fractions and decimals."""
    return SMALL_NUMERAL.sub(lambda found: found.group() if found.group().startswith("<<") else number_words(int(found.group())), text)


def number_words(number: int) -> str:
    if number < len(UNITS):
        return UNITS[number]
    return TENS[number // 10 - 2] + (f"-{UNITS[number % 10]}" if number % 10 else "")


def _other_thousands(number: str) -> str:
    return number.replace(",", "") if "," in number else f"{int(number):,}"


def delete_punctuation(text: str, _rng: Random) -> str:
    return re.sub(r"[^\w\s]|_", "", text)


def blank_punctuation(text: str, _rng: Random) -> str:
    """Every character that is neither letter, digit nor space, replaced by a space."""
    return re.sub(r"[^\w\s]|_", " ", text)


EDITS: dict[str, Edit] = {
    "one word in ten dropped": drop,
    "one word in ten replaced": replace,
    "one word in ten inserted": insert,
    "one word in ten swapped with its neighbour": swap,
    "one word in ten mistyped": mistype,
    "one word in ten edited in any way": any_edit,
}
