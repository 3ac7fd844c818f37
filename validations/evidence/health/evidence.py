"""The health table: a row per measure of a training run, with its finding in plain words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phasewise.trainer.metrics import ALL_GROUPS, Row
from phasewise.validations.evidence.health.metrics import (
    LEAD_UPDATES,
    MIN_WINDOW,
    Floats,
    Metrics,
    Spikes,
    find_leads,
    find_spikes,
    largest_rise,
    largest_shift,
    read_columns,
    regimes,
    stretches,
)
from phasewise.validations.evidence.health.phenomena import GROUP_MEASURES, PHENOMENA, Measure
from phasewise.validations.limits import HealthLimits

COLUMNS = (
    "measure", "phenomenon", "described_in", "value", "limit", "at_step", "is_measured", "has_required_numbers", "is_unjudged", "detail",
)  # fmt: skip
NOWHERE = -1
LM_HEAD = "lm_head"
REQUIRED = ("loss", "grad_norm", "update_norm", "param_norm", "learning_rate", "data_seconds", "seconds")
"""Columns that a verdict needs from every run."""
REQUIRED_OF_GROUPS = ("grad_norm", "update_norm", "param_norm")  # columns that a verdict needs for each group of weights of the model
MAX_RATIO_OF_AN_AVERAGE = 1.0
"""By the definition of an average over several updates, an update is shorter than the weights' distance from the average."""
BALANCE_WINDOW, MIN_UPDATES = 32, 16
"""Updates of a median, because one batch on few experts is not a collapse, and the minimum number of updates to judge."""
SETTLING_SHARE = 0.25  # fresh weights are small and grow at first: from scratch, growth counts after this share of the run
NORM_RESOLUTION = 1e-6  # relative difference of two norms that float32 resolves


@dataclass(frozen=True)
class _Finding:
    """A row of the table. `limit` is None if the recipe sets no limit."""

    measure: str
    value: float
    limit: float | None
    at_step: int
    detail: str
    is_measured: bool = True
    has_required_numbers: bool = True


_Outcome = tuple[float, int, str] | str  # value, step and detail, or the reason for a missing value


