"""What rows of a token cache are like, without a word being read: source file, document length, and which tokens they use.

A row speaks for the document at its middle. Of a large cache some shards are looked at, evenly spaced, and of these some rows.
"""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.trainer.data.cache import TokenRange, fetch
from phasewise.trainer.data.packing import RowsOfTokens
from phasewise.validations.evidence.order.measures import cusum
from phasewise.validations.evidence.order.null import brownian_bridge


@dataclass(frozen=True)
class Shift:
    """Where the mean changes most.

    Attributes:
        at: values before the change.
        before, after: the signal's means.
        deviations: the size of the change, in standard deviations of the signal.
        p_value: the chance of a change so clear under a true random permutation, or a bound above it.
    """

    at: int
    before: float
    after: float
    deviations: float
    p_value: float


def find_shift(signal: np.ndarray) -> Shift:
    """The change of a signal whose values come in the training order; ranks say whether it is there, the values how large it is."""
    deviation = float(signal.std()) if signal.size else 0.0
    if not deviation > 0:
        mean = float(signal.mean()) if signal.size else 0.0
        return Shift(len(signal), mean, mean, 0.0, 1.0)
    at, distance = cusum(middle_ranks(signal))
    before = float(signal[:at].mean())
    after = float(signal[at:].mean())
    return Shift(at, before, after, abs(after - before) / deviation, brownian_bridge().chance(distance))


def middle_ranks(values: np.ndarray) -> np.ndarray:
    """How many values are smaller than each, and half of those that equal it."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[which]


MAX_DOCUMENTS = 400_000
MAX_ROWS = 2**15
TOKEN_MIX_ROWS = 4096
TOKEN_MIX_TOKENS = 128
COMMON_TOKENS = 64
SIGNALS = ("source file", "document length", "token mix")


@dataclass(frozen=True)
class RowSignals:
    """Signals of some rows.

    Attributes:
        rows: numbers of the rows, in increasing order.
        source_file: the ordinal of the file that the row's document came from, in the order of the cache.
        document_length: binary logarithm of the document's tokens.
    """

    rows: np.ndarray
    source_file: np.ndarray
    document_length: np.ndarray


def row_signals(laid: RowsOfTokens) -> RowSignals:
    """What the index says of the rows, or of so many of them that this costs little."""
    cache = laid.cache
    # All shards, or as many as have the documents that may be looked at, evenly spaced; at least one
    documents = [shard.documents for shard in cache.manifest.shards]
    share = min(1.0, MAX_DOCUMENTS / max(sum(documents), 1))
    shards = spread(np.flatnonzero(documents), max(1, math.floor(share * len(documents)))).tolist()
    rows = spread(_with_middle_in(laid, shards), MAX_ROWS)
    # The documents of some shards: the token of the cache at which each ends, its tokens, and the ordinal of its file
    ends: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    files: list[np.ndarray] = []
    ordinals = {file.name: number for number, file in enumerate(cache.manifest.sources)}
    for shard in shards:
        with (cache.folder / f"{cache.manifest.shards[shard].name}.parquet").open("rb") as file:
            index = pq.ParquetFile(file, read_dictionary=["source_file"]).read(["source_file", "offset", "length"]).combine_chunks()
        length = index["length"].to_numpy()
        ends.append(cache.starts[shard] + index["offset"].to_numpy() + length)
        lengths.append(length)
        names = cast(pa.DictionaryArray, index["source_file"].combine_chunks())
        of_shard = np.array([ordinals.setdefault(str(name), len(ordinals)) for name in names.dictionary.to_pylist()], np.int64)
        files.append(of_shard[names.indices.to_numpy()])
    document = np.searchsorted(np.concatenate(ends), laid.firsts(rows) + laid.used(rows) // 2, side="right")
    return RowSignals(rows, np.concatenate(files)[document].astype(np.float64), np.log2(np.concatenate(lengths)[document]))


def _with_middle_in(laid: RowsOfTokens, shards: list[int]) -> np.ndarray:
    """The rows whose middle lies in one of these shards. Rows of `chunk` are not listed to find them."""
    starts, seq_len = laid.cache.starts, laid.seq_len
    if laid.packing == "chunk":
        middle = seq_len // 2
        stretches = [(-((middle - starts[shard]) // seq_len), -((middle - starts[shard + 1]) // seq_len)) for shard in shards]
        rows = np.concatenate([np.arange(first, stop, dtype=np.int64) for first, stop in stretches])
        return rows[rows < laid.num_rows]
    rows = np.arange(laid.num_rows)
    middles = laid.firsts(rows) + laid.used(rows) // 2
    return rows[np.isin(np.searchsorted(starts, middles, "right") - 1, shards)]


def token_mix(laid: RowsOfTokens, rows: np.ndarray) -> np.ndarray:
    """Where each row lies along the direction in which the rows' use of common tokens varies most: languages and scripts lie apart there.

    It is the first principal component of the square roots of token counts, over the tokens that are commonest in these rows. The order
    of the rows has no part in it.
    """
    cache = laid.cache
    tokens = _beginnings(laid, rows)
    counts = np.bincount(tokens.ravel())
    counts[[token for token in (cache.manifest.begin_of_text, cache.manifest.end_of_text) if token < len(counts)]] = 0
    common = np.argsort(-counts, kind="stable")[:COMMON_TOKENS]
    column = np.full(len(counts), COMMON_TOKENS)
    column[common] = np.arange(len(common))
    width = COMMON_TOKENS + 1
    numbered = column[tokens] + np.arange(len(rows))[:, None] * width
    used = np.sqrt(np.bincount(numbered.ravel(), minlength=len(rows) * width).reshape(-1, width)[:, :COMMON_TOKENS])
    used -= used.mean(axis=0)
    _, directions = np.linalg.eigh(used.T @ used)
    direction = directions[:, -1]
    return used @ (direction * np.sign(direction[np.abs(direction).argmax()]))


def _beginnings(laid: RowsOfTokens, rows: np.ndarray) -> np.ndarray:
    """The first tokens of these rows; a row that has fewer is filled up with the token that ends a text, which is not looked at."""
    cache, seq_len = laid.cache, laid.seq_len
    if laid.packing == "chunk":
        piece = max(part for part in range(1, min(TOKEN_MIX_TOKENS, seq_len) + 1) if seq_len % part == 0)
        return cache.rows(rows * (seq_len // piece), piece)
    tokens = np.full((len(rows), min(TOKEN_MIX_TOKENS, seq_len)), cache.manifest.end_of_text, np.int32)
    ranges: list[TokenRange] = []
    for place, (first, used) in enumerate(zip(laid.firsts(rows).tolist(), laid.used(rows).tolist(), strict=True)):
        ranges += cache.read_piece(first, tokens[place, : min(used, tokens.shape[1])])
    fetch(ranges)
    return tokens


def spread(numbers: np.ndarray, count: int) -> np.ndarray:
    """So many of some numbers, or all, drawn at random from even stretches: they fall in step with nothing."""
    if len(numbers) <= count:
        return numbers
    places = (np.arange(count) + np.random.default_rng(len(numbers)).random(count)) * len(numbers) / count
    return numbers[places.astype(np.int64)]
