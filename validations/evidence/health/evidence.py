"""The health table: one row a measure of a training run, with its finding in plain words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from phasewise.trainer.metrics import ALL_GROUPS, Row
from phasewise.validations.evidence.health.metrics import (
    Figure,
    Floats,
    Metrics,
    data_share,
    direction_norm,
    ema_gap,
    growth,
    growth_resolution,
    read_columns,
    regimes,
    relative_growth,
    stretches,
    update_over_ema_distance,
)
from phasewise.validations.evidence.health.spikes import (
    LEAD_UPDATES,
    MIN_WINDOW,
    Change,
    Spikes,
    find_leads,
    find_spikes,
    largest_rise,
    largest_shift,
)
from phasewise.validations.limits import HealthLimits

COLUMNS = (
    "measure", "phenomenon", "described_in", "value", "limit", "at_step", "is_measured", "has_required_numbers", "is_unjudged", "detail",
)  # fmt: skip
NOWHERE = -1
BY_GROUP = "/"
"""Stands in a measure's name before the group of weights that it is of."""
LM_HEAD = "lm_head"
REQUIRED = ("loss", "grad_norm", "update_norm", "param_norm", "learning_rate", "data_seconds", "seconds")
"""Columns of every run, besides the norms by group; without them there is no verdict."""
REQUIRED_OF_GROUPS = ("grad_norm", "update_norm", "param_norm")
"""Columns of each group of weights that the model has."""
MAX_RATIO_OF_AN_AVERAGE = 1.0
"""An update moves the weights by less than their distance from an average over several updates: the definition of an average."""
BALANCE_WINDOW, MIN_UPDATES = 32, 16
"""Updates whose median counts: one batch that falls on few experts is no collapse. Fewer than the second are not judged."""


class Measure(StrEnum):
    """The measures of the health table, besides those by group of weights."""

    NON_FINITE = "non_finite_values"
    LOSS_SPIKES = "loss_spikes_percent"
    GRAD_NORM_SPIKES = "grad_norm_spikes_percent"
    LED_SPIKES = "loss_spikes_led_by_update_norm"
    LM_HEAD_GROWTH = "lm_head_growth"
    LOSS_RISE = "loss_rise_at_falling_learning_rate"
    LOSS_SHIFT = "loss_shift_at_flat_evaluation"
    EMA_LAG = "update_over_ema_distance"
    EMA_GAP = "ema_gap"
    DATA_SHARE = "data_share"
    MAX_VIOLATION = "max_violation"
    EARLY_VIOLATION = "early_max_violation"
    LOSS_STEP_SPREAD = "loss_step_spread"
    BATCH_HET = "batch_het"


class Phenomenon(NamedTuple):
    """The name of a thing that happened to a run, and the section that describes it."""

    name: str
    described_in: str


def grad_norm_spikes_of(group: str) -> str:
    """The measure's name."""
    return f"grad_norm_spikes_percent{BY_GROUP}{group}"


def param_norm_jumps_of(group: str) -> str:
    """The measure's name."""
    return f"param_norm_jumps_percent{BY_GROUP}{group}"


def _phenomenon(name: str, document: str, section: str) -> Phenomenon:
    return Phenomenon(name, f'{document}, section "{section}"')


