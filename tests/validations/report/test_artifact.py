from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest

from phasewise.trainer.base.decision import Decision, Ruling
from phasewise.validations.failures import as_markdown, form_of, why_in_a_line
from phasewise.validations.reevaluate import MAX_CELL_CHARACTERS, MAX_ROWS, as_text, show_table
from phasewise.validations.verdict import judge_gate
from tests.validations.report.samples import HOSTILE, STALE, evidence, judged, register
from tests.validations.test_gate import LIMITS, PARENT, at


def test_rows_that_fail_come_first_and_the_rest_is_counted():
    table = pd.DataFrame({"name": [f"row {number}" for number in range(MAX_ROWS + 50)]})
    shown = show_table("t", table, {MAX_ROWS + 9, 4}, {MAX_ROWS + 7})
    marks = {4: "failed", MAX_ROWS + 9: "failed", MAX_ROWS + 7: "accepted", 0: ""}
    expected = [(row, mark, (f"row {row}",)) for row, mark in marks.items()]
    assert [(row.number, row.mark, row.cells) for row in shown.rows[:4]] == expected
    assert (len(shown.rows), shown.total_rows, shown.total_failing) == (MAX_ROWS, MAX_ROWS + 50, 2)
    table = pd.DataFrame({"count": [1], "share": [0.5], "text": ["1"], "flag": [True]})
    assert show_table("t", table, ()).is_numeric == (True, True, False, False)


@pytest.mark.parametrize(("value", "text"), [
    (0.1 + 0.2, "0.3"), (1_234_567, "1234567"), (float("nan"), "–"), (None, "–"), (pd.NA, "–"), (pd.NaT, "–"), ("", "–"), ([], "–"),
    (np.array([1, 2]), "1, 2"), (np.True_, "yes"), (False, "no"), ("x" * 999, "x" * (MAX_CELL_CHARACTERS - 1) + "…"),
])  # fmt: skip
def test_a_cell_is_said_as_short_as_it_can_be(value: object, text: str):
    assert as_text(value) == text


PAGE = "http://site/marin-8b/proxy/ocelot/model"


@pytest.fixture(autouse=True)
def _sample_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def test_a_failing_gate_shows_value_limit_and_parent_and_no_count_of_rows(tmp_path: Path):
    verdict = judge_gate("marin-8b/proxy/ocelot model", at(1.8), parent_evaluation=PARENT, limits=LIMITS, folder=tmp_path)
    for evaluation, limits in ((at(1.6), LIMITS), (at(1.8), LIMITS.but(max_increase_bits_per_byte=0.05))):
        judge_gate("judged later", evaluation, parent_evaluation=PARENT, limits=limits, folder=tmp_path / "later")
        page = as_markdown(verdict, page=PAGE)
        assert "Rows of bits\\_per\\_byte that fail (1):" in page.replace("Rows of bits_per_byte", "Rows of bits\\_per\\_byte")
        assert "- **Found:** +0.1000 bits per byte\n- **Limit:** at most +0.02 bits per byte\n- **Parent's value:** 1.7\n" in page
    assert page.splitlines()[2].startswith("**The phase is refused.** macro bits per byte went from the parent's 1.7000 to 1.8000")
    assert f"[This verdict with all its evidence]({PAGE})" in page
    row = next(line for line in page.splitlines() if line.startswith("| ✗ failed | The phase does not make the model worse"))
    assert row.endswith("| +0.1000 bits per byte | at most +0.02 bits per byte | 1.7 |")
    assert "rows fail |" not in page
    form = form_of(verdict, page=PAGE, command="Or in a terminal: x")
    assert "Found: +0.1000 bits per byte; limit: at most +0.02 bits per byte; parent: 1.7" in form
    assert "(found +0.1000 bits per byte; limit at most +0.02 bits per byte)" in why_in_a_line(verdict)


def test_the_rows_that_fail_are_shown_and_what_comes_from_data_is_no_markup(tmp_path: Path):
    verdict = judged("bison data", evidence(leaked=3, stale=1, excerpt=HOSTILE), tmp_path)
    page = as_markdown(verdict)
    assert STALE in page.replace("\\", "")
    assert "Rows of caches that fail (1):" in page
    assert "<script>" not in page
    assert "](http" not in page
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    assert STALE in as_markdown(verdict).replace("\\", ""), "evidence that is gone leaves no page without words"


@pytest.mark.parametrize(
    ("state", "said"), [("approved", "A person let it pass: the phase may go on."), ("rejected", "A person rejected it")]
)
def test_a_decision_is_on_the_page(tmp_path: Path, state: Literal["approved", "rejected"], said: str):
    verdict = judged("bison data", evidence(stale=1), tmp_path)
    decision = Decision(approves=state == "approved", reason="a *reason*", who="Ada", when="2026-11-23T00:00:00", seen={"x": "y"})
    page = as_markdown(verdict, Ruling(state, decision))
    assert said in page
    assert f"{state.capitalize()} by Ada on 2026-11-23: a \\*reason\\*" in page
