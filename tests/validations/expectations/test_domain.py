import math
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

from phasewise.validations.expectations.judging import judge_tables, load_library
from phasewise.validations.expectations.suites import Check

DOMAIN = load_library().domain


def kinds_of(base: str) -> list[str]:
    return sorted(kind.__name__ for kind in getattr(DOMAIN, base).__subclasses__())


def outcome(expectation: str, values: list[Any], dtype: Any, **arguments: Any) -> tuple[str, tuple[int, ...]]:
    said = dict.fromkeys(("asks", "what", "found", "limit", "where", "what_to_do"), "")
    check = Check(table="t", expectation=expectation, arguments={"column": "x", **arguments}, severity="critical", **said)
    (result,) = judge_tables({"t": pd.DataFrame({"x": pd.Series(values, dtype=dtype)})}, [check])
    return result.outcome, result.failing_rows


LIMITED, FLOORED = kinds_of("ColumnWithinLimit"), kinds_of("ColumnAboveFloor")
ALLOWED, REFUSED = kinds_of("ColumnOneOf"), kinds_of("ColumnNoneOf")


@pytest.mark.parametrize(("expectation", "bound", "passing", "values", "failing"), [
    *((kind, {"limit": 2}, [0, 2], [0, 2.01, 1, math.inf], (1, 3)) for kind in LIMITED),
    *((kind, {"floor": 2}, [2.01, 3], [3, 2, -math.inf], (1, 2)) for kind in FLOORED),
    *((kind, {"allowed": ["a", "b"]}, ["a", "b"], ["a", "c", "A"], (1, 2)) for kind in ALLOWED),
    *((kind, {"refused": ["c"]}, ["a", "b"], ["a", "c"], (1,)) for kind in REFUSED),
])  # fmt: skip
def test_the_bound_divides_what_passes_from_what_fails(
    expectation: str, bound: dict[str, Any], passing: list[Any], values: list[Any], failing: tuple[int, ...]
):
    dtype = object if isinstance(values[0], str) else float
    assert outcome(expectation, passing, dtype, **bound) == ("passed", ())
    assert outcome(expectation, values, dtype, **bound) == ("failed", failing)


NUMBERS = [(LIMITED[0], {"limit": 2}), (FLOORED[0], {"floor": 2})]
WORDS = [(ALLOWED[0], {"allowed": ["a"]}), (REFUSED[0], {"refused": ["a"]})]


@pytest.mark.parametrize(("expectation", "arguments"), [*NUMBERS, *WORDS])
def test_nothing_and_nan_never_pass_and_words_for_numbers_break_the_check(expectation: str, arguments: dict[str, Any]):
    dtype, nothing = (float, math.nan) if (expectation, arguments) in NUMBERS else (object, None)
    for count in range(3):
        assert outcome(expectation, [nothing] * count, dtype, **arguments) == ("failed", tuple(range(count)))
    if dtype is float:
        assert outcome(expectation, ["many", 1], object, **arguments) == ("broken", ())


def test_the_deferred_statistics_of_great_expectations_work():
    code = """from phasewise.validations.expectations.judging import load_library, sys
load_library()
assert "scipy.stats" not in sys.modules
print(sys.modules["great_expectations.expectations.core.expect_column_kl_divergence_to_be_less_than"].stats.entropy([1, 1]))"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout.startswith(b"0.693")
