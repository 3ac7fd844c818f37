"""Evidence about the order in which a phase draws its data: does it mix, and will the data change on the way?"""

from typing import Any

import numpy as np
import pandas as pd

from phasewise.trainer.config import Component, RunConfig
from phasewise.trainer.data.cache import TokenCache, build_maps
from phasewise.trainer.data.document_buffer import BufferedComponent
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import RowsOfTokens
from phasewise.trainer.data.permutation import Permutation, derive_key
from phasewise.validations.evidence.order.measures import Sample, judge_measures, measure_order, take_sample
from phasewise.validations.evidence.order.null import Measure, most_surprising
from phasewise.validations.evidence.order.signals import SIGNALS, TOKEN_MIX_ROWS, find_shift, row_signals, spread, token_mix
from phasewise.validations.limits import OrderLimits

MAX_EPOCHS = 8
"""Epochs of a component that are judged, from the first that the phase draws from."""
ORDER_COLUMNS = (
    "component", "rows", "drawn", "permutation", "measure", "value", "limit", "bound", "p_value", "passes", "detail",
    "judged_p_value", "components", "components_failing",
)  # fmt: skip
SHIFT_COLUMNS = (
    "component", "signal", "rows_looked_at", "change_at_step", "before", "after", "shift_deviations", "p_value", "sure_deviations",
)  # fmt: skip


