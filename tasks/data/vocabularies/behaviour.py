"""How a tokenizer treats digits and white space, found by asking it."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DigitGroups = Literal["single digits", "threes from the right", "threes from the left", "no rule"]
MAX_LENGTH, NUMBERS_OF_A_LENGTH = 18, 20
EXAMPLES = ("1234567", "3.14159", "1,000,000", "x = 2026")
SPACES = (1, 2, 4, 8, 16)
WHITE_SPACE = {"two line ends": "\n\n", "four line ends": "\n\n\n\n", "two tabs": "\t\t", "a line end of two characters": "\r\n"}


def digit_groups(tokenizer: "Tokenizer") -> DigitGroups:
    """How runs of digits are cut: by random numbers of one to 18 digits, the same in every call.

    Every token is within a group of three, counted from one side, or it is not. A group may be several tokens where the vocabulary has no
    entry for it. Where both sides hold, there is no token of more than a digit, or no number tells them apart.
    """
    generator = random.Random(0)
    numbers = [
        "".join(generator.choices("0123456789", k=length)) for length in range(1, MAX_LENGTH + 1) for _ in range(NUMBERS_OF_A_LENGTH)
    ]
    pieces = [(number, pieces_of(tokenizer, number)) for number in numbers]
    if all(len(piece) == 1 for _, found in pieces for piece in found):
        return "single digits"
    if all(_is_within_threes(found, len(number) % 3) for number, found in pieces):
        return "threes from the right"
    if all(_is_within_threes(found, 0) for _, found in pieces):
        return "threes from the left"
    return "no rule"


def pieces_of(tokenizer: "Tokenizer", text: str) -> list[str]:
    """The text that each token stands for; a token that is a later part of a character has none."""
    offsets: Sequence[tuple[int, int]] = tokenizer.encode(text, add_special_tokens=False).offsets
    pieces: list[str] = []
    covered = 0
    for _, stop in offsets:
        pieces.append(text[covered : max(covered, stop)])
        covered = max(covered, stop)
    return pieces


def digit_examples(tokenizer: "Tokenizer") -> dict[str, list[str]]:
    """Text → its tokens."""
    return {text: pieces_of(tokenizer, text) for text in EXAMPLES}


def white_space_tokens(tokenizer: "Tokenizer") -> dict[str, int]:
    """How many tokens white space adds to a line of code: `x` and `y` with it between them, less `x` and `y` alone.

    0 where the white space goes into the token of the word after it.
    """
    between = {f"{count} {'space' if count == 1 else 'spaces'}": " " * count for count in SPACES} | WHITE_SPACE
    alone = len(pieces_of(tokenizer, "x")) + len(pieces_of(tokenizer, "y"))
    return {name: len(pieces_of(tokenizer, f"x{space}y")) - alone for name, space in between.items()}


def _is_within_threes(pieces: Sequence[str], first: int) -> bool:
    """Whether no token reaches over the end of the first group, of `first` digits, or of a group of three after it."""
    at = 0
    for piece in pieces:
        stop = at + len(piece)
        if (stop - 1 - first) // 3 != (at - first) // 3:
            return False
        at = stop
    return True
