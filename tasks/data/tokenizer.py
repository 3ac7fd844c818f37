"""Byte-level BPE tokenizers of a recipe: loading, checks, special tokens, training, and decoding."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phasewise.trainer.base.errors import DataError, PhasewiseError
from phasewise.trainer.base.identity import (
    NotAsWritten,
    code_digest,
    digest_of_bytes,
    digest_of_file,
    digest_of_json,
    read_sealed,
    write_sealed,
)
from phasewise.trainer.base.storage import as_path, parse_json, write_atomically
from phasewise.trainer.data.manifest import Manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

FIRST_SPARE = 256  # first character that stands for an unprintable byte
TOKENIZER_VERSION = f"byte-bpe-1+{code_digest(sys.modules[__name__])}+tokenizers-{version('tokenizers')}"
BEGIN_OF_TEXT, END_OF_TEXT = "<|begin_of_text|>", "<|end_of_text|>"
MAX_BYTES_PER_COMPONENT = 200_000
DIGEST_NAME, DOCUMENT_TOKENS_NAME = "tokenizer.sha256", "document_tokens.json"


class TokenText:
    """Decode the tokens of a cache, without BOS and EOS. `is_exact`: whether tokens are bytes of the text."""

    def __init__(self, path: Path, manifest: Manifest):
        self._tokenizer = load_tokenizer(path)
        self._around = {manifest.begin_of_text, manifest.end_of_text}
        written: dict[str, Any] = parse_json(path.read_bytes())
        self.is_exact = (written.get("decoder") or {}).get("type") == "ByteLevel" and written.get("normalizer") is None

    def excerpt(self, tokens: Iterable[int]) -> str:
        """The text of some tokens. An incomplete character at an end becomes a replacement character."""
        ids = [token for token in map(int, tokens) if token not in self._around]
        if self.is_exact:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def find(self, wanted: bytes, tokens: list[int]) -> list[tuple[int, int]]:
        """The occurrences of bytes in a document as tokens `[first, stop)`. Only for exact tokenizers."""
        pieces = [b"" if token in self._around else self._bytes[token] for token in tokens]
        text = b"".join(pieces)
        ends = list(accumulate(map(len, pieces)))
        places: list[tuple[int, int]] = []
        start = text.find(wanted)
        while start >= 0:
            first = next(number for number, end in enumerate(ends) if end > start)
            places.append((first, 1 + next(number for number, end in enumerate(ends) if end >= start + len(wanted))))
            start = text.find(wanted, start + 1)
        return places

    @cached_property
    def _bytes(self) -> list[bytes]:
        # The characters of byte-level BPE, as in GPT-2 (Radford et al., 2019)
        plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
        others = [byte for byte in range(256) if byte not in plain]
        byte_of = {chr(byte): byte for byte in plain} | {chr(FIRST_SPARE + number): byte for number, byte in enumerate(others)}
        added = self._tokenizer.get_added_tokens_decoder()
        table: list[bytes] = []
        for number in range(self._tokenizer.get_vocab_size()):
            token = self._tokenizer.id_to_token(number) or ""
            table.append(token.encode() if number in added else bytes(byte_of[character] for character in token))
        return table


class DocumentTokens(NamedTuple):
    """The tokens at the begin and the end of each document. None: documents have no such token, as at their begin in GPT-2 and Qwen."""

    begin: str | None = BEGIN_OF_TEXT
    end: str | None = END_OF_TEXT

    def in_words(self) -> str:
        """The tokens as text."""
        return " and ".join(token for token in self if token is not None)


OUR_TOKENS = DocumentTokens()


class SpecialTokens(NamedTuple):
    """Ids of `DocumentTokens`: 128,000 and 128,001 in Llama 3, None and 50,256 in GPT-2, and 0 and 1 in our own tokenizers."""

    begin: int | None
    end: int | None

    @property
    def before(self) -> int:
        """The token before a text: BOS, or the EOS token of the previous document."""
        found = self.end if self.begin is None else self.begin
        assert found is not None, "a document begins or ends with a token"
        return found

    @property
    def after(self) -> int:
        """The token after a text: EOS, or the BOS token of the next document."""
        return self.before if self.end is None else self.end

    def inner(self, document: np.ndarray) -> np.ndarray:
        """The tokens of a document without its first BOS and its last EOS."""
        return document[int(self.begin is not None) : len(document) - int(self.end is not None)]


def special_tokens(tokenizer: "Tokenizer", place: Path | str = "", named: DocumentTokens | None = None) -> SpecialTokens:
    """The ids in a tokenizer.

    Args:
        place: file of the tokenizer. A tokenizer of a home has the names of its tokens in a file next to it.
        named: the names, for another tokenizer.

    Raises:
        DataError: a token is missing, or the file with the names was edited.
    """
    named = named or (read_document_tokens(as_path(place)) if place else OUR_TOKENS)
    ids = SpecialTokens(*(None if name is None else tokenizer.token_to_id(name) for name in named))
    if missing := [name for name, number in zip(named, ids, strict=True) if name is not None and number is None]:
        raise DataError(
            f"the tokenizer {place} must have the tokens {named.in_words()} around documents, and lacks {' and '.join(missing)}. State its "
            "own tokens in the recipe: Tokenizer(begin=…, end=…), with null for a token that it has not."
        )
    return ids


def read_document_tokens(path: Path) -> DocumentTokens:
    """The tokens around documents for a `tokenizer.json`. Raises DataError if the file with the names was edited, or is another one's."""
    written = path.with_name(DOCUMENT_TOKENS_NAME)
    if not written.exists():
        return OUR_TOKENS
    try:
        found = read_sealed(written)
        if found["tokenizer"] == digest_of_file(path):
            return DocumentTokens(found["begin"], found["end"])
    except (OSError, KeyError, NotAsWritten):
        pass
    raise DataError(f"{written} was edited after it was written. Delete {path.parent} and prepare the data again.")


