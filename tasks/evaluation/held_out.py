"""Held-out documents of every component as texts and tokens, and bits per byte by component."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import OUR_TOKENS, SpecialTokens, shared_special_tokens, special_tokens
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.cache import TokenCache

MAX_HELD_OUT_CHARACTERS = 1_000_000  # characters of a component for benchmark items, many times more than the items need


class HeldOutDocument(NamedTuple):
    """A document outside the training data."""

    id: str
    text: str


class HeldOutTokens(NamedTuple):
    """Token ids of a component's documents without BOS and EOS tokens, the UTF-8 bytes of the text, and the special tokens."""

    documents: list[np.ndarray]
    text_bytes: int
    special: SpecialTokens


@dataclass(frozen=True)
class BitsPerByte:
    """Bits per UTF-8 byte of held-out text by component. `macro` weights the components equally."""

    components: dict[str, float]

    @property
    def macro(self) -> float:
        """Unweighted mean."""
        return float(np.mean(list(self.components.values())))


def read_held_out_tokens(caches: Mapping[str, Path], tokenizer: Tokenizer, *, max_tokens: int | None = None) -> dict[str, HeldOutTokens]:
    """Read whole documents of each held-out cache in order, until they have `max_tokens` tokens. None reads all."""
    if not caches:
        raise DataError("bits per byte need the held-out cache of at least one component, found none. Prepare the data first.")
    found: dict[str, HeldOutTokens] = {}
    for component, folder in sorted(caches.items()):
        cache = TokenCache.open(folder)
        if cache.manifest.split != "held_out":
            raise DataError(f"{folder} must be a held-out cache of {component}, found the split '{cache.manifest.split}'.")
        if not cache.manifest.text_bytes:
            raise DataError(f"{component} must have held-out text, found 0 bytes in {folder}. Give it more source files.")
        # Drop only the outer tokens: a chat template may write the end token inside a document
        special = SpecialTokens(cache.manifest.begin_of_text, cache.manifest.end_of_text)
        documents = [special.inner(document.tokens).astype(np.int32) for document in cache.documents()]
        found[component] = HeldOutTokens(documents, cache.manifest.text_bytes, special)
    special_of = {name: held.special for name, held in found.items()}
    if all(tokenizer.token_to_id(token) is not None for token in OUR_TOKENS if token):
        special_of = {"the tokenizer": special_tokens(tokenizer), **special_of}
    shared_special_tokens(special_of)
    if max_tokens is not None:
        for component, held in found.items():
            ends = np.cumsum([len(document) for document in held.documents])
            documents = held.documents[: int(np.searchsorted(ends, max_tokens)) + 1]
            # The manifest's bytes include the special tokens of a chat template, which are predicted: count them here as well
            texts = tokenizer.decode_batch([document.tolist() for document in documents], skip_special_tokens=False)
            found[component] = HeldOutTokens(documents, sum(len(text.encode()) for text in texts), held.special)
    return found


def read_held_out_texts(caches: Mapping[str, Path], tokenizer: Tokenizer) -> dict[str, list[HeldOutDocument]]:
    """Decode the first documents of each held-out cache, `MAX_HELD_OUT_CHARACTERS` of each component. Byte-level tokens are lossless."""
    found: dict[str, list[HeldOutDocument]] = {}
    for component, folder in sorted(caches.items()):
        documents = found[component] = list[HeldOutDocument]()
        most_tokens = 4 * (MAX_HELD_OUT_CHARACTERS + 2)  # a character has at most four tokens
        left = MAX_HELD_OUT_CHARACTERS
        for document in TokenCache.open(folder).documents():
            text = tokenizer.decode(document.tokens[:most_tokens].tolist(), skip_special_tokens=True)
            if len(text) > left:  # the last text ends at a space
                documents.append(HeldOutDocument(document.id, text[: left + 1].rpartition(" ")[0]))
                break
            documents.append(HeldOutDocument(document.id, text))
            left -= len(text)
    return found