def health_evidence(metrics: Sequence[Row], limits: HealthLimits, *, groups: Sequence[str]) -> pd.DataFrame:
    """Build a row per measure of a run from its metrics. Without metrics, the table is empty. `groups`: groups of weights of the model.

    * `value`: NaN if it could not be measured. `limit`: the allowed maximum, NaN without a limit.
    * `at_step`: The step of the phenomenon or of its worst value, -1 without one.
    * `has_required_numbers`: The rows hold the columns of the measure, or the columns are optional (evaluations, an average).
    * `is_unjudged`: The measure has a limit and no value. The measure of all weights covers measures per group.
    """
    if not metrics:
        return pd.DataFrame(columns=list(COLUMNS))
    found = read_columns(metrics)
    bad = found.non_finite
    missing = found.lacks(*REQUIRED, *(f"{norm}/{group}" for norm in REQUIRED_OF_GROUPS for group in groups))
    detail = f"{len(bad)} values are no finite numbers, the first is {bad[0][1]}" if bad else "every value is a finite number"
    if missing:
        detail += f"; no row holds {', '.join(missing)}"
    step = bad[0][0] if bad else NOWHERE
    findings = [_Finding(Measure.NON_FINITE, len(bad), 0, step, detail, has_required_numbers=not missing), *_spikes(found, limits, groups)]
    for measure in GROUP_MEASURES:
        absent = [group for group in ALL_GROUPS if group not in groups]
        findings += [_skipped(f"{measure}/{group}", f"the model has no weights of the group {group}") for group in absent]
    losses, waits = ("loss", "learning_rate"), ("data_seconds", "seconds")
    findings += [
        _judged(Measure.LOSS_RISE, limits.max_loss_rise, found.lacks(*losses), lambda: _rise(found)),
        _judged(Measure.LOSS_SHIFT, limits.max_loss_shift, found.lacks(*losses), lambda: _shift(found)),
        _judged(Measure.LM_HEAD_GROWTH, limits.max_lm_head_growth, found.lacks(f"param_norm/{LM_HEAD}"), lambda: _lm_head(found, groups)),
        *_moving_average(found, limits.max_ema_gap),
        _judged(Measure.DATA_SHARE, limits.max_data_share, found.lacks(*waits), lambda: _data_share(found)),
        *_balance(found, limits.max_violation),
        *_batch_spread(found),
    ]
    rows: list[dict[str, object]] = []
    for finding in findings:
        phenomenon = PHENOMENA[finding.measure]
        rows.append(
            {
                "measure": str(finding.measure),
                "phenomenon": phenomenon.name,
                "described_in": phenomenon.described_in,
                "value": float(finding.value),
                "limit": math.nan if finding.limit is None else float(finding.limit),
                "at_step": finding.at_step,
                "is_measured": finding.is_measured,
                "has_required_numbers": finding.has_required_numbers,
                "is_unjudged": not finding.is_measured and finding.limit is not None and "/" not in finding.measure,
                "detail": finding.detail,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _skipped(measure: str, why: str = "the recipe sets no limit, so it is not looked for") -> _Finding:
    return _Finding(measure, math.nan, None, NOWHERE, why, is_measured=False)


def _not_measured(measure: str, limit: float | None, missing: Sequence[str] = (), *, why: str = "", may_lack: bool = False) -> _Finding:
    """Report missing columns, or the reason `why`. `may_lack`: the columns are optional."""
    detail = f"no row holds {', '.join(missing)}" if missing else why
    return _Finding(measure, math.nan, limit, NOWHERE, detail, is_measured=False, has_required_numbers=may_lack or not missing)


def _judged(measure: str, limit: float | None, missing: Sequence[str], outcome: Callable[[], _Outcome]) -> _Finding:
    if limit is None:
        return _skipped(measure)
    found = "" if missing else outcome()
    if isinstance(found, str):
        return _not_measured(measure, limit, missing, why=found)
    value, step, detail = found
    return _Finding(measure, value, limit, step, detail)


def _spikes(metrics: Metrics, limits: HealthLimits, groups: Sequence[str]) -> list[_Finding]:
    """Find spikes of the loss and the gradient norms, jumps of the groups' norms, and loss spikes after a rise of the update norm."""
    rates = metrics["learning_rate"]
    # Relative growth of a norm in one update, divided by the learning rate, that may be rounding
    rounding = np.divide(NORM_RESOLUTION, rates, out=np.full(len(rates), np.nan), where=rates > NORM_RESOLUTION**2)
    series: dict[str, tuple[str, Floats, Floats | None]] = {}
    names: dict[str, str] = {Measure.LOSS_SPIKES: "loss", Measure.GRAD_NORM_SPIKES: "grad_norm"}
    for measure, name in (names | {f"{GROUP_MEASURES[0]}/{group}": f"grad_norm/{group}" for group in groups}).items():
        series[measure] = name, metrics[name], None
    for group in groups:
        name = f"param_norm/{group}"
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            growth = np.diff(np.log(metrics[name]), prepend=np.nan) / rates
        series[f"{GROUP_MEASURES[1]}/{group}"] = name, np.where(np.isfinite(growth), growth, np.nan), rounding
    window, within, maximum = limits.spike_window, regimes(metrics), limits.max_spike_percent
    of_loss: Spikes | None = None
    findings: list[_Finding] = []
    for measure, (name, values, resolution) in series.items():
        spikes = find_spikes(values, within, deviations=limits.spike_deviations, window=window, resolution=resolution)
        of_loss = of_loss or spikes
        if missing := metrics.lacks(name):
            findings.append(_not_measured(measure, maximum, missing))
            continue
        if not spikes.scored:
            why = f"no value has the {MIN_WINDOW} values before it, since the run's start or its last change, that it is scored against"
            findings.append(_not_measured(measure, maximum, why=why))
            continue
        rows = spikes.is_spike.nonzero()[0]
        detail = f"{len(rows)} of {spikes.scored} scored values (of {len(metrics.steps)})"
        if not len(rows):
            findings.append(_Finding(measure, 0.0, maximum, NOWHERE, f"{detail} are spikes"))
            continue
        worst = int(rows[spikes.deviations[rows].argmax()])
        height, first = spikes.deviations[worst], metrics.steps[rows[0]]
        detail += f", the highest {height:.3g} standard deviations above the updates before it; the first at step {first}"
        findings.append(_Finding(measure, 100 * len(rows) / spikes.scored, maximum, int(metrics.steps[worst]), detail))
    assert of_loss is not None
    missing = metrics.lacks("loss", "update_norm", "learning_rate")
    if missing or not of_loss.scored:
        return [*findings, _not_measured(Measure.LED_SPIKES, 0, missing, why="no loss could be scored as a spike or none")]

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lengths = metrics["update_norm"] / rates
    lengths = np.where(np.isfinite(lengths), lengths, np.nan)
    leads = find_leads(of_loss, lengths, deviations=limits.spike_deviations, window=window)
    step, detail = NOWHERE, f"the update norm rises in the {LEAD_UPDATES} updates before no loss spike"
    if leads:
        step = int(metrics.steps[leads[0].row])
        detail = (
            f"the update norm rose before {len(leads)} loss spikes; before the one at step {step} "
            f"it was at {leads[0].factor:.2g} times its usual value, {leads[0].updates} updates earlier"
        )
    return [*findings, _Finding(Measure.LED_SPIKES, len(leads), 0, step, detail)]


def _rise(metrics: Metrics) -> _Outcome:
    rise = largest_rise(metrics, stretches(metrics))
    if rise is None:
        return "the learning rate falls nowhere for long enough to tell a trend from noise"
    if not rise.certain:
        return 0.0, NOWHERE, f"no rise is clear of the noise: up to {rise.resolution:.2g} nats could hide in it"
    return rise.certain, rise.step, f"from step {rise.step} on the loss rises by {rise} while the learning rate falls"


def _shift(metrics: Metrics) -> _Outcome:
    found = stretches(metrics)
    shift = largest_shift(metrics, found, needs_evaluation=True)
    if shift is None:
        unfollowed = largest_shift(metrics, found, needs_evaluation=False)
        if unfollowed is None:
            return "the run is too short, or its settings change too often, to tell a shift from noise"
        why = "no two evaluations (eval_loss) surround a place where it could be; the training loss"
        if not unfollowed.certain:
            return f"{why} alone shows none"
        return f"{why} shifts by {unfollowed} at step {unfollowed.step}: evaluate checkpoints before and after it"
    if not shift.certain:
        detail = f"no shift that the evaluation does not follow is clear of the noise: up to {shift.resolution:.2g} nats could hide in it"
        return 0.0, NOWHERE, detail
    detail = f"at step {shift.step} the loss shifts by {shift}, while the evaluation loss moves by {shift.evaluation:.2g}"
    return shift.certain, shift.step, detail


def _lm_head(metrics: Metrics, groups: Sequence[str]) -> _Outcome:
    factors: dict[str, float] = {}
    first_step = last_step = NOWHERE
    for group in groups:
        norms = metrics[f"param_norm/{group}"]
        rows = np.flatnonzero(np.isfinite(norms) & (norms > 0))
        if len(rows) < 2:
            continue
        since = rows[int(SETTLING_SHARE * len(rows))] if metrics.steps[0] == 1 else rows[0]
        later = rows[rows >= since]
        largest = later[np.argmax(norms[later])]
        factors[group] = float(norms[largest] / norms[since])
        if group == LM_HEAD:
            first_step, last_step = int(metrics.steps[since]), int(metrics.steps[largest])
    if LM_HEAD not in factors:
        return "fewer than two updates hold the norm of lm_head"
    head = factors.pop(LM_HEAD)
    others = ", ".join(f"{group} {factor:.2f}" for group, factor in factors.items())
    detail = f"since step {first_step} its norm reaches {head:.2f} times what it was (others: {others})"
    return head, last_step, detail


def _moving_average(metrics: Metrics, max_gap: float | None) -> list[_Finding]:
    """Measure an update's length in units of the weights' distance from the moving average (median), and the gap of the losses."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = metrics["update_norm"] / (metrics["ema_distance"] * metrics["param_norm"])
        gaps = metrics["eval_loss"] - metrics["ema_eval_loss"]
    lag = _skipped(Measure.EMA_LAG, "the run keeps no moving average (no ema_distance)")
    if len(rows := np.flatnonzero(np.isfinite(shares))):
        median = float(np.median(shares[rows]))
        detail = f"an update moves the weights by {median:.2g} times their distance from the moving average"
        lag = _Finding(Measure.EMA_LAG, median, MAX_RATIO_OF_AN_AVERAGE, int(metrics.steps[rows[0]]), detail)
    if max_gap is None:
        return [lag, _skipped(Measure.EMA_GAP)]
    rows = np.flatnonzero(np.isfinite(gaps))
    if not len(rows):
        missing = metrics.lacks("eval_loss", "ema_eval_loss")
        return [lag, _not_measured(Measure.EMA_GAP, max_gap, missing, why="no step holds both losses", may_lack=True)]
    worst = rows[np.argmax(gaps[rows])]
    detail = f"the weights' evaluation loss is up to {gaps[worst]:+.3g} nats above that of their moving average"
    return [lag, _Finding(Measure.EMA_GAP, float(gaps[worst]), max_gap, int(metrics.steps[worst]), detail)]


def _data_share(metrics: Metrics) -> _Outcome:
    """Measure the share of time spent waiting for batches, without the first update of each process."""
    waits = metrics["data_seconds"]
    durations = np.diff(metrics["seconds"], prepend=np.nan)
    rows = np.flatnonzero((waits >= 0) & (durations > 0) & np.isfinite(durations))
    if not len(rows):
        return "no two updates of one process follow each other"
    scale = float(durations[rows].max())
    share = min(1.0, float((waits[rows] / scale).sum() / (durations[rows] / scale).sum()))
    step = int(metrics.steps[rows[np.argmax(waits[rows])]])
    return share, step, f"{100 * share:.1f} % of the time was spent waiting for batches, the longest wait at step {step}"


def _balance(metrics: Metrics, limit: float | None) -> list[_Finding]:
    """Find a lost balance of the experts in the run's second half, which stops a phase, and in the first half, which warns.

    MaxVio (Wang et al., 2024) is the busiest expert's excess over the mean in the worst layer: num_experts / num_active − 1 if all tokens
    share the same experts. A fresh router first has to find its balance. A window belongs to the half in which it begins.
    """
    late, early = Measure.MAX_VIOLATION, Measure.EARLY_VIOLATION
    if limit is None:
        return [_skipped(late), _skipped(early)]
    violations = metrics["max_violation"]
    rows = np.flatnonzero(np.isfinite(violations))
    if len(rows) < MIN_UPDATES:
        missing = metrics.lacks("max_violation")
        finding = _not_measured(late, limit, missing, why=f"fewer than {MIN_UPDATES} updates", may_lack=not missing)
        return [finding, _skipped(early, f"{late} says why")]
    half = len(rows) // 2
    length = min(BALANCE_WINDOW, len(rows) - half)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(violations[rows], length), axis=1)
    first_steps, last_steps = metrics.steps[rows], metrics.steps[rows][length - 1 :]
    passing, lasting = int(np.argmax(medians[:half])), half + int(np.argmax(medians[half:]))
    detail = f"in the worst layer the busiest expert had up to {1 + medians[passing]:.3g} times the tokens of the mean"
    if medians[passing] > limit:
        # The first and the last update above the limit within the early windows above the limit
        windows = np.flatnonzero(medians[:half] > limit)
        is_within = (metrics.steps >= first_steps[windows[0]]) & (metrics.steps <= last_steps[windows[-1]])
        steps = metrics.steps[is_within & (violations > limit)]
        ending = "found again" if medians[lasting] <= limit else "later as well"
        detail += f"; off its balance between steps {steps[0]} and {steps[-1]}, and {ending}"
    lasting_detail = f"in the worst layer the busiest expert has lastingly {1 + medians[lasting]:.3g} times the tokens of the mean"
    return [
        _Finding(late, float(medians[lasting]), limit, int(last_steps[lasting]), lasting_detail),
        _Finding(early, float(medians[passing]), limit, int(last_steps[passing]), detail),
    ]


def _batch_spread(metrics: Metrics) -> list[_Finding]:
    """Measure the noise of one update's loss in nats a token (the root of half the mean square of its changes), and the batches' parts.

    Both cover the second half. A long document over several batches raises the noise, an order that mixes lowers it (Trinity Large report,
    section 3.2). The mean is estimated by the median, which spikes do not move: for normal numbers the median of squares is 0.455 of the
    mean.
    """
    half = len(metrics.steps) // 2
    changes = np.diff(metrics["loss"][half:])
    changes = changes[np.isfinite(changes)]
    if len(changes) < MIN_UPDATES:
        why = f"fewer than {MIN_UPDATES} updates in the second half"
        spread = _not_measured(Measure.LOSS_STEP_SPREAD, None, metrics.lacks("loss"), why=why)
    else:
        noise = float(np.sqrt(np.median(changes**2) / 0.455 / 2))
        spread = _Finding(Measure.LOSS_STEP_SPREAD, noise, None, NOWHERE, f"nats a token, over the last {len(changes)} updates")
    values = metrics["batch_het"][half:]
    found = np.isfinite(values)
    if not found.any():
        return [spread, _not_measured(Measure.BATCH_HET, None, why="the batches are not cut into parts", may_lack=True)]
    step = int(metrics.steps[half + int(np.nanargmax(values))])
    detail = f"nats a token, the mean over the last {int(found.sum())} updates; at most {np.nanmax(values):.3g}"
    return [spread, _Finding(Measure.BATCH_HET, float(values[found].mean()), None, step, detail)]