_MARIN_8B, _MARIN_32B, _TRINITY = "Marin 8B retrospective", "Marin 32B retrospective", "Trinity Large report"
_CLIPPING, _Z_LOSS = "1. Tightened max grad norm clipping", "Spoonbill: Z-loss to the rescue"
PHENOMENA: dict[str, Phenomenon] = {
    Measure.NON_FINITE: _phenomenon("divergence", _MARIN_32B, "Alternative Optimizers (`exp1388`, `exp1380`)"),
    Measure.LOSS_SPIKES: _phenomenon("loss spikes", _MARIN_32B, "Phase 1: Scaling up our existing recipe"),
    Measure.GRAD_NORM_SPIKES: _phenomenon("gradient norm spikes", _MARIN_32B, _CLIPPING),
    Measure.LED_SPIKES: _phenomenon("update norm leads loss", _MARIN_32B, "2. Clip Update Norm"),
    Measure.LM_HEAD_GROWTH: _phenomenon("lm_head explodes (Spoonbill)", _MARIN_8B, _Z_LOSS),
    Measure.LOSS_RISE: _phenomenon("loss creeps up in the cooldown (Raccoon)", _MARIN_8B, "Raccoon: Debugging SFT-ability"),
    Measure.LOSS_SHIFT: _phenomenon("data order shifts the loss (Bison)", _MARIN_32B, "Shuffling anomaly"),
    Measure.EMA_LAG: _phenomenon("moving average the wrong way round (Ocelot)", _MARIN_8B, "Adjusted Hyperparameters"),
    Measure.EMA_GAP: _phenomenon("EMA gap", _MARIN_8B, "The EMA Gap"),
    Measure.DATA_SHARE: _phenomenon("training waits for data", _TRINITY, "3.2 Data Preparation"),
    Measure.MAX_VIOLATION: _phenomenon("experts collapse", _TRINITY, "6 Discussion"),
    Measure.EARLY_VIOLATION: _phenomenon("experts off their balance for a time", _TRINITY, "6 Discussion"),
    Measure.LOSS_STEP_SPREAD: _phenomenon("batches unlike each other", _TRINITY, "3.2 Data Preparation"),
    Measure.BATCH_HET: _phenomenon("parts of a batch unlike each other", _TRINITY, "3.2 Data Preparation"),
    **{grad_norm_spikes_of(group): _phenomenon("gradient norm spikes, by group", _MARIN_32B, _CLIPPING) for group in ALL_GROUPS},
    **{param_norm_jumps_of(group): _phenomenon("parameter norm jumps, by group", _MARIN_8B, _Z_LOSS) for group in ALL_GROUPS},
}
"""Measure → the phenomenon that it looks for, by its name in the record."""


@dataclass(frozen=True)
class Finding:
    """A row of the table; `limit` is None if the recipe sets none."""

    measure: str
    value: float
    limit: float | None
    at_step: int
    detail: str
    is_measured: bool = True
    has_required_numbers: bool = True

    def row(self) -> dict[str, object]:
        """As a row of the table."""
        phenomenon = PHENOMENA[self.measure]
        return {
            "measure": str(self.measure),
            "phenomenon": phenomenon.name,
            "described_in": phenomenon.described_in,
            "value": float(self.value),
            "limit": math.nan if self.limit is None else float(self.limit),
            "at_step": self.at_step,
            "is_measured": self.is_measured,
            "has_required_numbers": self.has_required_numbers,
            "is_unjudged": not self.is_measured and self.limit is not None and BY_GROUP not in self.measure,
            "detail": self.detail,
        }


def health_evidence(metrics: Sequence[Row], limits: HealthLimits, *, groups: Sequence[str]) -> pd.DataFrame:
    """One row a measure of the run whose rows these are; no rows give an empty table.

    Args:
        groups: the groups of weights that the model has (`trainer.norms.groups`). A measure of another group is not looked for.

    The columns, where their names do not say it:

    * `described_in`: the document and section that describe the phenomenon;
    * `value`: NaN if it could not be measured; `limit`: the most that is allowed, NaN if the recipe does not look for it;
    * `at_step`: where the phenomenon is, or is worst; -1 if it is nowhere;
    * `has_required_numbers`: the rows hold the columns of the measure, or a run may lack them (evaluations, an average);
    * `is_unjudged`: the recipe limits it and it could not be measured; for groups of weights, the measure of all of them says so.
    """
    if not metrics:
        return pd.DataFrame(columns=list(COLUMNS))
    found = read_columns(metrics)
    absent = [group for group in ALL_GROUPS if group not in groups]
    findings = [
        _non_finite(found, groups),
        *_spikes(found, limits, groups),
        *(
            _not_looked_for(measure(group), f"the model has no weights of the group {group}")
            for measure in (grad_norm_spikes_of, param_norm_jumps_of)
            for group in absent
        ),
        _rise(found, limits.max_loss_rise),
        _shift(found, limits.max_loss_shift),
        _lm_head(found, limits.max_lm_head_growth, groups),
        _ema_lag(found),
        _ema_gap(found, limits.max_ema_gap),
        _data_share(found, limits.max_data_share),
        *_balance(found, limits.max_violation),
        _loss_spread(found),
        _batch_het(found),
    ]
    return pd.DataFrame([finding.row() for finding in findings], columns=list(COLUMNS))


def _not_looked_for(measure: str, why: str = "the recipe sets no limit, so it is not looked for") -> Finding:
    return Finding(measure, math.nan, None, NOWHERE, why, is_measured=False)


