"""The health table: one row a measure, with what it found in plain words."""

import math
from collections.abc import Sequence

import pandas as pd

from phasewise.trainer.metrics import ALL_GROUPS, Row
from phasewise.validations.evidence.health.averages import (
    data_share,
    direction_norm,
    ema_gap,
    growth,
    growth_resolution,
    relative_growth,
    update_over_ema_distance,
)
from phasewise.validations.evidence.health.balance import balance_findings
from phasewise.validations.evidence.health.finding import COLUMNS, Finding, absent_group, not_measured, turned_off
from phasewise.validations.evidence.health.metrics import Floats, Metrics, read_columns, regimes, stretches
from phasewise.validations.evidence.health.phenomena import Measure, grad_norm_spikes_of, param_norm_jumps_of
from phasewise.validations.evidence.health.shifts import Change, largest_rise, largest_shift
from phasewise.validations.evidence.health.spikes import LEAD_UPDATES, MIN_WINDOW, Spikes, find_leads, find_spikes
from phasewise.validations.evidence.health.spread import spread_findings
from phasewise.validations.limits import HealthLimits

LM_HEAD = "lm_head"
REQUIRED = ("loss", "grad_norm", "update_norm", "param_norm", "learning_rate", "data_seconds", "seconds")
"""What the rows of every run hold, besides the norms by group; without them there is no verdict."""
REQUIRED_OF_GROUPS = ("grad_norm", "update_norm", "param_norm")
"""What they hold of each group of weights that the model has."""
MAX_RATIO_OF_AN_AVERAGE = 1.0
"""An update moves the weights by less than their distance from an average over several updates: what the average is, not a threshold."""


def health_evidence(metrics: Sequence[Row], limits: HealthLimits, *, groups: Sequence[str]) -> pd.DataFrame:
    """One row a measure of the run whose rows these are; no rows give an empty table.

    Args:
        groups: the groups of weights that the model has (`trainer.norms.groups`). A measure of another group is not looked for.

    The columns, where their names do not say it:

    * `described_in`: the document and section that describe the phenomenon;
    * `value`: NaN where it could not be measured; `limit`: the most that is allowed, NaN where the recipe does not look for it;
    * `at_step`: where the phenomenon is, or is worst; -1 where it is nowhere;
    * `has_required_numbers`: the rows hold what the measure is made of, or it is of those that a run may lack (evaluations, an average);
    * `is_unjudged`: the recipe limits it and it could not be measured; for groups of weights, the measure of all of them says so.
    """
    if not metrics:
        return pd.DataFrame(columns=list(COLUMNS))
    found = read_columns(metrics)
    spikes = [*_spikes(found, limits, groups), *_of_absent_groups(groups)]
    averages = _averages(found, limits, groups)
    balance, spread = balance_findings(found, limits.max_violation), spread_findings(found)
    findings = [_non_finite(found, groups), *spikes, *_changes(found, limits), *averages, *balance, *spread]
    return pd.DataFrame([finding.row() for finding in findings], columns=list(COLUMNS))


def _non_finite(metrics: Metrics, groups: Sequence[str]) -> Finding:
    bad = metrics.non_finite
    missing = metrics.lacks(*REQUIRED, *(f"{norm}/{group}" for norm in REQUIRED_OF_GROUPS for group in groups))
    first = bad[0] if bad else None
    detail = f"{len(bad)} values are no finite numbers, the first is {first.name}" if first else "every value is a finite number"
    if missing:
        detail += f"; no row holds {', '.join(missing)}"
    return Finding(Measure.NON_FINITE, len(bad), 0, first.step if first else -1, detail, has_required_numbers=not missing)


def _spikes(metrics: Metrics, limits: HealthLimits, groups: Sequence[str]) -> list[Finding]:
    names: dict[str, str] = {Measure.LOSS_SPIKES: "loss", Measure.GRAD_NORM_SPIKES: "grad_norm"}
    names |= {grad_norm_spikes_of(group): f"grad_norm/{group}" for group in groups}
    found = {measure: _find(metrics, metrics[name], limits) for measure, name in names.items()}
    for group in groups:
        measure = param_norm_jumps_of(group)
        names[measure] = f"param_norm/{group}"
        found[measure] = _find(metrics, relative_growth(metrics, names[measure]), limits, resolution=growth_resolution(metrics))
    findings = [_spiking(metrics, measure, name, found[measure], limits) for measure, name in names.items()]
    return [*findings, _led(metrics, found[Measure.LOSS_SPIKES], limits)]


