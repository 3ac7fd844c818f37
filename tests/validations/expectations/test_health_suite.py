import math
from typing import Any

import pandas as pd
import pytest

from phasewise.validations.evidence.health.phenomena import Measure
from phasewise.validations.expectations.judging import Reason, judge_tables, reasons_for
from phasewise.validations.expectations.suites import SUITES
from tests.validations.evidence.health.simulated import LIMITS, Scenario, evidence, healthy_rows

WARNS = ("warning", "failed")
STOPS = ("critical", "failed")
STOPPING = {Measure.NON_FINITE: 1, Measure.LOSS_SPIKES: 0.2}
WARNING = {
    Measure.GRAD_NORM_SPIKES: 0.2, "grad_norm_spikes_percent/mlp": 0.2, "param_norm_jumps_percent/norms": 0.2, Measure.LED_SPIKES: 1,
    Measure.LM_HEAD_GROWTH: 4.1, Measure.LOSS_RISE: 0.03, Measure.LOSS_SHIFT: 0.03, Measure.EMA_LAG: 1.1, Measure.EMA_GAP: 0.3,
    Measure.DATA_SHARE: 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def healthy() -> pd.DataFrame:
    return evidence(healthy_rows(Scenario(updates=400)))


def judge(table: pd.DataFrame) -> tuple[set[tuple[str, str]], list[Reason]]:
    tables = {"health": table}
    results = judge_tables(tables, SUITES["health"].checks(LIMITS.model_dump(), tables))
    bad = {(result.check.severity, result.outcome) for result in results if result.outcome != "passed"}
    return bad, [reason for result in results for reason in reasons_for(result, tables)]


def with_cells(table: pd.DataFrame, measure: str, **cells: Any) -> pd.DataFrame:
    copy = table.copy()
    for name, value in cells.items():
        copy.loc[copy["measure"] == measure, name] = value
    return copy


@pytest.mark.parametrize(("measure", "value"), [*STOPPING.items(), *WARNING.items()])
def test_each_measure_above_its_limit_stops_or_warns_and_names_its_section(healthy: pd.DataFrame, measure: str, value: float):
    bad, (reason,) = judge(with_cells(healthy, measure, value=value, at_step=7))
    assert bad == {STOPS if measure in STOPPING else WARNS}
    assert "described in Marin " in reason.what or "described in Trinity Large report" in reason.what
    assert reason.where == "step 7"


def test_a_healthy_run_passes_without_a_word_and_a_table_that_is_empty_or_lacks_a_measure_does_not(healthy: pd.DataFrame):
    assert judge(healthy) == (set(), [])
    bad, reasons = judge(healthy.iloc[:0])
    assert STOPS in bad
    assert reasons
    assert judge(healthy[healthy["measure"] != Measure.NON_FINITE])[0] == {STOPS}


def test_what_could_not_be_measured_warns_and_what_every_run_measures_stops(healthy: pd.DataFrame):
    unmeasured = with_cells(healthy, Measure.EMA_GAP, value=math.nan, is_measured=False, is_unjudged=True)
    bad, (reason,) = judge(unmeasured)
    assert bad == {WARNS}
    assert reason.what.startswith("ema_gap (EMA gap) is not judged: ")
    assert judge(with_cells(unmeasured, Measure.EMA_GAP, has_required_numbers=False))[0] == {WARNS, STOPS}
