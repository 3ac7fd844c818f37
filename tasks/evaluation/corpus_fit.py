"""How well a model fits a text: bits per byte and perplexity, in rolling windows, by named subset and over all of them.

A text is given to the model by itself. Its first token is predicted from begin-of-text, each later one from the tokens before it in its
window; end-of-text is not predicted, and no text sees another. A window has `seq_len` tokens and the next begins `seq_len` tokens later.
The last one begins earlier, so that it is full: these are the windows of lm-eval's `loglikelihood_rolling`.

What is divided by is bytes, which no tokenizer changes. Only how much text a window holds depends on the tokenizer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypedDict

import jax
import numpy as np
from tokenizers import Tokenizer

from phasewise.tasks.data.filters import normalize
from phasewise.tasks.data.findings import LeftOut, Record
from phasewise.tasks.data.listing import expand
from phasewise.tasks.data.reading import pieces_of, read_piece
from phasewise.tasks.data.source import Format, Normalization, Source
from phasewise.tasks.evaluation.scoring import Window, score_windows
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.data.manifest import SourceFile
from phasewise.trainer.model.params import Params

FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""By the ending of a file's name; one of `PACKINGS` may be behind it."""
PACKINGS = (".gz", ".zst", ".bz2", ".xz", ".lz4")
MAX_NAMED = 5


class Document(NamedTuple):
    """A text as it is measured, and where it is: file and place in it."""

    subset: str
    where: str
    text: str


@dataclass
class SubsetText:
    """What was read of a subset.

    Attributes:
        documents: those that are measured; each has a byte of text at least.
        empty_documents: without text, or of white space alone: they have nothing to measure.
        copies: documents whose text an earlier one of the folder has as well. They are measured like any other.
        normalized: documents that the normalisation changed.
        text_bytes: UTF-8 bytes of the text as it is measured.
    """

    name: str
    files: int
    documents: int = 0
    empty_documents: int = 0
    copies: int = 0
    normalized: int = 0
    text_bytes: int = 0
    digests: list[str] = field(default_factory=list, repr=False)

    @property
    def text_digest(self) -> str:
        """Of every text, whatever file it is in: it changes with any character and with any document that is added or left out."""
        return digest_of_json(sorted(self.digests))


class Corpus:
    """The files of a folder by subset: each file in it, and each folder in it with all that is beneath.

    Args:
        root: the folder, or one file.
        text_key: the field with the text, of formats that have fields.

    Raises:
        ConfigError: there is no such folder.
        DataError: it has no file, or one that no reader takes.
    """

    def __init__(self, root: Path, *, text_key: str = "text") -> None:
        if not root.exists():
            raise ConfigError(f"--text must name a folder or a file of text, found none at {root}.")
        self.root = root if root.is_dir() else root.parent
        self.hidden = 0 if root.is_file() else sum(1 for path in root.rglob("*") if path.is_file() and _is_hidden(path.relative_to(root)))
        self._text_key = text_key
        self._names = [root.name] if root.is_file() else _names(root)
        # Refuse files that no reader takes: left out, they would change what is measured without a word
        unknown = [name for name in self._names if format_of(name) is None]
        if unknown:
            raise DataError(
                f"every file under {self.root} must end in {', '.join(FORMATS)} (or packed: {', '.join(PACKINGS)}), found "
                f"{name_some(unknown, MAX_NAMED)}. Take them out of the folder, or give them the ending of what they are."
            )
        self.subsets = {name: SubsetText(name, len(names)) for name, names in self._by_subset().items()}
        self._seen: set[str] = set()

    def documents(self) -> Iterator[Document]:
        """Every document in order of subset and file; `subsets` has the counts when all were taken."""
        for subset, names in self._by_subset().items():
            for name in names:
                yield from self._documents_of(self.subsets[subset], name)
            if not self.subsets[subset].text_bytes:
                raise DataError(
                    f"every subset must have text, found none in {self.root / subset} ({self.subsets[subset].empty_documents} empty "
                    "documents). Take it out of the folder, or give it text."
                )

    def _by_subset(self) -> dict[str, list[str]]:
        subsets: dict[str, list[str]] = {}
        for name in self._names:
            subsets.setdefault(name.partition("/")[0], []).append(name)
        return subsets

    def _documents_of(self, subset: SubsetText, name: str) -> Iterator[Document]:
        url = str(self.root / name)
        source = Source(url=str(self.root), include=("**",), format=format_of(name) or "text", text_key=self._text_key)
        file = SourceFile(name=name, size_bytes=Path(url).stat().st_size, digest="")
        for piece in pieces_of(source, [file]):
            for finding in read_piece(source, piece):
                if isinstance(finding, Record):
                    text = normalize(finding.text, Normalization())
                    content = text.encode()
                    digest = digest_of_bytes(content)
                    subset.documents += 1
                    subset.text_bytes += len(content)
                    subset.normalized += text != finding.text
                    subset.copies += digest in self._seen
                    subset.digests.append(digest)
                    self._seen.add(digest)
                    yield Document(subset.name, f"{self.root / name}, {finding.where}", text)
                elif isinstance(finding, LeftOut):
                    subset.empty_documents += 1
                else:
                    raise DataError(
                        f"every document must be readable {source.format}, found in {url}, {finding.where}: {finding.reason} "
                        f"({finding.sample[:80]!r}). Repair the file or take it out of the folder{self._hint(source.format)}."
                    )

    def _hint(self, format_: Format) -> str:
        return (
            f"; the text is looked for under '{self._text_key}', --text-key names another field" if format_ in ("jsonl", "parquet") else ""
        )