def _not_measured(measure: str, limit: float | None, missing: Sequence[str] = (), *, why: str = "", may_lack: bool = False) -> Finding:
    """A measure that could not be made: the rows lack numbers, or have too few. `may_lack`: not every run has them."""
    detail = f"no row holds {', '.join(missing)}" if missing else why
    return Finding(measure, math.nan, limit, NOWHERE, detail, is_measured=False, has_required_numbers=may_lack or not missing)


def _unmade(metrics: Metrics, measure: str, limit: float | None, *names: str) -> Finding | None:
    """The finding of a measure without a limit or without one of its columns; None if it can be made."""
    if limit is None:
        return _not_looked_for(measure)
    missing = metrics.lacks(*names)
    return _not_measured(measure, limit, missing) if missing else None


def _non_finite(metrics: Metrics, groups: Sequence[str]) -> Finding:
    bad = metrics.non_finite
    missing = metrics.lacks(*REQUIRED, *(f"{norm}/{group}" for norm in REQUIRED_OF_GROUPS for group in groups))
    detail = f"{len(bad)} values are no finite numbers, the first is {bad[0].name}" if bad else "every value is a finite number"
    if missing:
        detail += f"; no row holds {', '.join(missing)}"
    return Finding(Measure.NON_FINITE, len(bad), 0, bad[0].step if bad else NOWHERE, detail, has_required_numbers=not missing)


def _spikes(metrics: Metrics, limits: HealthLimits, groups: Sequence[str]) -> list[Finding]:
    within = regimes(metrics)

    def find(values: Floats, resolution: Floats | None = None) -> Spikes:
        return find_spikes(values, within, deviations=limits.spike_deviations, window=limits.spike_window, resolution=resolution)

    names: dict[str, str] = {Measure.LOSS_SPIKES: "loss", Measure.GRAD_NORM_SPIKES: "grad_norm"}
    names |= {grad_norm_spikes_of(group): f"grad_norm/{group}" for group in groups}
    found = {measure: find(metrics[name]) for measure, name in names.items()}
    for group in groups:
        measure = param_norm_jumps_of(group)
        names[measure] = f"param_norm/{group}"
        found[measure] = find(relative_growth(metrics, names[measure]), growth_resolution(metrics))
    findings = [_spiking(metrics, measure, name, found[measure], limits.max_spike_percent) for measure, name in names.items()]
    return [*findings, _led(metrics, found[Measure.LOSS_SPIKES], limits)]


def _spiking(metrics: Metrics, measure: str, name: str, spikes: Spikes, limit: float) -> Finding:
    if unmade := _unmade(metrics, measure, limit, name):
        return unmade
    if not spikes.scored:
        why = f"no value has the {MIN_WINDOW} values before it, since the run's start or its last change, that it is scored against"
        return _not_measured(measure, limit, why=why)
    rows = spikes.is_spike.nonzero()[0]
    detail = f"{len(rows)} of {spikes.scored} scored values (of {len(metrics.steps)})"
    if not len(rows):
        return Finding(measure, 0.0, limit, NOWHERE, f"{detail} are spikes")
    worst = int(rows[spikes.deviations[rows].argmax()])
    height = spikes.deviations[worst]
    detail += f", the highest {height:.3g} standard deviations above the updates before it; the first at step {metrics.steps[rows[0]]}"
    return Finding(measure, spikes.percent, limit, int(metrics.steps[worst]), detail)


def _led(metrics: Metrics, spikes: Spikes, limits: HealthLimits) -> Finding:
    measure = Measure.LED_SPIKES
    if unmade := _unmade(metrics, measure, 0, "loss", "update_norm", "learning_rate"):
        return unmade
    if not spikes.scored:
        return _not_measured(measure, 0, why="no loss could be scored as a spike or none")
    leads = find_leads(spikes, direction_norm(metrics), deviations=limits.spike_deviations, window=limits.spike_window)
    if not leads:
        return Finding(measure, 0, 0, NOWHERE, f"the update norm rises in the {LEAD_UPDATES} updates before no loss spike")
    first = leads[0]
    detail = (
        f"the update norm rose before {len(leads)} loss spikes; before the one at step {metrics.steps[first.row]} "
        f"it was at {first.factor:.2g} times its usual value, {first.updates} updates earlier"
    )
    return Finding(measure, len(leads), 0, int(metrics.steps[first.row]), detail)