def _of_absent_groups(groups: Sequence[str]) -> list[Finding]:
    absent = [group for group in ALL_GROUPS if group not in groups]
    return [absent_group(measure(group), group) for measure in (grad_norm_spikes_of, param_norm_jumps_of) for group in absent]


def _find(metrics: Metrics, values: Floats, limits: HealthLimits, resolution: Floats | None = None) -> Spikes:
    return find_spikes(values, regimes(metrics), deviations=limits.spike_deviations, window=limits.spike_window, resolution=resolution)


def _spiking(metrics: Metrics, measure: str, name: str, spikes: Spikes, limits: HealthLimits) -> Finding:
    if missing := metrics.lacks(name):
        return not_measured(measure, limits.max_spike_percent, missing)
    if not spikes.scored:
        why = f"no value has the {MIN_WINDOW} values before it, since the run's start or its last change, that it is scored against"
        return not_measured(measure, limits.max_spike_percent, why=why)
    rows = spikes.is_spike.nonzero()[0]
    count = int(spikes.is_spike.sum())
    detail = f"{count} of {spikes.scored} scored values (of {len(metrics.steps)})"
    if not count:
        return Finding(measure, 0.0, limits.max_spike_percent, -1, f"{detail} are spikes")
    worst = int(rows[spikes.deviations[rows].argmax()])
    height = spikes.deviations[worst]
    detail += f", the highest {height:.3g} standard deviations above the updates before it; the first at step {metrics.steps[rows[0]]}"
    return Finding(measure, spikes.percent, limits.max_spike_percent, int(metrics.steps[worst]), detail)


def _led(metrics: Metrics, spikes: Spikes, limits: HealthLimits) -> Finding:
    if missing := metrics.lacks("loss", "update_norm", "learning_rate"):
        return not_measured(Measure.LED_SPIKES, 0, missing)
    if not spikes.scored:
        return not_measured(Measure.LED_SPIKES, 0, why="no loss could be scored as a spike or none")
    norms = direction_norm(metrics)
    leads = find_leads(spikes, norms, deviations=limits.spike_deviations, window=limits.spike_window)
    if not leads:
        return Finding(Measure.LED_SPIKES, 0, 0, -1, f"the update norm rises in the {LEAD_UPDATES} updates before no loss spike")
    first = leads[0]
    detail = (
        f"the update norm rose before {len(leads)} loss spikes; before the one at step {metrics.steps[first.row]} "
        f"it was at {first.factor:.2g} times its usual value, {first.updates} updates earlier"
    )
    return Finding(Measure.LED_SPIKES, len(leads), 0, int(metrics.steps[first.row]), detail)


def _changes(metrics: Metrics, limits: HealthLimits) -> list[Finding]:
    return [_rise(metrics, limits.max_loss_rise), _shift(metrics, limits.max_loss_shift)]


def _rise(metrics: Metrics, limit: float | None) -> Finding:
    measure = Measure.LOSS_RISE
    if limit is None:
        return turned_off(measure)
    if missing := metrics.lacks("loss", "learning_rate"):
        return not_measured(measure, limit, missing)
    rise = largest_rise(metrics, stretches(metrics))
    if rise is None:
        return not_measured(measure, limit, why="the learning rate falls nowhere for long enough to tell a trend from noise")
    if not rise.certain:
        return Finding(measure, 0.0, limit, -1, f"no rise is clear of the noise: up to {rise.resolution:.2g} nats could hide in it")
    detail = f"from step {rise.step} on the loss rises by {_told(rise)} while the learning rate falls"
    return Finding(measure, rise.certain, limit, rise.step, detail)


