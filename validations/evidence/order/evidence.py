"""Evidence on the order in which a phase draws its data: whether the order mixes, and whether the data changes during training.

Signals describe rows by the document at their middle, without reading text, in evenly spaced shards and rows of a large cache.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.trainer.config import Component, RunConfig
from phasewise.trainer.data.cache import TokenCache, TokenRange, build_maps, fetch
from phasewise.trainer.data.document_buffer import BufferedComponent, BufferedMixture
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import ComponentRows, RowRule
from phasewise.trainer.data.permutation import Permutation, derive_key
from phasewise.validations.evidence.order.measures import cusum, measure_order, take_sample
from phasewise.validations.evidence.order.null import BROWNIAN_BRIDGE, Measure, most_surprising
from phasewise.validations.limits import OrderLimits

MAX_EPOCHS = 8  # judged epochs of a component, from the first epoch of the phase
ORDER_COLUMNS = (
    "component", "rows", "drawn", "permutation", "measure", "value", "limit", "bound", "p_value", "passes", "detail",
    "judged_p_value", "components", "components_failing",
)  # fmt: skip
SHIFT_COLUMNS = (
    "component", "signal", "rows_looked_at", "change_at_step", "before", "after", "shift_deviations", "p_value", "sure_deviations",
)  # fmt: skip
MAX_DOCUMENTS = 400_000
MAX_ROWS = 2**15
TOKEN_MIX_ROWS = 4096
TOKEN_MIX_TOKENS = 128
COMMON_TOKENS = 64


def order_evidence(run: RunConfig, limits: OrderLimits) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Build the tables `order` (a row per component and measure) and `shifts` (a row per component and signal) of a phase.

    All rows of both tables share the false-alarm rate evenly. A component without a whole row has no row.

    * `p_value`: Chance, or its upper bound, of such a value under a true random permutation.
    * `judged_p_value`: P-value of the least likely row, 1 in other rows: a phase has one kind of permutation, which fails once.
    * `sure_deviations`: `shift_deviations` if chance does not explain the change at the rate, else 0.
    """
    schedule = MixtureSchedule.of_run(run)
    changes = {step for values in (run.mixture, run.batch) for step, _ in values.root if run.start_step < step < run.stop_step}
    steps = np.array(sorted({run.start_step, run.stop_step, *changes}))
    before = [schedule.realised(0, int(step)) for step in steps]
    maps = build_maps()
    drawn, mixed = list[_Drawn](), None
    if run.order.buffer_over == "mixture":
        caches = {name: TokenCache.open(run.caches[name], maps) for name in schedule.components_from(run.start_step)}
        mixed = BufferedMixture(schedule, caches, run.model.seq_len, run.start_step, run.stop_step)
    for name in schedule.realised(run.start_step, run.stop_step):
        cache = TokenCache.open(run.caches[name], maps)
        found = _Drawn(run, name, cache, steps, np.array([each.get(name, 0) for each in before]), mixed)
        if found.rows:
            drawn.append(found)
    shifts = [row for each in drawn for row in _shift_rows(each)] if limits.max_shift_deviations is not None else []
    measured = [(each, each.measures()) for each in drawn]
    rate = limits.false_alarm_rate / max(1, len(shifts) + sum(len(measures) for _, measures in measured))
    for row in shifts:
        row["sure_deviations"] = row["shift_deviations"] if row["p_value"] < rate else 0.0
    order: list[dict[str, Any]] = []
    for each, measures in measured:
        about = {"component": each.name, "rows": each.rows, "drawn": each.stop - each.first, "permutation": run.order.permutation}
        order += [about | {"measure": one.name, **one.judged(rate)} for one in measures]
    worst = min(range(len(order)), key=lambda number: order[number]["p_value"], default=0)
    components, failing = {row["component"] for row in order}, {row["component"] for row in order if not row["passes"]}
    for number, row in enumerate(order):
        row["judged_p_value"] = row["p_value"] if number == worst else 1.0
        row["components"] = len(components)
        row["components_failing"] = len(failing)
    return pd.DataFrame(order, columns=list(ORDER_COLUMNS)), pd.DataFrame(shifts, columns=list(SHIFT_COLUMNS))