def format_of(name: str) -> Format | None:
    """How a file is read, by its name; None where no reader takes it."""
    path = Path(name.lower())
    if path.suffix in PACKINGS:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix)


def _names(root: Path) -> list[str]:
    if not any(path.is_file() and not _is_hidden(path.relative_to(root)) for path in root.rglob("*")):
        raise DataError(f"the folder of text {root} must hold a file, found none that is not hidden.")
    found = expand(Source(url=str(root), include=("**",), format="text"))
    if found.rejected:
        refused = name_some((f"{file.name} ({file.reason})" for file in found.rejected), MAX_NAMED)
        raise DataError(f"every file under {root} must be one of this folder that can be read, found {refused}. Take them out of it.")
    return list(found.files)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


BATCH_TOKENS = 2**17
"""Tokens of text that are held at once."""


class TokenizedText(NamedTuple):
    """A text as token ids, without begin and end tokens; `where` names it in an error."""

    subset: str
    where: str
    tokens: np.ndarray
    text_bytes: int = 0


class Fit(TypedDict):
    """How well one text, or one subset of texts, is predicted. A perplexity is 2 to the power of the bits that its unit takes.

    Attributes:
        perplexity_per_byte: does not depend on the tokenizer.
        perplexity_per_token: can be compared between models of one tokenizer alone.
    """

    bits_per_byte: float
    perplexity_per_byte: float
    perplexity_per_token: float


class SubsetFit(TypedDict):
    """A subset: how long it is, and how well each set of weights predicts it."""

    text_bytes: int
    tokens: int
    fit: dict[str, Fit]


class CorpusFit(NamedTuple):
    """Weights → fit over all subsets: each counts the same (macro), or each byte does (micro)."""

    subsets: dict[str, SubsetFit]
    macro: dict[str, Fit]
    micro: dict[str, Fit]


class Measured(NamedTuple):
    """Sums over the texts of a subset; nats by the name of the weights."""

    text_bytes: int
    tokens: int
    nats: dict[str, float]