def _shift(metrics: Metrics, limit: float | None) -> Finding:
    measure = Measure.LOSS_SHIFT
    if limit is None:
        return turned_off(measure)
    if missing := metrics.lacks("loss", "learning_rate"):
        return not_measured(measure, limit, missing)
    found = stretches(metrics)
    shift = largest_shift(metrics, found, needs_evaluation=True)
    if shift is None:
        return not_measured(measure, limit, why=_why_no_shift(largest_shift(metrics, found, needs_evaluation=False)), may_lack=True)
    if not shift.certain:
        detail = f"no shift that the evaluation does not follow is clear of the noise: up to {shift.resolution:.2g} nats could hide in it"
        return Finding(measure, 0.0, limit, -1, detail)
    detail = f"at step {shift.step} the loss shifts by {_told(shift)}, while the evaluation loss moves by {shift.evaluation:.2g}"
    return Finding(measure, shift.certain, limit, shift.step, detail)


def _why_no_shift(shift: Change | None) -> str:
    if shift is None:
        return "the run is too short, or its settings change too often, to tell a shift from noise"
    why = "no two evaluations (eval_loss) surround a place where it could be"
    if not shift.certain:
        return f"{why}; the training loss alone shows none"
    return f"{why}; the training loss shifts by {_told(shift)} at step {shift.step}: evaluate checkpoints before and after it"


def _told(change: Change) -> str:
    return f"{change.estimate:+.2g} nats ({change.certain:.2g} of it certain)"


def _averages(metrics: Metrics, limits: HealthLimits, groups: Sequence[str]) -> list[Finding]:
    head = _lm_head(metrics, limits.max_lm_head_growth, groups)
    return [head, _ema_lag(metrics), _gap(metrics, limits.max_ema_gap), _data(metrics, limits)]


def _lm_head(metrics: Metrics, limit: float | None, groups: Sequence[str]) -> Finding:
    measure = Measure.LM_HEAD_GROWTH
    if limit is None:
        return turned_off(measure)
    names = {group: f"param_norm/{group}" for group in groups}
    if missing := metrics.lacks(names[LM_HEAD]):
        return not_measured(measure, limit, missing)
    grown = {group: growth(metrics, name) for group, name in names.items()}
    head = grown.pop(LM_HEAD)
    if head is None:
        return not_measured(measure, limit, why="fewer than two updates hold the norm of lm_head")
    others = ", ".join(f"{group} {other.factor:.2f}" for group, other in grown.items() if other)
    detail = f"since step {head.since_step} its norm reaches {head.factor:.2f} times what it was (others: {others})"
    return Finding(measure, head.factor, limit, head.step, detail)


def _ema_lag(metrics: Metrics) -> Finding:
    measure = Measure.EMA_LAG
    limit = MAX_RATIO_OF_AN_AVERAGE
    lag = update_over_ema_distance(metrics)
    if lag is None:
        return Finding(measure, math.nan, math.nan, -1, "the run keeps no moving average (no ema_distance)", is_measured=False)
    detail = f"an update moves the weights by {lag.value:.2g} times their distance from the moving average"
    return Finding(measure, lag.value, limit, lag.step, detail)


def _gap(metrics: Metrics, limit: float | None) -> Finding:
    measure = Measure.EMA_GAP
    if limit is None:
        return turned_off(measure)
    gap = ema_gap(metrics)
    if gap is None:
        return not_measured(measure, limit, metrics.lacks("eval_loss", "ema_eval_loss"), why="no step holds both losses", may_lack=True)
    detail = f"the weights' evaluation loss is up to {gap.value:+.3g} nats above that of their moving average"
    return Finding(measure, gap.value, limit, gap.step, detail)


def _data(metrics: Metrics, limits: HealthLimits) -> Finding:
    measure = Measure.DATA_SHARE
    limit = limits.max_data_share
    if limit is None:
        return turned_off(measure)
    if missing := metrics.lacks("data_seconds", "seconds"):
        return not_measured(measure, limit, missing)
    share = data_share(metrics)
    if share is None:
        return not_measured(measure, limit, why="no two updates of one process follow each other")
    detail = f"{100 * share.value:.1f} % of the time was spent waiting for batches, the longest wait at step {share.step}"
    return Finding(measure, share.value, limit, share.step, detail)
