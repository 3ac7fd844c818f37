import math
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


@pytest.mark.parametrize("expectation", kinds_of("ColumnWithinLimit"))
def test_up_to_the_limit_passes_and_above_it_fails(expectation: str):
    assert outcome(expectation, [0, 2], float, limit=2) == ("passed", ())
    assert outcome(expectation, [0, 2.01, 1, math.inf], float, limit=2) == ("failed", (1, 3))


@pytest.mark.parametrize("expectation", kinds_of("ColumnAboveFloor"))
def test_above_the_floor_passes_and_on_it_fails(expectation: str):
    assert outcome(expectation, [2.01, 3], float, floor=2) == ("passed", ())
    assert outcome(expectation, [3, 2, -math.inf], float, floor=2) == ("failed", (1, 2))


@pytest.mark.parametrize("expectation", kinds_of("ColumnOneOf"))
def test_only_what_is_allowed_passes(expectation: str):
    assert outcome(expectation, ["a", "b"], object, allowed=["a", "b"]) == ("passed", ())
    assert outcome(expectation, ["a", "c", "A"], object, allowed=["a", "b"]) == ("failed", (1, 2))


@pytest.mark.parametrize("expectation", kinds_of("ColumnNoneOf"))
def test_all_but_what_is_refused_passes(expectation: str):
    assert outcome(expectation, ["a", "b"], object, refused=["c"]) == ("passed", ())
    assert outcome(expectation, ["a", "c"], object, refused=["c"]) == ("failed", (1,))


NUMBERS = [(kinds_of("ColumnWithinLimit")[0], {"limit": 2}), (kinds_of("ColumnAboveFloor")[0], {"floor": 2})]
WORDS = [(kinds_of("ColumnOneOf")[0], {"allowed": ["a"]}), (kinds_of("ColumnNoneOf")[0], {"refused": ["a"]})]


@pytest.mark.parametrize(("expectation", "arguments"), [*NUMBERS, *WORDS])
def test_nothing_and_nan_never_pass(expectation: str, arguments: dict[str, Any]):
    dtype = float if (expectation, arguments) in NUMBERS else object
    nothing = math.nan if dtype is float else None
    assert outcome(expectation, [], dtype, **arguments) == ("failed", ())
    assert outcome(expectation, [nothing], dtype, **arguments) == ("failed", (0,))
    assert outcome(expectation, [nothing, nothing], dtype, **arguments) == ("failed", (0, 1))


@pytest.mark.parametrize(("expectation", "arguments"), NUMBERS)
def test_words_where_numbers_must_be_break_the_check(expectation: str, arguments: dict[str, Any]):
    assert outcome(expectation, ["many", 1], object, **arguments) == ("broken", ())
