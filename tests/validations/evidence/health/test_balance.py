from typing import Any

import numpy as np
import pandas as pd
import pytest

from phasewise.trainer.metrics import Row
from phasewise.validations.evidence.health.phenomena import Measure
from phasewise.validations.expectations.suites import SUITES
from tests.validations.evidence.health.simulated import LIMITS, Scenario, evidence, healthy_rows

LIMITED = LIMITS.but(max_violation=5.0)
UPDATES = 200
UNBALANCED = healthy_rows(Scenario(updates=UPDATES))


def rows_with(violations: np.ndarray) -> list[Row]:
    return [{**row, "max_violation": float(violation)} for row, violation in zip(UNBALANCED, violations, strict=False)]


def found(rows: list[Row], limits: Any = LIMITED, measure: Measure = Measure.MAX_VIOLATION) -> Any:
    table = evidence(rows, limits)
    return table[table["measure"] == measure].iloc[0]


def early(violations: np.ndarray) -> Any:
    return found(rows_with(violations), measure=Measure.EARLY_VIOLATION)


def noise(level: float) -> np.ndarray:
    return level + np.random.default_rng(0).normal(0, 0.1, UPDATES)


def test_a_run_that_loses_its_balance_is_found_where_it_is_worst():
    """As the report tells of Trinity Large's failed run: balanced at first, then 7 to 10."""
    row = found(rows_with(noise(0.8) + np.maximum(0, (np.arange(UPDATES) - 120) / 10)))
    assert (row.value > 5.0, row.at_step) == (True, UNBALANCED[-1]["step"])
    assert "times the tokens of the mean" in row.detail


def changed(rows: slice, level: float) -> np.ndarray:
    violations = noise(0.8)
    violations[rows] = level
    return violations


@pytest.mark.parametrize(("violations", "late", "passing"), [
    (changed(slice(0), 0.0), False, False),
    (changed(slice(60), 9.0), False, True),  # a fresh router may take time to find its balance
    (changed(slice(80, None), 9.0), True, True),  # what is lost in the middle and stays lost
    (changed(slice(None, None, 4), 30.0), False, False),  # single batches on few experts are no collapse
])  # fmt: skip
def test_only_a_lasting_imbalance_is_found_in_its_half(violations: np.ndarray, late: bool, passing: bool):
    rows = rows_with(violations)
    assert (found(rows).value > 5.0, found(rows, measure=Measure.EARLY_VIOLATION).value > 5.0) == (late, passing)


def test_what_a_recipe_limits_and_no_row_holds_stops_and_too_few_updates_are_said_to_be_unjudged():
    row, few = found(UNBALANCED), found(rows_with(noise(0.8)[:5]))
    assert (row.is_unjudged, row.has_required_numbers) == (True, False)
    assert (few.is_unjudged, few.has_required_numbers) == (True, True)
    assert "fewer than 16 updates" in few.detail
    for rows in (rows_with(noise(0.8)[:5]), UNBALANCED):
        table = evidence(rows, LIMITED)
        unjudged = list(table["measure"][table["is_unjudged"]])
        assert (unjudged.count(Measure.MAX_VIOLATION), unjudged.count(Measure.EARLY_VIOLATION)) == (1, 0)


def test_a_balance_that_was_lost_and_found_again_is_told_and_does_not_stop():
    violations = changed(slice(30, 70), 8.0)
    row = early(violations)
    assert row.limit < row.value == pytest.approx(8.0)
    first = UNBALANCED[0]["step"]
    assert f"between steps {first + 30} and {first + 69}, and found again" in row.detail
    assert "9 times the tokens of the mean" in row.detail
    assert found(rows_with(violations)).value < 1.0
    assert "and later as well" in early(changed(slice(60, None), 9.0)).detail


@pytest.mark.parametrize("start", range(0, UPDATES - 24, 16))
def test_no_place_of_a_lasting_imbalance_is_looked_at_by_neither(start: int):
    violations = changed(slice(start, start + 24), 8.0)
    assert max(found(rows_with(violations)).value, early(violations).value) == pytest.approx(8.0)


def test_the_check_stops_and_is_asked_only_where_there_is_a_limit():
    def asked(limits: Any) -> list[str]:
        checks = SUITES["health"].checks(limits.model_dump(), {"health": pd.DataFrame(evidence(rows_with(noise(0.8)), limits))})
        return sorted(check.severity for check in checks if check.expectation == "ExpectExpertsToKeepTheirBalance")

    assert (asked(LIMITED), asked(LIMITS)) == (["critical", "warning"], [])
