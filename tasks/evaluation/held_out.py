"""The held-out documents of every component, as texts and as tokens, and what is measured of them per component."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens, shared_special_tokens, special_tokens, special_tokens_of
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.cache import TokenCache

MAX_HELD_OUT_CHARACTERS = 1_000_000
"""Characters of a component from which the benchmarks are made: many times what their items need."""


class HeldOutDocument(NamedTuple):
    """A document that nothing trains on."""

    id: str
    text: str


class HeldOutTokens(NamedTuple):
    """A component's documents as token ids, without begin and end tokens, the UTF-8 bytes of their text, and the ids of these tokens."""

    documents: list[np.ndarray]
    text_bytes: int
    special: SpecialTokens


@dataclass(frozen=True)
class BitsPerByte:
    """Bits per UTF-8 byte of held-out text, by component. `macro` is their unweighted mean."""

    components: dict[str, float]

    @property
    def macro(self) -> float:
        """Every component counts the same, however many bytes it has."""
        return float(np.mean(list(self.components.values())))


def read_held_out_tokens(caches: Mapping[str, Path], tokenizer: Tokenizer, *, max_tokens: int | None = None) -> dict[str, HeldOutTokens]:
    """Tokens of each component's held-out cache: whole documents, in order, until they have `max_tokens` tokens; all where it is None.

    Raises:
        DataError: no cache is named, one is not a held-out cache, has no text, or was made with other begin and end tokens.
    """
    if not caches:
        raise DataError("bits per byte need the held-out cache of at least one component, found none. Prepare the data first.")
    whole = {component: _read(component, folder) for component, folder in sorted(caches.items())}
    shared_special_tokens({"the tokenizer": special_tokens(tokenizer), **{name: held.special for name, held in whole.items()}})
    return whole if max_tokens is None else {name: _first(held, tokenizer, max_tokens) for name, held in whole.items()}


def read_held_out_texts(caches: Mapping[str, Path], tokenizer: Tokenizer) -> dict[str, list[HeldOutDocument]]:
    """Documents of each component's held-out cache, decoded. Byte-level tokens give the text back exactly.

    These are the first documents of each component, until they have `MAX_HELD_OUT_CHARACTERS`; the one that goes beyond ends there. Caches
        of any size are read in bounded memory and time.
    """
    return {component: _beginning(folder, tokenizer) for component, folder in sorted(caches.items())}


def first_characters(texts: Iterable[str], max_characters: int) -> Iterator[str]:
    """The first texts, until they have `max_characters`. The one that goes beyond ends at a space before that."""
    left = max_characters
    for text in texts:
        if len(text) > left:
            yield text[: left + 1].rpartition(" ")[0]
            return
        yield text
        left -= len(text)


def _beginning(folder: Path, tokenizer: Tokenizer) -> list[HeldOutDocument]:
    """A cache's first documents. Of one no more is decoded than can be used: a character has at most four tokens."""
    documents, again = tee(TokenCache.open(folder).documents())
    most_tokens = 4 * (MAX_HELD_OUT_CHARACTERS + 2)
    decoded = (tokenizer.decode(document.tokens[:most_tokens].tolist(), skip_special_tokens=True) for document in again)
    texts = first_characters(decoded, MAX_HELD_OUT_CHARACTERS)
    return [HeldOutDocument(document.id, text) for text, document in zip(texts, documents, strict=False)]


def _read(component: str, folder: Path) -> HeldOutTokens:
    cache = TokenCache.open(folder)
    if cache.manifest.split != "held_out":
        raise DataError(f"{folder} must be a held-out cache of {component}, found the split '{cache.manifest.split}'.")
    if not cache.manifest.text_bytes:
        raise DataError(f"{component} must have held-out text, found 0 bytes in {folder}. Give it more source files.")
    special = special_tokens_of(cache.manifest)
    documents = [document.tokens[1:-1].astype(np.int32) for document in cache.documents()]  # a chat template may write the end token, too
    return HeldOutTokens(documents, cache.manifest.text_bytes, special)


def _first(held: HeldOutTokens, tokenizer: Tokenizer, max_tokens: int) -> HeldOutTokens:
    """The first documents, up to and with the one that reaches `max_tokens`. Their bytes are counted as the manifest counts those of all:
    with the special tokens that a chat template wrote, which are predicted, too.
    """
    ends = np.cumsum([len(document) for document in held.documents])
    documents = held.documents[: int(np.searchsorted(ends, max_tokens)) + 1]
    texts = tokenizer.decode_batch([document.tolist() for document in documents], skip_special_tokens=False)
    return HeldOutTokens(documents, sum(len(text.encode()) for text in texts), held.special)