class _Drawn:
    """The positions `[first, stop)` since step 0 that a phase draws of a component, in epochs of `rows` rows."""

    def __init__(
        self, run: RunConfig, name: Component, cache: TokenCache, steps: np.ndarray, positions: np.ndarray, mixed: BufferedMixture | None
    ):
        self.name, self.laid = name, ComponentRows(cache, RowRule(run.packing), run.model.seq_len)
        self.rows = self.laid.num_rows
        self.first, self.stop = int(positions[0]), int(positions[-1])
        self.steps, self.positions = steps, positions
        if mixed:  # positions in the phase, because rows have several components
            schedule = MixtureSchedule.of_run(run)
            self.positions = np.array([schedule.sequences_before(int(step)) - mixed.first for step in steps])
        self._mixed, self._number = mixed, MixtureSchedule.of_run(run).components().index(name)
        has_buffer = run.order.buffer_documents is not None and mixed is None
        self._buffered = BufferedComponent(name, cache, run.order, run.model.seq_len) if has_buffer else None
        self._permutations: dict[int, Permutation] = {}  # epoch → the loader's permutation of rows, or of documents that enter a buffer
        first_epoch = self.first // self.rows if self.rows else 0
        for epoch in range(first_epoch, min(-(-self.stop // self.rows), first_epoch + MAX_EPOCHS) if self.rows else 0):
            key = derive_key("component", run.order.seed, name, epoch)
            permutation = Permutation(run.order.permutation, length=self.rows, key=key)
            if mixed:
                permutation = mixed.stream_of(self._number, epoch)[0]
            self._permutations[epoch] = self._buffered.of_pass(epoch).stream if self._buffered else permutation

    def measures(self) -> list[Measure]:
        """Return each measure at its most surprising epoch, near the first position of the phase."""
        of_epochs: list[list[Measure]] = []
        for epoch, permutation in self._permutations.items():
            first = max(0, self.first - epoch * self.rows)
            near = first * permutation.length // self.rows  # of rows, or of the documents that enter a buffer
            of_epochs.append(measure_order(take_sample(permutation.length, permutation, permutation.inverse, near=near)))
        return [most_surprising(of_measure) for of_measure in zip(*of_epochs, strict=True)]

    def in_order(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sorted positions at which the phase draws the rows (with a buffer, their middle tokens), and each position's row."""
        middles = rows * self.laid.seq_len + self.laid.seq_len // 2
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for epoch, permutation in self._permutations.items():
            if self._buffered:
                which, pieces = self._buffered.of_pass(epoch).pieces_of(middles, middles + 1)
                found.append((epoch * self.rows + pieces.row, which))
            elif self._mixed is None:
                found.append((epoch * self.rows + permutation.inverse(rows), np.arange(len(rows))))
        if self._mixed:
            which, _, pieces = self._mixed.pieces_in(self._number, middles, middles + 1)
            found.append((pieces.row, which))
        positions, which = np.concatenate([np.empty((2, 0), np.int64), *(np.array(each) for each in found)], axis=1)
        in_order = np.argsort(positions, kind="stable")
        in_order = in_order[(positions[in_order] >= self.positions[0]) & (positions[in_order] < self.positions[-1])]
        return positions[in_order], which[in_order]


def _shift_rows(drawn: _Drawn) -> list[dict[str, Any]]:
    of_rows, source_file, document_length = _row_signals(drawn.laid)
    positions, which = drawn.in_order(of_rows)
    if not len(positions):
        return []
    few = _spread(np.arange(len(positions)), TOKEN_MIX_ROWS)
    different, again = np.unique(of_rows[which[few]], return_inverse=True)
    signals = {
        "source file": source_file[which],
        "document length": document_length[which],
        "token mix": _token_mix(drawn.laid, different)[again],
    }
    rows: list[dict[str, Any]] = []
    for name, signal in signals.items():
        shift = find_shift(signal)
        places = positions if len(signal) == len(positions) else positions[few]
        change = places[min(shift.at, len(places) - 1)]
        rows.append(
            {
                "component": drawn.name,
                "signal": name,
                "rows_looked_at": len(signal),
                "change_at_step": round(float(np.interp(change, drawn.positions, drawn.steps))),  # exact to a block of the mixture
                "before": shift.before,
                "after": shift.after,
                "shift_deviations": shift.deviations,
                "p_value": shift.p_value,
            }
        )
    return rows


@dataclass(frozen=True)
class Shift:
    """The largest change of a signal's mean: its position, the means, the size in standard deviations, and the p-value or its bound."""

    at: int
    before: float
    after: float
    deviations: float
    p_value: float


def find_shift(signal: np.ndarray) -> Shift:
    """Find the largest change of a signal in training order. Ranks test the change, values measure its size."""
    deviation = float(signal.std()) if signal.size else 0.0
    if not deviation > 0:
        mean = float(signal.mean()) if signal.size else 0.0
        return Shift(len(signal), mean, mean, 0.0, 1.0)
    _, which, counts = np.unique(signal, return_inverse=True, return_counts=True)
    at, distance = cusum((np.cumsum(counts) - counts / 2)[which])  # of each value the number of smaller ones and half of its ties
    before, after = float(signal[:at].mean()), float(signal[at:].mean())
    return Shift(at, before, after, abs(after - before) / deviation, BROWNIAN_BRIDGE.chance(distance))


def _row_signals(laid: ComponentRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sorted row numbers, the ordinal of each row's source file, and the binary logarithm of its document's length."""
    cache = laid.cache
    # All shards, or evenly spaced shards with the maximum number of documents
    documents = [shard.documents for shard in cache.manifest.shards]
    share = min(1.0, MAX_DOCUMENTS / max(sum(documents), 1))
    shards: list[int] = _spread(np.flatnonzero(documents), max(1, math.floor(share * len(documents)))).tolist()
    # The rows whose middle lies in one of these shards, for packing `chunk` without listing all rows
    starts, seq_len = cache.starts, laid.seq_len
    if laid.rule.packing == "chunk":
        middle = seq_len // 2
        stretches = [(-((middle - starts[shard]) // seq_len), -((middle - starts[shard + 1]) // seq_len)) for shard in shards]
        rows = np.concatenate([np.arange(first, stop, dtype=np.int64) for first, stop in stretches])
        rows = rows[rows < laid.num_rows]
    else:
        rows = np.arange(laid.num_rows)
        rows = rows[np.isin(np.searchsorted(starts, laid.firsts(rows) + laid.used(rows) // 2, "right") - 1, shards)]
    rows = _spread(rows, MAX_ROWS)
    # The last token, length and file ordinal of each document in these shards
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
    return rows, np.concatenate(files)[document].astype(np.float64), np.log2(np.concatenate(lengths)[document])


def _token_mix(laid: ComponentRows, rows: np.ndarray) -> np.ndarray:
    """Project rows on the first principal component of square-rooted counts of frequent tokens, which separates languages and scripts."""
    cache, seq_len = laid.cache, laid.seq_len
    if laid.rule.packing == "chunk":
        piece = max(part for part in range(1, min(TOKEN_MIX_TOKENS, seq_len) + 1) if seq_len % part == 0)
        tokens = cache.rows(rows * (seq_len // piece), piece)
    else:  # shorter rows are padded with the end token, which does not count
        around = (cache.manifest.end_of_text, cache.manifest.begin_of_text)
        padding = next(token for token in around if token is not None)
        tokens = np.full((len(rows), min(TOKEN_MIX_TOKENS, seq_len)), padding, np.int32)
        ranges: list[TokenRange] = []
        for place, (first, used) in enumerate(zip(laid.firsts(rows).tolist(), laid.used(rows).tolist(), strict=True)):
            ranges += cache.read_piece(first, tokens[place, : min(used, tokens.shape[1])])
        fetch(ranges)
    counts = np.bincount(tokens.ravel())
    counts[[token for token in (cache.manifest.begin_of_text, cache.manifest.end_of_text) if token is not None and token < len(counts)]] = 0
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


def _spread(numbers: np.ndarray, count: int) -> np.ndarray:
    """Draw at most `count` numbers, one at random from each even stretch, so that the draw aligns with no period."""
    if len(numbers) <= count:
        return numbers
    places = (np.arange(count) + np.random.default_rng(len(numbers)).random(count)) * len(numbers) / count
    return numbers[places.astype(np.int64)]
