from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from phasewise.validations.expectations.judging import CheckResult, build_suite, judge_tables, load_library, reasons_for
from phasewise.validations.expectations.suites import SUITES, checks_of, expect_rows
from phasewise.validations.expectations.waiver_rules import accept, check_acceptable
from phasewise.validations.limits import AcceptedWarning, OrderLimits, accepted_in
from tests.validations.conftest import DATA_LIMITS, order_checks
from tests.validations.evidence.health.simulated import LIMITS as HEALTH_LIMITS

LIMITS = OrderLimits(false_alarm_rate=1e-3, max_shift_deviations=None)


def accepted(where: dict[str, Any] | None = None, **fields: Any) -> AcceptedWarning:
    said = {"table": "order", "check": "expect_order_to_mix", "phases": None, "reason": "the record's", "source": "its code"}
    return AcceptedWarning.model_validate({**said, "where": where or {"permutation": "linear"}, **fields})


def order_table(*p_values: tuple[str, float], permutation: str = "linear") -> pd.DataFrame:
    """A row a component with its chance; as in the evidence, only the least likely row is judged, and it speaks for the others."""
    worst = min(p_value for _, p_value in p_values)
    rows = [
        {
            "component": name, "permutation": permutation, "measure": "serial correlation", "value": 0.8, "limit": 0.1, "rows": 300,
            "detail": "", "p_value": p_value, "passes": p_value > 1e-4, "judged_p_value": p_value if p_value == worst else 1.0,
            "components": len(p_values), "components_failing": sum(p < 1e-4 for _, p in p_values),
        }
        for name, p_value in p_values
    ]  # fmt: skip
    return pd.DataFrame(rows)


def judge(table: pd.DataFrame, *accepts: AcceptedWarning) -> tuple[CheckResult, list[str]]:
    tables = {"order": table}
    (mixes,) = [check for check in order_checks(LIMITS, tables) if check.name == "expect_order_to_mix"]
    (result,) = judge_tables(tables, [mixes])
    result = accept(result, tables, accepts)
    return result, [reason.where for reason in reasons_for(result, tables)]


BOTH_FAIL = order_table(("web", 1e-9), ("code", 1e-7))

WEB, CODE = ({"permutation": "linear", "component": name} for name in ("web", "code"))
OTHERS = [
    accepted({"permutation": "feistel_levanter"}), accepted({"permutation": "linear", "component": "wiki"}), accepted({"component": "web"}),
    accepted({"permutation": "linear", "measure": "commonest step"}), accepted({"permutation": "linear", "rows": 300}),
    accepted(check="expect_component_to_be_drawn"), accepted(table="shifts"),
]  # fmt: skip


@pytest.mark.parametrize(("accepts", "outcome", "rows", "said"), [
    ([accepted()], "accepted", [(0, 1)], []),  # with all that the row speaks for
    ([accepted(WEB)], "failed", [(0,)], ["component code, 300 rows"]),  # also where another component is judged for it
    ([accepted(CODE), accepted(WEB)], "accepted", [(1,), (0,)], []),
    *(([other], "failed", [], ["component web, 300 rows"]) for other in OTHERS),
])  # fmt: skip
def test_rows_that_a_warning_names_are_accepted_and_no_others(
    accepts: list[AcceptedWarning], outcome: str, rows: list[tuple[int, ...]], said: list[str]
):
    result, still_said = judge(BOTH_FAIL, *accepts)
    assert (result.outcome, result.failing_rows == (), still_said) == (outcome, outcome == "accepted", said)
    assert [(found.warning, found.rows) for found in result.accepted] == list(zip(accepts, rows, strict=False))


def test_what_passes_stays_passed_and_a_check_that_could_not_be_made_broken():
    result, said = judge(order_table(("web", 0.5), ("code", 0.6)), accepted())
    assert (result.outcome, result.accepted, said) == ("passed", (), [])
    result, _ = judge(BOTH_FAIL.drop(columns="passes"), accepted())
    assert (result.outcome, result.accepted) == ("broken", ())


def test_what_stops_and_an_empty_table_are_never_accepted():
    is_judged = next(check for check in checks_of("health", HEALTH_LIMITS.model_dump()) if check.arguments.get("column") == "is_unjudged")
    health = pd.DataFrame([{"measure": "ema_gap", "is_unjudged": True, "phenomenon": "p", "detail": "d", "limit": 0.1}])
    known = accepted({"measure": "ema_gap"}, table="health", check="expect_column_values_to_be_in_set")
    empty = replace(expect_rows("order", "Give it rows."), severity="warning", accept_by=("permutation",))
    for check, warning, outcome in (
        (is_judged, known, "accepted"), (replace(is_judged, severity="critical"), known, "failed"),
        (empty, accepted(check=empty.name), "failed"),
    ):  # fmt: skip
        tables = {"health": health, "order": BOTH_FAIL.head(0)}
        (result,) = judge_tables(tables, [check])
        assert accept(result, tables, [warning]).outcome == outcome


def test_a_cell_that_holds_nothing_is_not_covered():
    table = BOTH_FAIL.convert_dtypes()
    table.loc[1, "permutation"] = pd.NA
    assert judge(table, accepted())[1] == ["component code, 300 rows"]


@pytest.mark.parametrize(("fields", "message"), [
    ({"check": "expect_leaked_items_within_limit", "table": "leakage"}, "stops a phase: only a warning can be accepted"),
    ({"check": "expect_order_to_mixx"}, "which no phase is judged by; those whose warnings can be accepted are .*expect_order_to_mix"),
    ({"where": {"component": "web"}}, "has to name permutation, and may name component and measure; found component"),
    ({"where": {"permutation": "linear", "value": 0.8}}, "found permutation, value"),
    ({"check": "expect_no_file_named_like_a_test", "table": "caches"}, "tells no finding from another, so none can be accepted"),
])  # fmt: skip
def test_what_cannot_be_accepted_is_refused_with_what_can(fields: dict[str, Any], message: str):
    checks = checks_of("data", DATA_LIMITS.model_dump(mode="json"))
    check_acceptable(accepted(), checks)
    with pytest.raises(ValueError, match=message):
        check_acceptable(accepted(**fields), checks)


@pytest.mark.parametrize("fields", [{"where": {}}, {"reason": " "}, {"source": ""}, {"phases": ()}, {"note": "x"}])
def test_an_accepted_warning_names_rows_reason_and_source(fields: dict[str, Any]):
    with pytest.raises(ValidationError):
        accepted().but(**fields)


def test_phases_bound_where_it_is_expected():
    everywhere, in_mantis = accepted(), accepted(phases=("mantis",))
    assert accepted_in("mantis", [everywhere, in_mantis]) == (everywhere, in_mantis)
    assert accepted_in("bison", [everywhere, in_mantis]) == (everywhere,)


def test_the_columns_to_accept_by_are_measured_columns():
    can_be = [check for check in checks_of("data", DATA_LIMITS.model_dump(mode="json")) if check.accept_by]
    assert len(can_be) == 8, "three of them of packed rows, one of what is left out"
    for check in can_be:
        nothing = {table: pd.DataFrame() for table in SUITES["data"].tables}
        assert {f"{check.table}.{column}" for column in (*check.accept_by, *check.narrow_by)} <= set(check.missing_columns(nothing))


def test_a_check_is_called_what_great_expectations_calls_it():
    library = load_library()
    checks = checks_of("data", DATA_LIMITS.model_dump(mode="json"))
    for table in {check.table for check in checks}:
        made = build_suite(library, "suite", table, checks).expectations
        assert sorted(one.expectation_type for one in made) == sorted(check.name for check in checks if check.table == table)
