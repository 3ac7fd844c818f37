import numpy as np
import pandas as pd
import pytest

from phasewise.validations.report.judged_again import MAX_CELL_CHARACTERS, MAX_ROWS, as_text, show_table


def test_rows_that_fail_come_first_and_the_rest_is_counted():
    table = pd.DataFrame({"name": [f"row {number}" for number in range(MAX_ROWS + 50)]})
    shown = show_table("t", table, {MAX_ROWS + 9, 4}, {MAX_ROWS + 7})
    assert [(row.number, row.mark, row.cells) for row in shown.rows[:4]] == [
        (4, "failed", ("row 4",)),
        (MAX_ROWS + 9, "failed", (f"row {MAX_ROWS + 9}",)),
        (MAX_ROWS + 7, "accepted", (f"row {MAX_ROWS + 7}",)),
        (0, "", ("row 0",)),
    ]
    assert (len(shown.rows), shown.total_rows, shown.total_failing) == (MAX_ROWS, MAX_ROWS + 50, 2)


def test_only_numbers_are_set_as_numbers():
    table = pd.DataFrame({"count": [1], "share": [0.5], "text": ["1"], "flag": [True]})
    assert show_table("t", table, ()).is_numeric == (True, True, False, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (1_234_567, "1234567"),
        (float("nan"), "–"),
        (None, "–"),
        (pd.NA, "–"),
        (pd.NaT, "–"),
        ("", "–"),
        (np.array([1, 2]), "1, 2"),
        ([], "–"),
        (np.True_, "yes"),
        (False, "no"),
        ("x" * 999, "x" * (MAX_CELL_CHARACTERS - 1) + "…"),
    ],
)
def test_a_cell_is_said_as_short_as_it_can_be(value: object, text: str):
    assert as_text(value) == text
