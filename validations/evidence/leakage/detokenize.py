"""Tokens back to text, fast where the tokenizer is a byte-level one: a token's bytes never depend on its neighbours."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from phasewise.validations.evidence.leakage.jit_cache import compiled

Detokenize = Callable[[np.ndarray], bytes]
SPACE = b" "


def build_detokenizer(tokenizer: Tokenizer) -> Detokenize:
    """A function from token ids to UTF-8 text: `Tokenizer.decode`, byte for byte, where text is valid UTF-8.

    A special token between words, as a chat template puts it, is a space: it parts them.
    """
    definition = json.loads(tokenizer.to_str())
    if _is_byte_level(definition.get("decoder")):
        return _by_table(tokenizer, definition)
    # What is between special tokens, one piece after the other
    is_special = _special(tokenizer)

    def detokenize(ids: np.ndarray) -> bytes:
        ids = _within(ids, is_special)
        runs = np.split(ids, np.flatnonzero(is_special[ids]))
        return SPACE.join(tokenizer.decode(run[~is_special[run]].tolist()).encode() for run in runs)

    return detokenize


def _special(tokenizer: Tokenizer) -> np.ndarray:
    """Of each id whether it is a special token's."""
    found = np.zeros(max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1, bool)
    found[[number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]] = True
    return found


def _within(ids: np.ndarray, is_special: np.ndarray) -> np.ndarray:
    """Without special tokens at the ends, such as those that begin and end a document."""
    words = np.flatnonzero(~is_special[ids])
    return ids[words[0] : words[-1] + 1] if len(words) else ids[:0]


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    return decoder is not None and (
        decoder["type"] == "ByteLevel" or (decoder["type"] == "Sequence" and [d["type"] for d in decoder["decoders"]] == ["ByteLevel"])
    )


def _by_table(tokenizer: Tokenizer, definition: dict[str, Any]) -> Detokenize:
    """Each token's bytes one after the other in one array; tokens that are added to the vocabulary are there as they are written."""
    byte_of = {character: byte for byte, character in _byte_alphabet().items()}
    added = {token["id"]: SPACE if token["special"] else token["content"].encode() for token in definition.get("added_tokens", ())}
    written = {id: token for token, id in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [
        added[id] if id in added else bytes(byte_of[character] for character in written.get(id, ""))
        for id in range(max(written, default=-1) + 1)
    ]
    lengths = np.array([len(token) for token in tokens], np.int64)
    starts, pool = np.cumsum(lengths) - lengths, np.frombuffer(b"".join(tokens), np.uint8)

    is_special = _special(tokenizer)

    def detokenize(ids: np.ndarray) -> bytes:
        ids = _within(np.asarray(ids, np.int64), is_special)
        text = np.empty(int(lengths[ids].sum()), np.uint8)
        _fill(ids, starts, lengths, pool, text)
        return text.tobytes()

    return detokenize


def _byte_alphabet() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2): itself where it prints, else one from 256 on."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    return {byte: chr(byte) for byte in printing} | {byte: chr(256 + number) for number, byte in enumerate(others)}


@compiled()
def _fill(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, pool: np.ndarray, text: np.ndarray) -> None:
    at = 0
    for token in ids:
        start = starts[token]
        for offset in range(lengths[token]):
            text[at + offset] = pool[start + offset]
        at += lengths[token]
