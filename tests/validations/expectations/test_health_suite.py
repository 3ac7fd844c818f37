import math
from typing import Any

import pandas as pd
import pytest

from phasewise.validations.evidence.health.evidence import Measure
from phasewise.validations.expectations.judging import Reason, judge_tables, reasons_for
from phasewise.validations.expectations.suites import SUITES
from tests.validations.evidence.health.simulated import LIMITS, Scenario, evidence, healthy_rows

WARNS = ("warning", "failed")
STOPS = ("critical", "failed")
ABOVE_LIMIT = {
    Measure.NON_FINITE: (1, STOPS),
    Measure.LOSS_SPIKES: (0.2, STOPS),
    Measure.GRAD_NORM_SPIKES: (0.2, WARNS),
    "grad_norm_spikes_percent/mlp": (0.2, WARNS),
    "param_norm_jumps_percent/norms": (0.2, WARNS),
    Measure.LED_SPIKES: (1, WARNS),
    Measure.LM_HEAD_GROWTH: (4.1, WARNS),
    Measure.LOSS_RISE: (0.03, WARNS),
    Measure.LOSS_SHIFT: (0.03, WARNS),
    Measure.EMA_LAG: (1.1, WARNS),
    Measure.EMA_GAP: (0.3, WARNS),
    Measure.DATA_SHARE: (0.2, WARNS),
}


@pytest.fixture(scope="module")
def healthy() -> pd.DataFrame:
    return evidence(healthy_rows(Scenario(updates=400)))


def judge(table: pd.DataFrame) -> tuple[set[tuple[str, str]], list[Reason]]:
    """Severity and outcome of what does not pass, and the reasons."""
    tables = {"health": table}
    results = judge_tables(tables, SUITES["health"].checks(LIMITS.model_dump(), tables))
    bad = {(result.check.severity, result.outcome) for result in results if result.outcome != "passed"}
    return bad, [reason for result in results for reason in reasons_for(result, tables)]


def with_cells(table: pd.DataFrame, measure: str, **cells: Any) -> pd.DataFrame:
    copy = table.copy()
    for name, value in cells.items():
        copy.loc[copy["measure"] == measure, name] = value
    return copy


def test_a_healthy_run_passes_without_a_word(healthy: pd.DataFrame):
    assert judge(healthy) == (set(), [])


@pytest.mark.parametrize("measure", ABOVE_LIMIT)
def test_each_measure_above_its_limit_stops_or_warns_and_names_its_section(healthy: pd.DataFrame, measure: str):
    value, expected = ABOVE_LIMIT[measure]
    bad, (reason,) = judge(with_cells(healthy, measure, value=value, at_step=7))
    assert bad == {expected}
    assert "described in Marin " in reason.what or "described in Trinity Large report" in reason.what
    assert reason.where == "step 7"


def test_an_empty_table_never_passes(healthy: pd.DataFrame):
    bad, reasons = judge(healthy.iloc[:0])
    assert STOPS in bad
    assert reasons


def test_a_table_without_one_measure_stops(healthy: pd.DataFrame):
    assert judge(healthy[healthy["measure"] != Measure.NON_FINITE])[0] == {STOPS}


def test_what_could_not_be_measured_warns_and_what_every_run_measures_stops(healthy: pd.DataFrame):
    unmeasured = with_cells(healthy, Measure.EMA_GAP, value=math.nan, is_measured=False, is_unjudged=True)
    bad, (reason,) = judge(unmeasured)
    assert bad == {WARNS}
    assert reason.what.startswith("ema_gap (EMA gap) is not judged: ")
    assert judge(with_cells(unmeasured, Measure.EMA_GAP, has_required_numbers=False))[0] == {WARNS, STOPS}
