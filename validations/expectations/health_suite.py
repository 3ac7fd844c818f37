"""What is expected of a phase's training run, by its metrics: table `health`.

What stops: numbers that are not finite, loss spikes beyond the limit, experts that collapse, and rows without what every run measures.
What only warns: all that a person has to look at first, such as a balance of experts that was lost and found again. Gradient norm spikes
are among these, because clipping bounds what they do to the weights: where they do harm, the loss spikes too. A measure that the recipe
limits and that could not be made (no evaluation, a run too short) warns as well.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from phasewise.trainer.metrics import ALL_GROUPS
from phasewise.validations.evidence.health.phenomena import PHENOMENA, Measure, grad_norm_spikes_of, param_norm_jumps_of
from phasewise.validations.expectations.check import Check, Severity, expect_rows
from phasewise.validations.limits import HealthLimits

HEALTH_SUITE = "health"
TABLE = "health"
OF_GROUPS = {name(group) for name in (grad_norm_spikes_of, param_norm_jumps_of) for group in ALL_GROUPS}
_WHERE = "step {at_step}"
_PERCENT = " % of the updates"


class _Asked(NamedTuple):
    """How one measure is judged; `unit` follows value and limit."""

    expectation: str
    severity: Severity
    limit: float | None
    unit: str
    what_to_do: str


def health_checks(limits: HealthLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """The whole suite. A measure that was not made is judged by `IS_JUDGED` and `HAS_REQUIRED_NUMBERS`, not by its limit."""
    table = tables[TABLE]
    asked = _asked(limits)
    has_measured = {"measure", "is_measured"} <= set(table)
    measured = set(table["measure"][table["is_measured"].astype(bool)]) if has_measured else {*asked, *OF_GROUPS}
    of_measures = [_keeps_to(measure, how) for measure, how in asked.items() if measure in measured and how.limit is not None]
    spikes_of_groups = sorted(measured & OF_GROUPS)
    return (
        expect_rows(TABLE, "Judge a run that has made at least one update."),
        HAS_EVERY_MEASURE,
        HAS_REQUIRED_NUMBERS,
        IS_JUDGED,
        *of_measures,
        *((_groups_keep_to(spikes_of_groups, limits.max_spike_percent),) if spikes_of_groups else ()),
    )


HAS_EVERY_MEASURE = Check(
    table=TABLE,
    expectation="ExpectColumnDistinctValuesToContainSet",
    arguments={"column": "measure", "value_set": sorted(map(str, PHENOMENA))},
    severity="critical",
    asks="Every measure of health has a row.",
    what="the health table lacks measures ({observed})",
    found="{observed}",
    limit="every measure",
    where=f"table {TABLE}",
    what_to_do="Make the table with this version of the program.",
)
HAS_REQUIRED_NUMBERS = Check(
    table=TABLE,
    expectation="ExpectColumnValuesToBeInSet",
    arguments={"column": "has_required_numbers", "value_set": [True]},
    severity="critical",
    asks="The run measured what every run must measure.",
    what="{measure} can't be judged: {detail}",
    found="{detail}",
    limit="what every run measures",
    where="metrics.jsonl",
    what_to_do="Train the phase with this version of the trainer, which writes these numbers.",
)
IS_JUDGED = Check(
    table=TABLE,
    expectation="ExpectColumnValuesToBeInSet",
    arguments={"column": "is_unjudged", "value_set": [False]},
    severity="warning",
    asks="Whatever the recipe limits could be measured.",
    what="{measure} ({phenomenon}) is not judged: {detail}",
    found="{detail}",
    limit="{limit:g}",
    where="metrics.jsonl",
    what_to_do="Evaluate the model during the phase, train for longer, or take the limit out of the recipe.",
    accept_by=("measure",),
)


def _asked(limits: HealthLimits) -> dict[str, _Asked]:
    spikes = limits.max_spike_percent
    return {
        Measure.NON_FINITE: _Asked(
            "ExpectOnlyFiniteNumbers", "critical", 0, " values", "Go back to a checkpoint before that step; lower the learning rate."
        ),
        Measure.LOSS_SPIKES: _Asked(
            "ExpectSpikesWithinLimit", "critical", spikes, _PERCENT, "Look at the batches there; clip harder or use QK-norm."
        ),
        Measure.GRAD_NORM_SPIKES: _Asked(
            "ExpectSpikesWithinLimit", "warning", spikes, _PERCENT, "Look at the batches there; clip the gradients harder."
        ),
        Measure.LED_SPIKES: _Asked(
            "ExpectNoSpikeToBeLedByUpdates", "warning", 0, " spikes", "The instability is in the weights or the optimizer, not in the data."
        ),
        Measure.LM_HEAD_GROWTH: _Asked(
            "ExpectLmHeadToKeepItsNorm", "warning", limits.max_lm_head_growth, " times", "Switch z-loss on before the cooldown."
        ),
        Measure.LOSS_RISE: _Asked(
            "ExpectLossNotToRiseInCooldown", "warning", limits.max_loss_rise, " nats", "Look at the norm of lm_head; switch z-loss on."
        ),
        Measure.LOSS_SHIFT: _Asked(
            "ExpectLossAndEvaluationToMoveTogether",
            "warning",
            limits.max_loss_shift,
            " nats",
            "The data changed, not the model: judge the data order with `phasewise order`.",
        ),
        Measure.EMA_LAG: _Asked(
            "ExpectMovingAverageToLag", "warning", 1, " of the distance", "Check the direction and the decay of the moving average."
        ),
        Measure.EMA_GAP: _Asked(
            "ExpectEmaGapWithinLimit", "warning", limits.max_ema_gap, " nats", "Cool down, or evaluate the moving average."
        ),
        Measure.MAX_VIOLATION: _Asked(
            "ExpectExpertsToKeepTheirBalance",
            "critical",
            limits.max_violation,
            " of the mean",
            "Go back to a checkpoint before that step; balance with SMEBU or at another rate, or add the sequence-wise loss.",
        ),
        Measure.EARLY_VIOLATION: _Asked(
            "ExpectExpertsToKeepTheirBalance",
            "warning",
            limits.max_violation,
            " of the mean",
            "Compare the load on the experts and the loss before, in and after these steps; a larger balancing rate ends it earlier.",
        ),
        Measure.DATA_SHARE: _Asked(
            "ExpectDataInTime", "warning", limits.max_data_share, " of the time", "Give the loader more threads, or put the caches nearer."
        ),
    }


def _keeps_to(measure: str, how: _Asked) -> Check:
    phenomenon = PHENOMENA[measure]
    return Check(
        table=TABLE,
        expectation=how.expectation,
        arguments={"column": "value", "limit": how.limit, "row_condition": _measure_is("==", str(measure))},
        severity=how.severity,
        asks=f"No {phenomenon.name}: {measure} keeps to its limit. {phenomenon.described_in}.",
        what=f"{phenomenon.name}: {{detail}} (described in {phenomenon.described_in})",
        found=f"{{value:.3g}}{how.unit}",
        limit=f"at most {how.limit:g}{how.unit}",
        where=_WHERE,
        what_to_do=how.what_to_do,
    )


def _groups_keep_to(measures: list[str], limit: float) -> Check:
    return Check(
        table=TABLE,
        expectation="ExpectSpikesWithinLimit",
        arguments={"column": "value", "limit": limit, "row_condition": _measure_is("IN", measures)},
        severity="warning",
        asks="In no group of weights do the gradient norm or the weights' own norm jump more often than allowed.",
        what="{measure}: {detail} (described in {described_in})",
        found=f"{{value:.3g}}{_PERCENT}",
        limit=f"at most {limit:g}{_PERCENT}",
        where=_WHERE,
        what_to_do="See whether the loss spikes there too, and which weights move first.",
    )


def _measure_is(operator: str, measures: str | list[str]) -> dict[str, object]:
    """The rows that are judged, as Great Expectations reads a condition."""
    return {"type": "comparison", "column": {"name": "measure"}, "operator": operator, "parameter": measures}
