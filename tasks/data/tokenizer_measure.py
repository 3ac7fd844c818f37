"""What a tokenizer makes of texts: bytes and words a token, by subset and by script, and whether every text comes back."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from phasewise.trainer.base.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

DigitGroups = Literal["single digits", "threes from the right", "threes from the left", "no rule"]
MAX_LENGTH, NUMBERS_OF_A_LENGTH = 18, 20
EXAMPLES = ("1234567", "3.14159", "1,000,000", "x = 2026")
SPACES = (1, 2, 4, 8, 16)
SPACES_AND_ENDS = {"two line ends": "\n\n", "four line ends": "\n\n\n\n", "two tabs": "\t\t", "a line end of two characters": "\r\n"}
DIGITS, MARKS, WHITE_SPACE = "digits", "punctuation and symbols", "white space"
BATCH_DOCUMENTS = 64


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
    between = {f"{count} {'space' if count == 1 else 'spaces'}": " " * count for count in SPACES} | SPACES_AND_ENDS
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


class Fit(NamedTuple):
    """A tokenizer on some text.

    Attributes:
        words: what is between white space. Scripts that write none between words have few, so their fertility says nothing.
        not_back: documents of which the tokens do not decode to the text.
    """

    documents: int
    text_bytes: int
    characters: int
    words: int
    tokens: int
    not_back: int

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token: the more, the fewer tokens the same text has."""
        return self.text_bytes / self.tokens

    @property
    def characters_per_token(self) -> float:
        """Unicode characters a token."""
        return self.characters / self.tokens

    @property
    def fertility(self) -> float | None:
        """Tokens a word; None where there is no word."""
        return self.tokens / self.words if self.words else None


class ScriptFit(NamedTuple):
    """The tokens of one script, and the bytes of text that they cover."""

    text_bytes: int
    tokens: int

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token."""
        return self.text_bytes / self.tokens


class Measured(NamedTuple):
    """A tokenizer on all subsets."""

    subsets: dict[str, Fit]
    scripts: dict[str, ScriptFit]


def measure(tokenizer: "Tokenizer", subsets: Mapping[str, Iterable[str]]) -> Measured:
    """Tokenize every text as one document, without begin and end tokens.

    A token counts for the script of its first character that is no space, with all bytes that it covers: so scripts add up to the whole.
    Where several tokens are parts of one character, the first has its bytes.

    Args:
        subsets: name → texts.

    Raises:
        DataError: it makes no token of a subset, or none of its texts has a character.
    """
    tokens_of, bytes_of = Counter[str](), Counter[str]()
    fits: dict[str, Fit] = {}
    for name, texts in subsets.items():
        counts = Counter[str]()
        for text, encoding in _encoded(tokenizer, texts):
            back = tokenizer.decode(encoding.ids, skip_special_tokens=False)
            counts.update(
                documents=1, text_bytes=len(text.encode()), characters=len(text), words=len(text.split()), tokens=len(encoding.ids),
                not_back=int(back != text),
            )  # fmt: skip
            covered = 0
            script = WHITE_SPACE
            for start, stop in encoding.offsets:
                piece = text[start:stop].lstrip() or text[start:stop]
                script = script_of(piece[0]) if piece else script
                tokens_of[script] += 1
                bytes_of[script] += len(text[covered : max(covered, stop)].encode())
                covered = max(covered, stop)
            if encoding.offsets:
                bytes_of[script] += len(text[covered:].encode())
        if not counts["tokens"]:
            raise DataError(f"{name} must have text that the tokenizer makes tokens of, found none in {counts['documents']} documents.")
        fits[name] = Fit(**{field: counts[field] for field in Fit._fields})
    return Measured(fits, {name: ScriptFit(bytes_of[name], count) for name, count in tokens_of.most_common()})


@cache
def script_of(character: str) -> str:
    """A letter's script in the words of Unicode's names (`latin`, `cjk`, `hangul`); else digits, white space, punctuation and symbols."""
    if character.isspace():
        return WHITE_SPACE
    category = unicodedata.category(character)
    if category.startswith("N"):
        return DIGITS
    if not category.startswith(("L", "M")):
        return MARKS
    return unicodedata.name(character, "unnamed").split()[0].lower()


def _encoded(tokenizer: "Tokenizer", texts: Iterable[str]) -> Iterator[tuple[str, "Encoding"]]:
    waiting = iter(texts)
    while batch := list(islice(waiting, BATCH_DOCUMENTS)):
        yield from zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True)
