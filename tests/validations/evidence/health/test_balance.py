"""Experts that collapse, in rows of runs as they are and as they must not be."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from phasewise.trainer.metrics import Row
from phasewise.validations.evidence.health.evidence import Measure
from phasewise.validations.expectations.suites import SUITES
from tests.validations.evidence.health.simulated import LIMITS, Scenario, evidence, healthy_rows

LIMITED = LIMITS.but(max_violation=5.0)
UPDATES = 200


def rows_with(violations: np.ndarray) -> list[Row]:
    rows = healthy_rows(Scenario(updates=len(violations)))
    return [{**row, "max_violation": float(violation)} for row, violation in zip(rows, violations, strict=True)]


def found(rows: list[Row], limits: Any = LIMITED, measure: Measure = Measure.MAX_VIOLATION) -> Any:
    table = evidence(rows, limits)
    return table[table["measure"] == measure].iloc[0]


def early(violations: np.ndarray) -> Any:
    return found(rows_with(violations), measure=Measure.EARLY_VIOLATION)


def noise(level: float) -> np.ndarray:
    return level + np.random.default_rng(0).normal(0, 0.1, UPDATES)


def test_balanced_experts_are_far_below_the_limit():
    assert found(rows_with(noise(0.6))).value == pytest.approx(0.6, abs=0.1)


def test_a_run_that_loses_its_balance_is_found_where_it_is_worst():
    """As the report tells of Trinity Large's failed run: balanced at first, then 7 to 10."""
    rising = noise(0.8) + np.where(np.arange(UPDATES) > 120, (np.arange(UPDATES) - 120) / 10, 0)
    row = found(rows_with(rising))
    assert row.value > 5.0
    assert row.at_step == healthy_rows(Scenario(updates=UPDATES))[-1]["step"]
    assert "times the tokens of the mean" in row.detail


def test_a_fresh_router_may_take_time_to_find_its_balance():
    violations = noise(0.8)
    violations[:60] = 9.0
    assert found(rows_with(violations)).value < 1.0


def test_what_is_lost_in_the_middle_and_stays_lost_is_found():
    violations = noise(0.8)
    violations[80:] = 9.0
    assert found(rows_with(violations)).value == 9.0


def test_single_batches_on_few_experts_are_no_collapse():
    spiky = noise(0.8)
    spiky[::4] = 30.0
    assert found(rows_with(spiky)).value < 5.0


def test_what_a_recipe_limits_and_no_row_holds_stops():
    row = found(healthy_rows(Scenario(updates=UPDATES)))
    assert not row.has_required_numbers
    assert row.is_unjudged


def test_too_few_updates_are_said_to_be_unjudged():
    row = found(rows_with(noise(0.8)[:5]))
    assert row.is_unjudged
    assert row.has_required_numbers
    assert "fewer than 16 updates" in row.detail


def test_a_balance_that_was_lost_and_found_again_is_told_and_does_not_stop():
    violations = noise(0.8)
    violations[30:70] = 8.0
    row = early(violations)
    assert row.value == pytest.approx(8.0)
    assert row.value > row.limit
    first = healthy_rows(Scenario(updates=UPDATES))[0]["step"]
    assert f"between steps {first + 30} and {first + 69}, and found again" in row.detail
    assert "9 times the tokens of the mean" in row.detail
    assert found(rows_with(violations)).value < 1.0


@pytest.mark.parametrize("start", range(0, UPDATES - 24, 4))
def test_no_place_of_a_lasting_imbalance_is_looked_at_by_neither(start: int):
    violations = noise(0.8)
    violations[start : start + 24] = 8.0
    rows = rows_with(violations)
    assert max(found(rows).value, early(violations).value) == pytest.approx(8.0)


def test_what_is_not_found_again_is_said_to_be_so():
    violations = noise(0.8)
    violations[60:] = 9.0
    assert "and later as well" in early(violations).detail


def test_single_batches_warn_of_nothing():
    spiky = noise(0.8)
    spiky[::4] = 30.0
    assert early(spiky).value < 5.0


def test_an_early_imbalance_that_could_not_be_measured_is_said_once():
    for rows in (rows_with(noise(0.8)[:5]), healthy_rows(Scenario(updates=UPDATES))):
        table = evidence(rows, LIMITED)
        assert list(table["measure"][table["is_unjudged"]]).count(Measure.MAX_VIOLATION) == 1
        assert Measure.EARLY_VIOLATION not in set(table["measure"][table["is_unjudged"]])


def test_the_check_stops_and_is_asked_only_where_there_is_a_limit():
    def asked(limits: Any) -> list[str]:
        table = pd.DataFrame(evidence(rows_with(noise(0.8)), limits))
        checks = [
            check
            for check in SUITES["health"].checks(limits.model_dump(), {"health": table})
            if check.expectation == "ExpectExpertsToKeepTheirBalance"
        ]
        return [check.severity for check in checks]

    assert sorted(asked(LIMITED)) == ["critical", "warning"]
    assert asked(LIMITS) == []