def tokenize(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[TokenizedText]:
    """The documents as the model was trained to read them.

    Raises:
        DataError: the tokens do not spell the text again. Bits per byte would leave out what they lose.
    """
    for document in documents:
        ids = tokenizer.encode(document.text, add_special_tokens=False).ids
        if tokenizer.decode(ids, skip_special_tokens=False) != document.text:
            raise DataError(
                f"the tokens of a text must spell it again, found others for {document.where}: bits per byte would leave out what the "
                "tokenizer loses. Measure with a tokenizer that loses nothing, such as one of bytes."
            )
        yield TokenizedText(document.subset, document.where, np.array(ids, np.int32), len(document.text.encode()))


def rolling_windows(tokens: np.ndarray, seq_len: int, begin: int) -> list[Window]:
    """Windows that predict each token once: the last is full where the text is long enough, and predicts only what is left."""
    sequence = np.concatenate([[begin], tokens]).astype(np.int32)
    windows: list[Window] = []
    for start in range(0, len(tokens), seq_len):
        end = min(start + seq_len, len(tokens))
        windows.append(Window(sequence[max(0, end - seq_len) : end], sequence[start + 1 : end + 1]))
    return windows


def measure_fit(
    weights: Mapping[str, Params],
    config: ModelConfig,
    begin: int,
    texts: Iterable[TokenizedText],
    *,
    text_bytes: Mapping[str, int] | None = None,
) -> CorpusFit:
    """Bits per byte and perplexity of the texts by subset, for each set of weights. Every one of them reads the same texts.

    Args:
        weights: name → weights of one model.
        begin: the token that begins a text.
        text_bytes: subset → UTF-8 bytes of its texts, where the texts do not say.

    Raises:
        DataError: there is no text.
        EvaluationError: an answer is not finite; the message names the text.
    """
    placed = {name: jax.device_put(params) for name, params in weights.items()}
    sums: dict[str, Measured] = {}
    for batch in _batches(texts):
        nats = {name: _nats(params, config, begin, batch, name) for name, params in placed.items()}
        for number, text in enumerate(batch):
            before = sums.get(text.subset, Measured(0, 0, dict.fromkeys(placed, 0.0)))
            added = {name: before.nats[name] + nats[name][number] for name in placed}
            sums[text.subset] = Measured(before.text_bytes + text.text_bytes, before.tokens + len(text.tokens), added)
    known = text_bytes or {}
    return _summed({name: found._replace(text_bytes=known.get(name, found.text_bytes)) for name, found in sums.items()})


def _batches(texts: Iterable[TokenizedText]) -> Iterator[list[TokenizedText]]:
    batch: list[TokenizedText] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.tokens)
        if size >= BATCH_TOKENS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _nats(params: Params, config: ModelConfig, begin: int, texts: Sequence[TokenizedText], weights: str) -> list[float]:
    windows = [rolling_windows(text.tokens, config.seq_len, begin) for text in texts]
    scores = iter(score_windows(params, config, [window for of_text in windows for window in of_text]))
    found = [-sum(float(next(scores).log_likelihoods.sum(dtype=np.float64)) for _ in of_text) for of_text in windows]
    for text, value in zip(texts, found, strict=True):
        if not math.isfinite(value):
            raise EvaluationError(
                f"a model must give every text a finite likelihood, found {value} for {text.where} (weights {weights}). Its weights have "
                "diverged, or its checkpoint is damaged: evaluate an earlier one."
            )
    return found


def _summed(sums: Mapping[str, Measured]) -> CorpusFit:
    if not sums:
        raise DataError("corpus fit needs at least one text, found none.")
    names = list(next(iter(sums.values())).nats)
    subsets: dict[str, SubsetFit] = {}
    for subset, found in sums.items():
        fit = {name: fit_of(found.nats[name] / found.text_bytes, found.nats[name] / found.tokens) for name in names}
        subsets[subset] = SubsetFit(text_bytes=found.text_bytes, tokens=found.tokens, fit=fit)
    macro: dict[str, Fit] = {}
    micro: dict[str, Fit] = {}
    for name in names:
        per_byte = [found.nats[name] / found.text_bytes for found in sums.values()]
        per_token = [found.nats[name] / found.tokens for found in sums.values()]
        macro[name] = fit_of(sum(per_byte) / len(per_byte), sum(per_token) / len(per_token))
        nats = sum(found.nats[name] for found in sums.values())
        micro[name] = fit_of(nats / sum(found.text_bytes for found in sums.values()), nats / sum(found.tokens for found in sums.values()))
    return CorpusFit(subsets, macro, micro)


def fit_of(nats_per_byte: float, nats_per_token: float) -> Fit:
    """The same in the units that are reported. A perplexity beyond the largest float is infinite."""
    return Fit(
        bits_per_byte=nats_per_byte / math.log(2),
        perplexity_per_byte=float(np.exp(np.float64(nats_per_byte))) if nats_per_byte < 700 else math.inf,
        perplexity_per_token=float(np.exp(np.float64(nats_per_token))) if nats_per_token < 700 else math.inf,
    )
