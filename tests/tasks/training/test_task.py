"""The page of a training in the Prefect UI."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training import task
from phasewise.tasks.training.task import training_markdown
from tests.tasks.training.conftest import STEPS, BuildRun


def test_the_page_has_table_and_link(build_run: BuildRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task, "site_address", lambda *_: "http://here/phase")
    page = training_markdown(build_run("paged"), {"step": 45, "loss": 2.5, "learning_rate": 0.01}, 1234.0)
    assert "[Live, with every measure](http://here/phase)" in page
    for line in (
        f"| step | 45 of {STEPS} |",
        "| done | 50 % |",
        "| loss | 2.500 |",
        "| learning rate | 0.01 |",
        "| tokens a second | 1,234 |",
    ):
        assert line in page


@pytest.mark.parametrize(("last", "loss"), [({}, "–"), ({"step": 3, "loss": None}, "NaN")])
def test_a_phase_that_has_not_begun_or_whose_loss_is_nan_has_a_page(build_run: BuildRun, last: dict[str, Any], loss: str):
    assert f"| loss | {loss} |" in training_markdown(build_run("paged"), last, 0.0)
    assert Path(build_run("paged").output).name == "paged"