def check_special_tokens(path: Path, vocab_size: int, named: DocumentTokens | None = None) -> None:
    """Raise DataError if a tokenizer lacks BOS or EOS, or an id exceeds a model's vocabulary."""
    tokenizer = load_tokenizer(path)
    special_tokens(tokenizer, path, named)
    token, highest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda entry: entry[1])
    if highest >= vocab_size:
        raise DataError(
            f"the tokenizer {path} must have ids below the recipe's tokenizer.vocab_size of {vocab_size:,}, found {highest:,} ({token}). "
            f"State a vocab_size of at least {highest + 1:,}, in the tokenizer and in every model."
        )


def shared_special_tokens(found: Mapping[str, SpecialTokens]) -> SpecialTokens:
    """The common special tokens. `found`: name → special tokens, at least one. Raises DataError if they differ."""
    by_ids = {special: name for name, special in found.items()}
    if len(by_ids) > 1:
        named = ", ".join(f"{special.begin} and {special.end} in {name}" for special, name in by_ids.items())
        raise DataError(
            f"all documents must begin and end with the same tokens, found the ids {named}: prepare the data with one tokenizer."
        )
    return next(iter(by_ids))


def tokenizer_key(
    documents_keys: Iterable[str],
    vocab_size: int,
    name: str | None,
    special_tokens: Sequence[str] = (),
    around: DocumentTokens = OUR_TOKENS,
) -> str:
    """Digest of all inputs of the tokenizer: its name on the hub, or its training text and special tokens without BOS and EOS."""
    if name is not None:
        return digest_of_json({"name": name, "vocab_size": vocab_size} | ({} if around == OUR_TOKENS else {"around": [*around]}))
    more = {"special_tokens": list(special_tokens)} if special_tokens else {}
    return digest_of_json(
        {
            **more,
            "version": TOKENIZER_VERSION,
            "vocab_size": vocab_size,
            "max_bytes_per_component": MAX_BYTES_PER_COMPONENT,
            "documents": sorted(documents_keys),
        }
    )


def train_tokenizer(components: Iterable[Iterable[str]], vocab_size: int, path: Path, special_tokens: Sequence[str] = ()) -> None:
    """Train on the first `MAX_BYTES_PER_COMPONENT` bytes of each component's training texts and write `tokenizer.json`."""
    from tokenizers import pre_tokenizers

    def read_texts() -> Iterator[str]:
        for texts in components:
            size = 0
            for text in texts:
                if size >= MAX_BYTES_PER_COMPONENT:
                    break
                size += len(text.encode())
                yield text

    trained = train_bpe(read_texts(), vocab_size, pre_tokenizers.ByteLevel(add_prefix_space=False), special_tokens)
    write_tokenizer(path, trained.to_str(pretty=True).encode())


def train_bpe(texts: Iterable[str], vocab_size: int, pre_tokenizer: "PreTokenizer", special_tokens: Sequence[str]) -> "Tokenizer":
    """Train a byte-level BPE: BOS, EOS, special tokens, bytes, merges. Special tokens in the texts are not trained on."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BEGIN_OF_TEXT, END_OF_TEXT, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if special_tokens:
        pattern = re.compile("|".join(map(re.escape, special_tokens)))
        texts = (piece for text in texts for piece in pattern.split(text) if piece)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def fetch_tokenizer(name: str) -> bytes:
    """Download a tokenizer of the hub, `NAME` or `NAME@REVISION`, as `tokenizer.json`. Raises DataError if the download fails."""
    from tokenizers import Tokenizer

    name, _, revision = name.partition("@")
    try:
        return Tokenizer.from_pretrained(name, revision or "main").to_str().encode()
    except Exception as error:  # the library raises a bare Exception
        raise DataError(f"the tokenizer {name} cannot be fetched from the hub: {error}") from error


def write_tokenizer(path: Path, content: bytes, around: DocumentTokens = OUR_TOKENS) -> None:
    """Write a `tokenizer.json` with its digest, and with the tokens around documents if they are not ours."""
    digest = digest_of_bytes(content)
    if around != OUR_TOKENS:
        write_sealed(path.with_name(DOCUMENT_TOKENS_NAME), {"tokenizer": digest, **around._asdict()})
    write_atomically(path.with_name(DIGEST_NAME), digest.encode())
    write_atomically(path, content)


@contextmanager
def refused(path: Path | str) -> Iterator[None]:
    """Convert errors of `tokenizers`, also Rust panics, to DataError: the file is not a tokenizer, or its pattern backtracks too much."""
    try:
        yield
    except (PhasewiseError, OSError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"the tokenizer {path} cannot be used: {error}. Take another one, or correct its patterns.") from None


def load_tokenizer(path: Path) -> "Tokenizer":
    """Read a tokenizer for one thread, as its callers run in parallel. Raises DataError if it is none, was edited, or has BPE dropout."""
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    check_tokenizer(path)
    with refused(path):
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise DataError(f"the tokenizer {path} must give a text the same tokens each time, found a dropout of {dropout:g}: set it to null.")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a special token in a document must stay text
    return tokenizer


def check_tokenizer(path: Path) -> None:
    """Raise DataError if a tokenizer is missing, or was edited after its digest was written: it would not fit its key."""
    written = path.with_name(DIGEST_NAME)
    if not path.exists():
        raise DataError(f"there is no tokenizer at {path}. Prepare the data again.")
    if written.exists() and written.read_bytes() != digest_of_file(path).encode():
        raise DataError(f"{path} was edited after it was written. Delete {path.parent} and prepare the data again.")
