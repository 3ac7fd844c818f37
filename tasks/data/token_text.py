"""From token ids back to the bytes of the text, token by token, for tokenizers that keep every byte (byte-level BPE)."""

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.trainer.base.json_reader import parse_json
from phasewise.trainer.data.manifest import Manifest

FIRST_SPARE = 256
"""Bytes that print as nothing are written as the characters from here on."""


class TokenText:
    """Decodes ids. The tokens that begin and end a document are no part of its text."""

    def __init__(self, path: Path, manifest: Manifest):
        self._tokenizer = load_tokenizer(path)
        self._around = {manifest.begin_of_text, manifest.end_of_text}
        written: dict[str, Any] = parse_json(path.read_bytes())
        self.is_exact = (written.get("decoder") or {}).get("type") == "ByteLevel" and written.get("normalizer") is None

    def excerpt(self, tokens: Iterable[int]) -> str:
        """The text of some tokens; half a character at an end is a replacement sign."""
        ids = [token for token in map(int, tokens) if token not in self._around]
        if self.is_exact:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def find(self, wanted: bytes, tokens: list[int]) -> list[tuple[int, int]]:
        """Where a document holds these bytes: as tokens `[first, stop)` of it, each place once. Only for an exact tokenizer."""
        pieces = [b"" if token in self._around else self._bytes[token] for token in tokens]
        text = b"".join(pieces)
        at = text.find(wanted)
        if at < 0:
            return []
        ends = list(accumulate(map(len, pieces)))
        places: list[tuple[int, int]] = []
        while at >= 0:
            first = next(number for number, end in enumerate(ends) if end > at)
            places.append((first, 1 + next(number for number, end in enumerate(ends) if end >= at + len(wanted))))
            at = text.find(wanted, at + 1)
        return places

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each id; those of added tokens are their names."""
        byte_of, added = byte_characters(), self._tokenizer.get_added_tokens_decoder()
        table: list[bytes] = []
        for number in range(self._tokenizer.get_vocab_size()):
            token = self._tokenizer.id_to_token(number)
            if token is None:
                table.append(b"")
            elif number in added:
                table.append(token.encode())
            else:
                table.append(bytes(byte_of[character] for character in token))
        return table


def byte_characters() -> dict[str, int]:
    """The character that a byte-level tokenizer writes for each byte, as GPT-2 chose them (Radford et al., 2019): byte by character."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(FIRST_SPARE + number): byte for number, byte in enumerate(others)}}
