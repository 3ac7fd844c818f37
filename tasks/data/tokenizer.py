"""A byte-level BPE tokenizer, trained on the training split."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.trainer.base.code_digest import code_digest
from phasewise.trainer.base.errors import DataError, PhasewiseError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_VERSION = f"byte-bpe-1+{code_digest(sys.modules[__name__])}+tokenizers-{version('tokenizers')}"
BEGIN_OF_TEXT, END_OF_TEXT = "<|begin_of_text|>", "<|end_of_text|>"
MAX_BYTES_PER_COMPONENT = 200_000
DIGEST_NAME = "tokenizer.sha256"


def tokenizer_key(documents_keys: Iterable[str], vocab_size: int, name: str | None, special_tokens: Sequence[str] = ()) -> str:
    """Digest of everything that decides the tokenizer: its name on the hub, or what it is trained on and its special tokens.

    Args:
        special_tokens: those besides the tokens that begin and end a document.
    """
    if name is not None:
        return digest_of_json({"name": name, "vocab_size": vocab_size})
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
    """Train on the first `MAX_BYTES_PER_COMPONENT` bytes of each component's training texts and write `tokenizer.json`.

    Special tokens in the texts are not trained on: they are entries already.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BEGIN_OF_TEXT, END_OF_TEXT, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for texts in components for text in _without(special_tokens, _sample(texts))), trainer)
    _write(path, tokenizer.to_str(pretty=True))


def fetch_tokenizer(name: str, path: Path) -> None:
    """Save a tokenizer of the hub as `tokenizer.json`.

    Raises:
        DataError: it cannot be fetched.
    """
    from tokenizers import Tokenizer

    try:
        fetched = Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises a bare Exception
        raise DataError(f"the tokenizer {name} cannot be fetched from the hub: {error}") from error
    _write(path, fetched.to_str())


@contextmanager
def refused(path: Path | str) -> Iterator[None]:
    """What `tokenizers` says of a file that it cannot use, as a refusal. Some of it is a panic of Rust, which is no `Exception`.

    Raises:
        DataError: the file is no tokenizer, or its pattern goes back and forth over a text more often than the library allows.
    """
    try:
        yield
    except (PhasewiseError, OSError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"the tokenizer {path} cannot be used: {error}. Take another one, or correct its patterns.") from None


def load_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer of a file; one thread, because its callers already run side by side.

    Whether it cuts or fills up what it encodes, which a file may say, is not taken from there: a document is encoded whole, and alone.

    Raises:
        DataError: it is no tokenizer, it was edited after it was written, or it leaves out merges by chance (BPE dropout): the same text
            would be other tokens each time.
    """
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    check_tokenizer(path)
    with refused(path):
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise DataError(f"the tokenizer {path} must give a text the same tokens each time, found a dropout of {dropout:g}: set it to null.")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a document that spells a special token must not become one
    return tokenizer


def tokenizer_digest(path: Path) -> str:
    """SHA-256 of `tokenizer.json`."""
    return digest_of_file(path)


def check_tokenizer(path: Path) -> None:
    """Refuse a tokenizer that is not the one that was written: its key would name other caches than it makes.

    Raises:
        DataError: its digest is not the one beside it.
    """
    written = path.with_name(DIGEST_NAME)
    if not path.exists():
        raise DataError(f"there is no tokenizer at {path}. Prepare the data again.")
    if written.exists() and written.read_bytes() != tokenizer_digest(path).encode():
        raise DataError(f"{path} was edited after it was written. Delete {path.parent} and prepare the data again.")


def _write(path: Path, content: str) -> None:
    write_atomically(path.with_name(DIGEST_NAME), digest_of_bytes(content.encode()).encode())
    write_atomically(path, content.encode())


def _without(special_tokens: Sequence[str], texts: Iterable[str]) -> Iterable[str]:
    """The texts, cut where a special token is."""
    if not special_tokens:
        return texts
    pattern = re.compile("|".join(map(re.escape, special_tokens)))
    return (piece for text in texts for piece in pattern.split(text) if piece)


def _sample(texts: Iterable[str]) -> Iterable[str]:
    size = 0
    for text in texts:
        if size >= MAX_BYTES_PER_COMPONENT:
            return
        size += len(text.encode())
        yield text