def _rise(metrics: Metrics, limit: float | None) -> Finding:
    measure = Measure.LOSS_RISE
    if unmade := _unmade(metrics, measure, limit, "loss", "learning_rate"):
        return unmade
    rise = largest_rise(metrics, stretches(metrics))
    if rise is None:
        return _not_measured(measure, limit, why="the learning rate falls nowhere for long enough to tell a trend from noise")
    if not rise.certain:
        return Finding(measure, 0.0, limit, NOWHERE, f"no rise is clear of the noise: up to {rise.resolution:.2g} nats could hide in it")
    detail = f"from step {rise.step} on the loss rises by {_told(rise)} while the learning rate falls"
    return Finding(measure, rise.certain, limit, rise.step, detail)


def _shift(metrics: Metrics, limit: float | None) -> Finding:
    measure = Measure.LOSS_SHIFT
    if unmade := _unmade(metrics, measure, limit, "loss", "learning_rate"):
        return unmade
    found = stretches(metrics)
    shift = largest_shift(metrics, found, needs_evaluation=True)
    if shift is None:
        unfollowed = largest_shift(metrics, found, needs_evaluation=False)
        why = "no two evaluations (eval_loss) surround a place where it could be"
        if unfollowed is None:
            why = "the run is too short, or its settings change too often, to tell a shift from noise"
        elif not unfollowed.certain:
            why += "; the training loss alone shows none"
        else:
            why += f"; the training loss shifts by {_told(unfollowed)} at step {unfollowed.step}: evaluate checkpoints before and after it"
        return _not_measured(measure, limit, why=why, may_lack=True)
    if not shift.certain:
        detail = f"no shift that the evaluation does not follow is clear of the noise: up to {shift.resolution:.2g} nats could hide in it"
        return Finding(measure, 0.0, limit, NOWHERE, detail)
    detail = f"at step {shift.step} the loss shifts by {_told(shift)}, while the evaluation loss moves by {shift.evaluation:.2g}"
    return Finding(measure, shift.certain, limit, shift.step, detail)


def _told(change: Change) -> str:
    return f"{change.estimate:+.2g} nats ({change.certain:.2g} of it certain)"


def _lm_head(metrics: Metrics, limit: float | None, groups: Sequence[str]) -> Finding:
    measure = Measure.LM_HEAD_GROWTH
    if unmade := _unmade(metrics, measure, limit, f"param_norm/{LM_HEAD}"):
        return unmade
    grown = {group: growth(metrics, f"param_norm/{group}") for group in groups}
    head = grown.pop(LM_HEAD)
    if head is None:
        return _not_measured(measure, limit, why="fewer than two updates hold the norm of lm_head")
    others = ", ".join(f"{group} {other.factor:.2f}" for group, other in grown.items() if other)
    detail = f"since step {head.since_step} its norm reaches {head.factor:.2f} times what it was (others: {others})"
    return Finding(measure, head.factor, limit, head.step, detail)


def _ema_lag(metrics: Metrics) -> Finding:
    lag = update_over_ema_distance(metrics)
    if lag is None:
        return _not_looked_for(Measure.EMA_LAG, "the run keeps no moving average (no ema_distance)")
    detail = f"an update moves the weights by {lag.value:.2g} times their distance from the moving average"
    return Finding(Measure.EMA_LAG, lag.value, MAX_RATIO_OF_AN_AVERAGE, lag.step, detail)


def _ema_gap(metrics: Metrics, limit: float | None) -> Finding:
    if limit is None:
        return _not_looked_for(Measure.EMA_GAP)
    gap = ema_gap(metrics)
    if gap is None:
        missing = metrics.lacks("eval_loss", "ema_eval_loss")
        return _not_measured(Measure.EMA_GAP, limit, missing, why="no step holds both losses", may_lack=True)
    detail = f"the weights' evaluation loss is up to {gap.value:+.3g} nats above that of their moving average"
    return Finding(Measure.EMA_GAP, gap.value, limit, gap.step, detail)


def _data_share(metrics: Metrics, limit: float | None) -> Finding:
    measure = Measure.DATA_SHARE
    if unmade := _unmade(metrics, measure, limit, "data_seconds", "seconds"):
        return unmade
    share = data_share(metrics)
    if share is None:
        return _not_measured(measure, limit, why="no two updates of one process follow each other")
    detail = f"{100 * share.value:.1f} % of the time was spent waiting for batches, the longest wait at step {share.step}"
    return Finding(measure, share.value, limit, share.step, detail)