def order_evidence(run: RunConfig, limits: OrderLimits) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `order` (a row a component and measure) and `shifts` (a row a component and signal) of what a phase draws.

    The false-alarm rate is shared evenly by all rows of both. The columns, where their names do not say it:

    * `bound`: whether `limit` is the largest (`max`) or the smallest (`min`) value that passes;
    * `p_value`: the chance under a true random permutation of a value so far out, or a bound above it;
    * `judged_p_value`: that of the table's least likely row, and 1 in all others: one kind of permutation orders a whole phase, and fails
      once;
    * `sure_deviations`: `shift_deviations` where chance does not explain the change at that rate, else 0.

    A component without a whole row has no row here; the mixture's evidence reports it. `shifts` is empty where nothing limits them.

    Raises:
        DataError: a cache cannot be read.
    """
    # Every component that the phase draws, if it has a row to draw
    schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
    changes = {step for values in (run.mixture, run.batch) for step, _ in values.root if run.start_step < step < run.stop_step}
    steps = np.array(sorted({run.start_step, run.stop_step, *changes}))
    before = [schedule.realised(0, int(step)) for step in steps]
    maps = build_maps()
    drawn = list[_Drawn]()
    for name in schedule.realised(run.start_step, run.stop_step):
        cache = TokenCache.open(run.caches[name], maps)
        found = _Drawn(run, name, cache, steps, np.array([each.get(name, 0) for each in before]))
        if found.rows:
            drawn.append(found)
    shifts = [row for each in drawn for row in _shift_rows(run, each)] if limits.max_shift_deviations is not None else []
    measured = [(each, _measure(run, each)) for each in drawn]
    rate = limits.false_alarm_rate / max(1, len(shifts) + sum(len(measures) for _, measures in measured))
    for row in shifts:
        row["sure_deviations"] = row["shift_deviations"] if row["p_value"] < rate else 0.0
    order = [row for each, measures in measured for row in _order_rows(run, each, measures, rate)]
    worst = min(range(len(order)), key=lambda number: order[number]["p_value"], default=0)
    components, failing = {row["component"] for row in order}, {row["component"] for row in order if not row["passes"]}
    for number, row in enumerate(order):
        row["judged_p_value"] = row["p_value"] if number == worst else 1.0
        row["components"] = len(components)
        row["components_failing"] = len(failing)
    return pd.DataFrame(order, columns=list(ORDER_COLUMNS)), pd.DataFrame(shifts, columns=list(SHIFT_COLUMNS))


class _Drawn:
    """What a phase draws of a component: positions `[first, stop)` since step 0, which run through epochs of `rows` rows."""

    def __init__(self, run: RunConfig, name: Component, cache: TokenCache, steps: np.ndarray, positions: np.ndarray):
        self.name, self.laid = name, RowsOfTokens(cache, run.packing, run.model.seq_len)
        self.rows = self.laid.num_rows
        self._steps, self._positions = steps, positions
        has_buffer = run.order.buffer_documents is not None
        self._buffered = BufferedComponent(name, cache, run.order, run.model.seq_len) if has_buffer else None
        self.first = int(positions[0])
        self.stop = int(positions[-1])

    @property
    def epochs(self) -> range:
        """The epochs that are judged."""
        first = self.first // self.rows
        return range(first, min(-(-self.stop // self.rows), first + MAX_EPOCHS))

    def permutation(self, run: RunConfig, epoch: int) -> Permutation:
        """The order of an epoch, as the loader has it: of rows, or of the documents that come to a buffer."""
        if self._buffered is not None:
            return self._buffered.stream(epoch)
        key = derive_key("component", run.order.seed, self.name, epoch)
        return Permutation.build(run.order.permutation, length=self.rows, key=key)

    def sample(self, run: RunConfig, epoch: int) -> Sample:
        """What is judged of an epoch's order, near to where the phase begins to draw."""
        permutation = self.permutation(run, epoch)
        first = max(0, self.first - epoch * self.rows)
        return take_sample(permutation, near=first if self._buffered is None else first * permutation.length // self.rows)

    def step_of(self, position: float) -> int:
        """About which step draws a position: exact to a block of the mixture."""
        return round(float(np.interp(position, self._positions, self._steps)))

    def in_order(self, run: RunConfig, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The positions at which the phase draws some rows, in order, and which of the rows each one is.

        Where documents come from a buffer, a row of the cache is drawn where the token at its middle is.
        """
        positions = np.concatenate([self._positions_in(run, epoch, rows) for epoch in self.epochs])
        which = np.argsort(positions)
        which = which[(positions[which] >= self.first) & (positions[which] < self.stop)]
        return positions[which], which % len(rows)

    def _positions_in(self, run: RunConfig, epoch: int, rows: np.ndarray) -> np.ndarray:
        """The positions at which an epoch draws rows; -1 for one that it does not draw."""
        if self._buffered is None:
            return epoch * self.rows + self.permutation(run, epoch).inverse(rows)
        seq_len = run.model.seq_len
        places = self._buffered.of_pass(epoch).rows_of(rows * seq_len + seq_len // 2)
        return np.where(places < 0, -1, epoch * self.rows + places)


def _measure(run: RunConfig, drawn: _Drawn) -> list[Measure]:
    """Each measure at its most surprising among the epochs; nearest to where the phase begins to draw."""
    samples = [drawn.sample(run, epoch) for epoch in drawn.epochs]
    return [most_surprising(of_epochs) for of_epochs in zip(*map(measure_order, samples), strict=True)]


def _order_rows(run: RunConfig, drawn: _Drawn, measures: list[Measure], rate: float) -> list[dict[str, Any]]:
    return [
        {
            "component": drawn.name,
            "rows": drawn.rows,
            "drawn": drawn.stop - drawn.first,
            "permutation": run.order.permutation,
            "measure": one.name,
            "value": one.value,
            "limit": one.limit,
            "bound": one.bound,
            "p_value": one.p_value,
            "passes": one.passes,
            "detail": one.detail,
        }
        for one in judge_measures(measures, rate)
    ]


def _shift_rows(run: RunConfig, drawn: _Drawn) -> list[dict[str, Any]]:
    """Each signal of what is drawn, in the order in which it is drawn."""
    of_rows = row_signals(drawn.laid)
    positions, which = drawn.in_order(run, of_rows.rows)
    if not len(positions):
        return []
    few = spread(np.arange(len(positions)), TOKEN_MIX_ROWS)
    different, again = np.unique(of_rows.rows[which[few]], return_inverse=True)
    signals = (of_rows.source_file[which], of_rows.document_length[which], token_mix(drawn.laid, different)[again])
    rows: list[dict[str, Any]] = []
    for name, signal in zip(SIGNALS, signals, strict=True):
        shift = find_shift(signal)
        places = positions if len(signal) == len(positions) else positions[few]
        rows.append(
            {
                "component": drawn.name,
                "signal": name,
                "rows_looked_at": len(signal),
                "change_at_step": drawn.step_of(places[min(shift.at, len(places) - 1)]),
                "before": shift.before,
                "after": shift.after,
                "shift_deviations": shift.deviations,
                "p_value": shift.p_value,
            }
        )
    return rows
