from typing import Any

import numpy as np
import pytest

from phasewise.trainer.metrics import Row
from phasewise.validations.evidence.health.evidence import MIN_UPDATES, Measure, health_evidence
from tests.validations.evidence.health.simulated import LIMITS


def found(rows: list[Row]) -> dict[str, Any]:
    table = health_evidence(rows, LIMITS, groups=()).set_index("measure", drop=False)
    return {measure: table.loc[measure] for measure in (Measure.LOSS_STEP_SPREAD, Measure.BATCH_HET)}


def rows_of(losses: np.ndarray, hets: np.ndarray | None = None) -> list[Row]:
    rows: list[Row] = [{"step": number + 1, "loss": float(loss)} for number, loss in enumerate(losses)]
    return rows if hets is None else [{**row, "batch_het": float(het)} for row, het in zip(rows, hets, strict=True)]


def test_the_spread_is_that_of_the_noise_and_not_of_the_trend_or_of_one_spike():
    rng = np.random.default_rng(0)
    losses = np.linspace(6, 3, 4000) + rng.normal(0, 0.05, 4000)
    losses[3000] += 10
    assert found(rows_of(losses))[Measure.LOSS_STEP_SPREAD].value == pytest.approx(0.05, rel=0.05)
    losses[:2000] += rng.normal(0, 5, 2000)
    assert found(rows_of(losses))[Measure.LOSS_STEP_SPREAD].value == pytest.approx(0.05, rel=0.05)


def test_the_parts_are_averaged_over_the_second_half_and_the_worst_is_named():
    hets = np.array([9.0] * 20 + [0.2] * 19 + [0.6])
    one = found(rows_of(np.ones(40), hets))[Measure.BATCH_HET]
    assert (one.value, one.at_step) == (pytest.approx(0.22), 40)
    assert np.isnan(one.limit)


def test_what_a_run_does_not_hold_is_not_measured_and_stops_nothing():
    few = found(rows_of(np.ones(2 * MIN_UPDATES)))
    assert not any(finding.is_measured for finding in few.values())
    assert all(finding.has_required_numbers and not finding.is_unjudged for finding in few.values())