class Medians(NamedTuple):
    """The median of `max_violation` over each window of updates in a row.

    Attributes:
        values: of each window, the earliest first.
        first_steps, last_steps: the updates that each begins and ends with.
        is_early: the window begins in the run's first half.
    """

    values: Floats
    first_steps: NDArray[np.int64]
    last_steps: NDArray[np.int64]
    is_early: NDArray[np.bool_]

    def worst(self, *, early: bool) -> Figure:
        """The largest median of the windows that begin in one half of the run, and the last update of its window."""
        chosen = np.flatnonzero(self.is_early == early)
        worst = chosen[np.argmax(self.values[chosen])]
        return Figure(float(self.values[worst]), int(self.last_steps[worst]))


def medians_of(metrics: Metrics) -> Medians | None:
    """None if there are too few updates. Each window of the run is either early or not; together they are all."""
    values = metrics["max_violation"]
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) < MIN_UPDATES:
        return None
    half = len(rows) // 2
    length = min(BALANCE_WINDOW, len(rows) - half)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values[rows], length), axis=1)
    steps = metrics.steps[rows]
    return Medians(medians, steps[: len(medians)], steps[length - 1 :], np.arange(len(medians)) < half)


def _balance(metrics: Metrics, limit: float | None) -> list[Finding]:
    """Whether the balance is lost in the run's second half, which stops a phase, and whether it was for a time before, which warns.

    MaxVio (Wang et al., 2024): how far the busiest expert of the worst layer is above the mean; num_experts / num_active − 1 where all
    tokens have the same experts. A fresh router has to find its balance first, so the first half cannot stop a phase. Windows that begin
    in the first half and reach into the second count as early.
    """
    late, early = Measure.MAX_VIOLATION, Measure.EARLY_VIOLATION
    if limit is None:
        return [_not_looked_for(late), _not_looked_for(early)]
    medians = medians_of(metrics)
    if medians is None:
        missing = metrics.lacks("max_violation")
        finding = _not_measured(late, limit, missing, why=f"fewer than {MIN_UPDATES} updates", may_lack=not missing)
        return [finding, _not_looked_for(early, f"{late} says why")]
    lasting, passing = medians.worst(early=False), medians.worst(early=True)
    detail = f"in the worst layer the busiest expert had up to {1 + passing.value:.3g} times the tokens of the mean"
    if passing.value > limit:
        # the first and the last update above the limit, within the early windows whose median is; at least half of a window's are
        windows = np.flatnonzero(medians.is_early & (medians.values > limit))
        is_within = (metrics.steps >= medians.first_steps[windows[0]]) & (metrics.steps <= medians.last_steps[windows[-1]])
        steps = metrics.steps[is_within & (metrics["max_violation"] > limit)]
        ending = "found again" if lasting.value <= limit else "later as well"
        detail += f"; off its balance between steps {steps[0]} and {steps[-1]}, and {ending}"
    lasting_detail = f"in the worst layer the busiest expert has lastingly {1 + lasting.value:.3g} times the tokens of the mean"
    return [Finding(late, lasting.value, limit, lasting.step, lasting_detail), Finding(early, passing.value, limit, passing.step, detail)]


def _loss_spread(metrics: Metrics) -> Finding:
    """The noise of one update's loss, in nats a token, over the run's second half: the root of half the mean square of its changes.

    A long document that fills batch after batch raises it, and an order that mixes lowers it (Trinity Large report, section 3.2).
    Medians in place of the mean: one spike is no spread. Of normal numbers the median of squares is 0.455 of the mean.
    """
    losses = metrics["loss"]
    changes = np.diff(losses[len(losses) // 2 :])
    changes = changes[np.isfinite(changes)]
    if len(changes) < MIN_UPDATES:
        missing = metrics.lacks("loss")
        return _not_measured(Measure.LOSS_STEP_SPREAD, None, missing, why=f"fewer than {MIN_UPDATES} updates in the second half")
    spread = float(np.sqrt(np.median(changes**2) / 0.455 / 2))
    return Finding(Measure.LOSS_STEP_SPREAD, spread, None, NOWHERE, f"nats a token, over the last {len(changes)} updates")


def _batch_het(metrics: Metrics) -> Finding:
    values = metrics["batch_het"][len(metrics.steps) // 2 :]
    found = np.isfinite(values)
    if not found.any():
        return _not_measured(Measure.BATCH_HET, None, why="the batches are not cut into parts", may_lack=True)
    worst = int(np.nanargmax(values)) + len(metrics.steps) - len(values)
    detail = f"nats a token, the mean over the last {int(found.sum())} updates; at most {np.nanmax(values):.3g}"
    return Finding(Measure.BATCH_HET, float(values[found].mean()), None, int(metrics.steps[worst]), detail)
