"""Byte n-gram models of the training split: baselines of held-out bits per byte."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from jaxtyping import Float, Shaped, UInt

from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.evaluation.held_out import BitsPerByte, read_held_out_tokens
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed, write_sealed

NUM_BYTES = 256
MAX_ORDER = 8  # a gram of eight bytes fills a 64-bit number
ORDERS = (3, 5)
MEASURING = ("tasks/evaluation/ngram_baselines.py", "tasks/evaluation/held_out.py")  # the files that decide the measured values


@dataclass(frozen=True)
class GramTable:
    """Counts of one order. Grams and contexts are sorted big-endian numbers. `types` counts the distinct bytes after a context."""

    grams: UInt[np.ndarray, " g"]
    counts: Shaped[np.ndarray, " g"]
    contexts: UInt[np.ndarray, " c"]
    totals: Shaped[np.ndarray, " c"]
    types: Shaped[np.ndarray, " c"]


@dataclass(frozen=True)
class ByteNgram:
    """P_n(w | h) = (c(hw) + T(h) · P_{n-1}(w | h')) / (c(h) + T(h)), with P_0 = 1/256.

    Source: Witten and Bell (1991), and Chen and Goodman (1998), equation 17. An unseen context falls back to the shorter context. Contexts
    end at the start of a document.
    """

    tables: tuple[GramTable, ...]

    @classmethod
    def fit(cls, texts: Iterable[str], max_order: int) -> "ByteNgram":
        """Count the grams of orders 1 to `max_order`."""
        if not 1 <= max_order <= MAX_ORDER:
            raise ValueError(f"max_order must be between 1 and {MAX_ORDER}, found {max_order}")
        data, depths = _join(texts, max_order)
        if not len(data):
            raise DataError("a byte n-gram model needs text to be fitted on, found 0 bytes. Check that the training caches are not empty.")
        tables: list[GramTable] = []
        for order in range(1, max_order + 1):
            grams, counts = np.unique(_grams(data, depths, order), return_counts=True)
            contexts, starts, types = np.unique(grams >> grams.dtype.type(8), return_index=True, return_counts=True)
            totals = np.add.reduceat(counts, starts) if len(starts) else counts
            tables.append(GramTable(grams, counts, contexts, totals, types))
        return cls(tuple(tables))

    def probabilities(self, texts: Iterable[str]) -> Float[np.ndarray, "order bytes"]:
        """Return P of each byte by its preceding bytes. Row n - 1 uses grams of at most n bytes."""
        data, depths = _join(texts, len(self.tables))
        rows = np.empty((len(self.tables), len(data)))
        below = np.full(len(data), 1 / NUM_BYTES)
        for order, table in enumerate(self.tables, start=1):
            reached = depths >= order - 1
            unique, inverse = np.unique(_grams(data, depths, order), return_inverse=True)
            counts = _look_up(table.grams, unique, table.counts)[inverse]
            contexts = unique >> unique.dtype.type(8)
            totals = _look_up(table.contexts, contexts, table.totals)[inverse]
            types = _look_up(table.contexts, contexts, table.types)[inverse]
            shorter = below[reached]
            rows[order - 1] = below
            rows[order - 1, reached] = np.where(totals > 0, (counts + types * shorter) / np.maximum(totals + types, 1), shorter)
            below = rows[order - 1]
        return rows


def ngram_bits_per_byte(
    train: Iterable[str], held_out: Mapping[str, Sequence[str]], orders: Sequence[int] = ORDERS
) -> dict[int, BitsPerByte]:
    """Fit the highest order on the training texts, and measure bits per byte of the held-out texts by order and component."""
    if empty := [component for component, texts in held_out.items() if not any(texts)]:
        raise DataError(f"every component must have held-out text, found none for {', '.join(empty)}. Give it more source files.")
    model = ByteNgram.fit(train, max(orders))
    bits = {component: -np.log2(model.probabilities(texts)).mean(axis=1) for component, texts in held_out.items()}
    return {order: BitsPerByte({component: float(values[order - 1]) for component, values in bits.items()}) for order in orders}


def _join(texts: Iterable[str], max_order: int) -> tuple[np.ndarray, np.ndarray]:
    """Join texts and count the bytes of the text before each byte, up to `max_order - 1`."""
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.array([*accumulate(map(len, encoded))], np.int64)
    starts = ends - np.array([*map(len, encoded)], np.int64)
    depths = np.full(len(data), max_order - 1, np.uint8)
    for depth in range(max_order - 1):
        depths[(starts + depth)[starts + depth < ends]] = depth
    return data, depths


def _grams(data: np.ndarray, depths: np.ndarray, order: int) -> np.ndarray:
    """Return the gram that ends at each byte with enough preceding bytes, as a big-endian number."""
    dtype = np.uint32 if order <= 4 else np.uint64
    length = max(0, len(data) - order + 1)
    codes = np.zeros(length, dtype)
    for offset in range(order):
        codes <<= dtype(8)
        codes |= data[offset : offset + length]
    return codes[depths[order - 1 :] >= order - 1]


def _look_up(keys: np.ndarray, wanted: np.ndarray, values: np.ndarray) -> np.ndarray:
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[found] == wanted, values[found], 0)


def baselines_path(plan: DataPlan, home: Home, held_out_tokens: int | None) -> Path:
    """Return the file of the baselines, under the digest of text, split, tokenizer, bound and code."""
    components = [plan.components[name] for name in plan.benchmark_components]
    decides = {
        "code": code_digest(*MEASURING),
        "orders": ORDERS,
        "held_out_tokens": held_out_tokens,
        "documents": {component.name: component.documents.key for component in components},
        "held_out": {component.name: component.held_out.key for component in components},
    }
    return home.keyed("evidence", digest_of_json(decides), "byte-ngram") / "baselines.json"


def measure_baselines(plan: DataPlan, home: Home, held_out_tokens: int | None) -> dict[str, float]:
    """Return the macro bits per byte of each n-gram model, trained and measured on the components of the main line."""
    path = baselines_path(plan, home, held_out_tokens)
    found = read_baselines(path)
    if found is None:
        components = [plan.components[name] for name in plan.benchmark_components]
        tokenizer = load_tokenizer(plan.tokenizer)
        folders = {component.name: component.held_out.folder for component in components}
        held_out = read_held_out_tokens(folders, tokenizer, max_tokens=held_out_tokens)
        tokens = {name: [document.tolist() for document in held.documents] for name, held in held_out.items()}
        texts = {name: tokenizer.decode_batch(ids, skip_special_tokens=False) for name, ids in tokens.items()}
        training = (text for component in components for text in split_texts(component.documents.folder, "train"))
        found = {f"byte {order}-gram": bits.macro for order, bits in ngram_bits_per_byte(training, texts).items()}
        write_sealed(path, {"key": path.parent.name, "bits_per_byte": found})
    return found


def read_baselines(path: Path) -> dict[str, float] | None:
    """Read the macro bits per byte, or return None if the file is missing or was changed."""
    try:
        kept = read_sealed(path)
    except (FileNotFoundError, NotAsWritten):
        return None
    return kept["bits_per_byte"] if kept.get("key") == path.parent.name else None
