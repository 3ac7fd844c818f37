"""Conversion of tokens to text. For byte-level tokenizers, a token's bytes do not depend on its neighbours, which makes it fast."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from phasewise.validations.evidence.leakage.jit_cache import compiled

Detokenize = Callable[[np.ndarray], bytes]
SPACE = b" "


def build_detokenizer(tokenizer: Tokenizer) -> Detokenize:
    """Build a function from token ids to UTF-8 text that equals `Tokenizer.decode` byte for byte on valid UTF-8.

    A special token between words, as in a chat template, becomes a space. Special tokens at both ends are removed.
    """
    definition = json.loads(tokenizer.to_str())
    decoder: dict[str, Any] = definition.get("decoder") or {"type": "none"}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    is_special = np.zeros(max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1, bool)
    is_special[[number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]] = True

    is_byte_level = [step["type"] for step in steps] == ["ByteLevel"]
    # Byte-level vocabularies (GPT-2) write a byte as itself if it is printable, else as a character from 256.
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    byte_of = {chr(byte): byte for byte in printing} | {chr(256 + number): byte for number, byte in enumerate(others)}
    added = {token["id"]: SPACE if token["special"] else token["content"].encode() for token in definition.get("added_tokens", ())}
    written = {id: token for token, id in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [
        added[id] if id in added else bytes(byte_of[character] for character in written.get(id, ""))
        for id in (range(max(written, default=-1) + 1) if is_byte_level else ())
    ]
    lengths = np.array([len(token) for token in tokens], np.int64)
    starts, pool = np.cumsum(lengths) - lengths, np.frombuffer(b"".join(tokens), np.uint8)

    def detokenize(ids: np.ndarray) -> bytes:
        words = np.flatnonzero(~is_special[ids])
        ids = np.asarray(ids[words[0] : words[-1] + 1] if len(words) else ids[:0], np.int64)
        if not is_byte_level:
            runs = np.split(ids, np.flatnonzero(is_special[ids]))
            return SPACE.join(tokenizer.decode(run[~is_special[run]].tolist()).encode() for run in runs)
        text = np.empty(int(lengths[ids].sum()), np.uint8)
        fill(ids, starts, lengths, pool, text)
        return text.tobytes()

    return detokenize


@compiled()
def fill(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, pool: np.ndarray, text: np.ndarray) -> None:
    """Fill a text with the bytes of tokens: those of token `t` begin at `starts[t]` of the pool."""
    at = 0
    for token in ids:
        start = starts[token]
        for offset in range(lengths[token]):
            text[at + offset] = pool[start + offset]
        at += lengths[token]
