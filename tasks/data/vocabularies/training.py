"""Byte-level BPE: training it on the text of components, and cutting a vocabulary to a smaller size by the rank of its merges."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.tasks.data.vocabularies import splits
from phasewise.tasks.data.vocabularies.splits import SplitName, build_pre_tokenizer
from phasewise.trainer.base.code_digest import code_digest
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.json_reader import parse_json

SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
"""Where there are no more special tokens."""
MAX_BYTES = 100_000_000
TRAINED_BY = f"byte-bpe-2+{code_digest(sys.modules[__name__], splits)}+tokenizers-{version('tokenizers')}"


class Amount(NamedTuple):
    """How much of a component's training text was read."""

    documents: int
    text_bytes: int


class Trained(NamedTuple):
    """A tokenizer as the text of its `tokenizer.json`, and how much of each component it was trained on."""

    content: str
    amounts: dict[str, Amount]


def check_vocab_size(vocab_size: int, special_tokens: Sequence[str] = ()) -> None:
    """Refuse a vocabulary that has no room for every byte and the special tokens.

    Args:
        special_tokens: those besides the two that begin and end a document.

    Raises:
        ConfigError: it is too small.
    """
    least = MIN_VOCAB_SIZE + len(special_tokens)
    if vocab_size < least:
        raise ConfigError(f"--vocab-size must be at least {least}, for 256 bytes and {least - 256} special tokens, found {vocab_size:,}.")


def train(
    components: Mapping[str, Iterable[str]],
    vocab_size: int,
    *,
    split: SplitName,
    max_bytes: int = MAX_BYTES,
    special_tokens: Sequence[str] = (),
) -> Trained:
    """Train on the first `max_bytes` bytes of each component's texts, and on the rest of the document that they end in.

    Args:
        components: component → its training texts. Where one spells a special token, nothing is learnt from that.
        special_tokens: those besides the two that begin and end a document, such as a chat template writes. They come after these.

    Raises:
        ConfigError: the vocabulary is smaller than bytes and special tokens.
        DataError: the text has too few different pieces for a vocabulary of this size.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    check_vocab_size(vocab_size, special_tokens)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = build_pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    amounts: dict[str, Amount] = {}
    tokenizer.train_from_iterator(_without(special_tokens, _texts(components, max_bytes, amounts)), trainer)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        raise DataError(
            f"the text must give {vocab_size:,} entries, found {found:,} in {sum(one.text_bytes for one in amounts.values()):,} bytes: no "
            "pair of entries is left to merge. Ask for a smaller --vocab-size, or read more text."
        )
    return Trained(tokenizer.to_str(pretty=True), amounts)


def truncate(content: str, vocab_size: int, special_tokens: Sequence[str] = ()) -> str:
    """The same tokenizer with its first `vocab_size` entries, as the text of its `tokenizer.json`.

    A merge has the rank in which it was learnt, and none rests on a later one. So this is the tokenizer that training at the smaller size
    gives (Trinity Large report, 2.1.2).

    Args:
        special_tokens: those that it was trained with, besides the two that begin and end a document.

    Raises:
        ConfigError: the size is not smaller, or has no room for bytes and special tokens.
        DataError: it is no byte-level BPE whose entries are special tokens, bytes and merges, in this order.
    """
    check_vocab_size(vocab_size, special_tokens)
    written: dict[str, Any] = parse_json(content)
    ranked = _ranked(written, [*SPECIAL_TOKENS, *special_tokens])
    if vocab_size > len(ranked):
        raise ConfigError(f"--vocab-size must be at most the {len(ranked):,} entries that there are, found {vocab_size:,}.")
    model = written["model"]
    model["vocab"] = {token: number for number, token in enumerate(ranked[:vocab_size])}
    model["merges"] = _merges_of(model["merges"], vocab_size - MIN_VOCAB_SIZE - len(special_tokens))
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(written)).to_str(pretty=True)


def _merges_of(merges: Sequence[Sequence[str]], num_entries: int) -> list[Sequence[str]]:
    """The merges up to the one that makes the last of so many entries. Two merges may make the same one."""
    made: set[str] = set()
    kept: list[Sequence[str]] = []
    for merge in merges:
        if len(made) == num_entries:
            break
        made.add("".join(merge))
        kept.append(merge)
    return kept


def _ranked(written: Mapping[str, Any], special_tokens: Sequence[str]) -> list[str]:
    """The entries by id, which are by rank.

    Raises:
        DataError: as `truncate`.
    """
    model = written.get("model", {})
    is_bpe = model.get("type") == "BPE" and "merges" in model
    by_id: dict[int, str] = {number: token for token, number in model["vocab"].items()} if is_bpe else {}
    ranked = [by_id[number] for number in sorted(by_id)]
    made = list(dict.fromkeys("".join(merge) for merge in model["merges"])) if is_bpe else []
    has_every_id = sorted(by_id) == list(range(len(ranked)))
    first = len(special_tokens)
    if not (is_bpe and has_every_id and ranked[:first] == list(special_tokens) and ranked[first + 256 :] == made):
        raise DataError(
            f"a tokenizer is cut by the rank of its merges: its entries must be {first} special tokens, 256 bytes, then one for each merge "
            "in order, as `phasewise tokenizer train` writes them. This one has others."
        )
    return ranked


def _without(special_tokens: Sequence[str], texts: Iterable[str]) -> Iterator[str]:
    """The texts, cut where a special token is."""
    pattern = re.compile("|".join(map(re.escape, special_tokens)))
    for text in texts:
        yield from filter(None, pattern.split(text) if special_tokens else [text])


def _texts(components: Mapping[str, Iterable[str]], max_bytes: int, amounts: dict[str, Amount]) -> Iterator[str]:
    """The texts to train on, one component after the other; `amounts` has what was read when all were taken."""
    for name, texts in components.items():
        documents = text_bytes = 0
        for text in texts:
            if text_bytes >= max_bytes:
                break
            documents += 1
            text_bytes += len(text.encode())
            yield text
        amounts[name] = Amount(documents, text_bytes)
