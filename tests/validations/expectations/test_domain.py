import math

import pandas as pd
import pytest

from validations.expectations.check import Check
from validations.expectations.judging import judge_tables

WITHIN = ["LeakedItems", "ShareError", "Epochs", "LossToParent"]
WITHIN_LIMIT = [*(f"Expect{name}WithinLimit" for name in WITHIN), "ExpectShardsToMatchManifest", "ExpectCacheToBeFresh"]
ABOVE_FLOOR = ["ExpectBaselineToBeBeaten", "ExpectSomethingToRead"]


def outcome(expectation: str, values: list[float]) -> tuple[str, tuple[int, ...]]:
    bound = "limit" if expectation in WITHIN_LIMIT else "floor"
    told = dict.fromkeys(("asks", "what", "found", "limit", "where", "what_to_do"), "")
    check = Check(table="t", expectation=expectation, arguments={"column": "x", bound: 2}, severity="critical", **told)
    (result,) = judge_tables({"t": pd.DataFrame({"x": pd.Series(values, dtype=float)})}, [check])
    return result.outcome, result.failing_rows


@pytest.mark.parametrize("expectation", WITHIN_LIMIT)
def test_up_to_the_limit_passes_and_above_it_fails(expectation: str):
    assert outcome(expectation, [0, 2]) == ("passed", ())
    assert outcome(expectation, [0, 2.01, 1, math.inf]) == ("failed", (1, 3))


@pytest.mark.parametrize("expectation", ABOVE_FLOOR)
def test_above_the_floor_passes_and_on_it_fails(expectation: str):
    assert outcome(expectation, [2.01, 3]) == ("passed", ())
    assert outcome(expectation, [3, 2, -math.inf]) == ("failed", (1, 2))


@pytest.mark.parametrize("expectation", [WITHIN_LIMIT[0], ABOVE_FLOOR[0]])
@pytest.mark.parametrize(("values", "failing"), [([], ()), ([math.nan], (0,)), ([math.nan, math.nan], (0, 1))])
def test_nothing_and_nan_never_pass(expectation: str, values: list[float], failing: tuple[int, ...]):
    assert outcome(expectation, values) == ("failed", failing)
