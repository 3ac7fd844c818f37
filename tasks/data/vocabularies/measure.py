"""What a tokenizer makes of texts: bytes and words a token, by subset and by script, and whether every text comes back."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from phasewise.trainer.base.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

DIGITS, MARKS, WHITE_SPACE = "digits", "punctuation and symbols", "white space"
BATCH_DOCUMENTS = 64


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
            _count_scripts(text, encoding, tokens_of, bytes_of)
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
    """Text by text, a bounded batch at a time."""
    waiting = iter(texts)
    while batch := list(islice(waiting, BATCH_DOCUMENTS)):
        yield from zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True)


def _count_scripts(text: str, encoding: "Encoding", tokens_of: Counter[str], bytes_of: Counter[str]) -> None:
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
