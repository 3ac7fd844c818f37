"""Corpus fit: bits per byte and perplexity of texts by subset, in the rolling windows of lm-eval's `loglikelihood_rolling`.

Each text is independent. Its first token is predicted from the BOS token, end-of-text is not predicted. Windows of `seq_len` tokens are
`seq_len` apart, and the last window starts earlier to be full. Bytes don't depend on the tokenizer, only the text in a window does.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
    ".txt": "text", ".md": "markdown", ".markdown": "markdown", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
"""File extension → format. An extension of `PACKINGS` may follow."""
PACKINGS = (".gz", ".zst", ".bz2", ".xz", ".lz4")
MAX_NAMED = 5
BATCH_TOKENS = 2**17  # tokens of text in memory


class Document(NamedTuple):
    """A normalized text. `where` has its file and position for errors."""

    subset: str
    where: str
    text: str


@dataclass
class SubsetText:
    """Counts of a subset. `copies` repeat an earlier text, `normalized` were changed, `text_bytes` are UTF-8 bytes after normalization."""

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
        """Digest of all texts, independent of files and order."""
        return digest_of_json(sorted(self.digests))


class Corpus:
    """A file, or a folder with a subset for each file and each folder in it. `text_key` is the text field of JSON and tables."""

    def __init__(self, root: Path, *, text_key: str = "text") -> None:
        if not root.exists():
            raise ConfigError(f"--text must name a folder or a file of text, found none at {root}.")
        self._text_key = text_key
        self.root = root if root.is_dir() else root.parent
        self.hidden = 0
        names = [root.name]
        if root.is_dir():
            paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
            self.hidden = sum(any(part.startswith(".") for part in path.parts) for path in paths)
            if self.hidden == len(paths):
                raise DataError(f"the folder of text {root} must hold a file, found none that is not hidden.")
            found = expand(Source(url=str(root), include=("**",), format="text"))
            if found.rejected:
                refused = name_some((f"{file.name} ({file.reason})" for file in found.rejected), MAX_NAMED)
                raise DataError(f"every file under {root} must be readable and inside the folder, found {refused}. Remove them.")
            names = list(found.files)
        # Skipped files would change the result silently
        self._formats: dict[str, Format | None] = {}
        for name in names:
            path = Path(name.lower())
            self._formats[name] = FORMATS.get((path.with_suffix("") if path.suffix in PACKINGS else path).suffix)
        if unknown := [name for name in names if self._formats[name] is None]:
            raise DataError(
                f"every file under {self.root} must end in {', '.join(FORMATS)} (or packed: {', '.join(PACKINGS)}), found "
                f"{name_some(unknown, MAX_NAMED)}. Remove them from the folder, or correct their extensions."
            )
        self._files: dict[str, list[str]] = {}
        for name in names:
            self._files.setdefault(name.partition("/")[0], []).append(name)
        self.subsets = {subset: SubsetText(subset, len(files)) for subset, files in self._files.items()}

    def documents(self) -> Iterator[Document]:
        """Read every document in order of subset and file, and update the counts in `subsets`."""
        seen: set[str] = set()
        for name, files in self._files.items():
            subset = self.subsets[name]
            for file in files:
                path = self.root / file
                source = Source(url=str(self.root), include=("**",), format=self._formats[file] or "text", text_key=self._text_key)
                listed = SourceFile(name=file, size_bytes=path.stat().st_size, digest="")
                for finding in (finding for piece in pieces_of(source, [listed]) for finding in read_piece(source, piece)):
                    if isinstance(finding, LeftOut):
                        subset.empty_documents += 1
                        continue
                    if not isinstance(finding, Record):
                        has_fields = source.format in ("jsonl", "parquet")
                        hint = f". The text field is '{self._text_key}', --text-key names another field" if has_fields else ""
                        raise DataError(
                            f"every document must be readable {source.format}, found in {path}, {finding.where}: {finding.reason} "
                            f"({finding.sample[:80]!r}). Repair the file or remove it from the folder{hint}."
                        )
                    text = normalize(finding.text, Normalization())
                    digest = digest_of_bytes(text.encode())
                    subset.documents += 1
                    subset.text_bytes += len(text.encode())
                    subset.normalized += text != finding.text
                    subset.copies += digest in seen
                    subset.digests.append(digest)
                    seen.add(digest)
                    yield Document(subset.name, f"{path}, {finding.where}", text)
            if not subset.text_bytes:
                raise DataError(
                    f"every subset must have text, found none in {self.root / name} ({subset.empty_documents} empty documents). Remove "
                    "it from the folder, or add text."
                )


class TokenizedText(NamedTuple):
    """The tokens of a text without BOS and EOS tokens. `where` names the text in errors."""

    subset: str
    where: str
    tokens: np.ndarray
    text_bytes: int = 0


class CorpusFit(NamedTuple):
    """Sizes and fit of each subset, and weights → fit over all subsets, with equal weight for each subset (macro) or byte (micro)."""

    subsets: dict[str, dict[str, Any]]
    macro: dict[str, dict[str, float]]
    micro: dict[str, dict[str, float]]


def tokenize(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[TokenizedText]:
    """Tokenize documents as in training. A DataError reports tokens that decode to a different text."""
    for document in documents:
        ids = tokenizer.encode(document.text, add_special_tokens=False).ids
        if tokenizer.decode(ids, skip_special_tokens=False) != document.text:
            raise DataError(
                f"the tokens of a text must spell it again, found others for {document.where}: bits per byte would omit the lost text. "
                "Measure with a lossless tokenizer, such as a byte-level tokenizer."
            )
        yield TokenizedText(document.subset, document.where, np.array(ids, np.int32), len(document.text.encode()))


def rolling_windows(tokens: np.ndarray, seq_len: int, begin: int) -> list[Window]:
    """Cut windows that predict each token once. The last window of a long text is full and predicts only the remaining tokens."""
    sequence = np.concatenate([[begin], tokens]).astype(np.int32)
    windows: list[Window] = []
    for start in range(0, len(tokens), seq_len):
        end = min(start + seq_len, len(tokens))
        windows.append(Window(sequence[max(0, end - seq_len) : end], sequence[start + 1 : end + 1]))
    return windows


def measure_fit(
    weights: Mapping[str, Params], config: ModelConfig, begin: int, texts: Iterable[TokenizedText],
    *, text_bytes: Mapping[str, int] | None = None,
) -> CorpusFit:  # fmt: skip
    """Measure each set of weights on the texts by subset. `begin` is the BOS token, `text_bytes` is for texts without sizes."""
    placed = {name: jax.device_put(params) for name, params in weights.items()}
    sizes: dict[str, tuple[int, int]] = {}
    nats: dict[str, dict[str, float]] = {}
    for batch in batches_of(texts):
        windows = [rolling_windows(text.tokens, config.seq_len, begin) for text in batch]
        flat = [window for of_text in windows for window in of_text]
        for name, params in placed.items():
            scores = iter(score_windows(params, config, flat))
            for text, of_text in zip(batch, windows, strict=True):
                value = -sum(float(next(scores).log_likelihoods.sum(dtype=np.float64)) for _ in of_text)
                if not math.isfinite(value):
                    raise EvaluationError(
                        f"a model must give every text a finite likelihood, found {value} for {text.where} (weights {name}). Its weights "
                        "have diverged, or its checkpoint is damaged: evaluate an earlier one."
                    )
                of_subset = nats.setdefault(text.subset, dict.fromkeys(placed, 0.0))
                of_subset[name] += value
        for text in batch:
            known_bytes, tokens = sizes.get(text.subset, (0, 0))
            sizes[text.subset] = (known_bytes + text.text_bytes, tokens + len(text.tokens))
    if not sizes:
        raise DataError("corpus fit needs at least one text, found none.")
    sizes = {subset: ((text_bytes or {}).get(subset, known), tokens) for subset, (known, tokens) in sizes.items()}
    subsets: dict[str, dict[str, Any]] = {}
    for subset, (num_bytes, tokens) in sizes.items():
        fit = {name: _fit(value / num_bytes, value / tokens) for name, value in nats[subset].items()}
        subsets[subset] = {"text_bytes": num_bytes, "tokens": tokens, "fit": fit}
    macro: dict[str, dict[str, float]] = {}
    micro: dict[str, dict[str, float]] = {}
    all_bytes, all_tokens = (sum(counts) for counts in zip(*sizes.values(), strict=True))
    for name in placed:
        per_byte = sum(nats[subset][name] / num_bytes for subset, (num_bytes, _) in sizes.items())
        per_token = sum(nats[subset][name] / tokens for subset, (_, tokens) in sizes.items())
        macro[name] = _fit(per_byte / len(sizes), per_token / len(sizes))
        total = sum(nats[subset][name] for subset in sizes)
        micro[name] = _fit(total / all_bytes, total / all_tokens)
    return CorpusFit(subsets, macro, micro)


def write_rows(corpus: Corpus, tokenizer: Tokenizer, begin: int, path: Path, *, seq_len: int, rows: int) -> Path:
    """Write the first whole documents of each subset as rows of `seq_len` tokens, for the trainer's fit during training.

    A subset has at most `rows` rows, and at least its first document up to this limit. The file has arrays of NumPy: `names`, `text_bytes`,
    `tokens` and `predicted` ("subset row position"). Each row starts with a token that is not predicted there.
    """
    tokens: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}
    full: set[str] = set()  # a later, shorter document would fit, but short documents are no sample of the subset
    for text in tokenize(corpus.documents(), tokenizer):
        sequence = np.concatenate([[begin], text.tokens]).astype(np.int32)
        cut = [sequence[start : start + seq_len] for start in range(0, len(text.tokens), seq_len - 1)]
        known = tokens.setdefault(text.subset, [])
        if text.subset in full or (known and len(known) + len(cut) > rows):
            full.add(text.subset)
            continue
        if len(cut) > rows:  # the bytes of the part that is measured
            cut = cut[:rows]
            kept = tokenizer.decode(text.tokens[: rows * (seq_len - 1)].tolist(), skip_special_tokens=False)
            text = text._replace(text_bytes=len(kept.encode()))
        known += cut
        sizes[text.subset] = sizes.get(text.subset, 0) + text.text_bytes
    shape = len(tokens), max(len(one) for one in tokens.values()), seq_len
    filled, predicted = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for subset, of_subset in enumerate(tokens.values()):
        for row, one in enumerate(of_subset):
            filled[subset, row, : len(one)] = one
            predicted[subset, row, 1 : len(one)] = True
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part.npz")
    np.savez(
        partial, names=np.array(list(tokens)), text_bytes=np.array([sizes[name] for name in tokens]), tokens=filled, predicted=predicted
    )
    partial.replace(path)
    return path


def batches_of(texts: Iterable[TokenizedText]) -> Iterator[list[TokenizedText]]:
    """Group the texts, in order, into batches of about `BATCH_TOKENS` tokens."""
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


def _fit(nats_per_byte: float, nats_per_token: float) -> dict[str, float]:
    """Convert nats to the reported units. A perplexity beyond the largest float is infinite."""
    return {
        "bits_per_byte": nats_per_byte / math.log(2),
        "perplexity_per_byte": float(np.exp(np.float64(nats_per_byte))) if nats_per_byte < 700 else math.inf,
        "perplexity_per_token": float(np.exp(np.float64(nats_per_token))) if nats_per_token < 700 else math.inf,
    }
