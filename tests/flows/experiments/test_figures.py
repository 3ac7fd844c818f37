"""The figures of the published runs: every declaration can be planned, and measures of made-up curves are as computed by hand."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.cli.experiments import run_figures
from phasewise.flows.experiments.arms import plan_experiment
from phasewise.flows.experiments.figures import HERE, Measure, declared_figures, target_of
from phasewise.trainer.base.errors import ConfigError
from tests.trainer.conftest import TABLE

ROWS: list[dict[str, Any]] = [
    {"step": step, "loss": 3.0 - 0.01 * step + (5.0 if step == 30 else 0.001 * (step % 3)), "update_norm": 20.0 if step == 28 else step % 4}
    for step in range(1, 41)
]
ROWS[9]["loss"] = None


@pytest.mark.parametrize("name", declared_figures())
def test_every_figure_can_be_planned(name: str, tmp_path: Path):
    figure = declared_figures()[name]
    recipe, phase, scale = target_of(figure)
    planned = plan_experiment(f"{recipe}/{phase}", scale, str(tmp_path), figure.arms, figure.seeds)
    assert figure.seeds >= 3
    assert all(len(arm.runs) == figure.seeds and arm.variables for arm in planned.arms[1:])
    columns = {metric.name.partition("/")[0] for metric in TABLE}
    measured = (figure.column, figure.measure.column, figure.measure.minus or figure.column)
    assert {one.partition("/")[0] for one in measured} <= columns
    assert figure.texts is None or {one.suffix for one in (HERE / "texts" / figure.texts).iterdir()} == {".jsonl"}
    first, last = figure.measure.steps
    assert planned.phase.start_step < first <= last <= planned.phase.stop_step


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ({"of": "mean", "steps": (8, 12)}, (2.922 + 2.91 + 2.892 + 2.88) / 4),  # one value is missing
        ({"of": "change", "steps": (12, 12), "before": (3, 3)}, -0.09),
        ({"of": "slope", "steps": (11, 28)}, -1.0),
        ({"of": "spikes", "steps": (5, 40)}, 1),
        ({"of": "mean", "steps": (50, 60)}, None),
        ({"of": "mean", "minus": "update_norm", "steps": (26, 28)}, 2.731 - 25 / 3),
        # before the only spike, and before 3 of 18 rows
        ({"of": "lead", "column": "update_norm", "minus": "loss", "steps": (2, 40)}, 1 - 3 / 18),
        ({"of": "lead", "column": "loss", "minus": "update_norm", "steps": (2, 40)}, -3 / 18),
        ({"of": "lead", "column": "update_norm", "minus": "loss", "steps": (31, 40)}, None),
    ],
)
def test_a_measure_is_as_computed_by_hand(measure: dict[str, object], expected: float | None):
    found = Measure.model_validate({"column": "loss", **measure}).value(ROWS)
    assert found == (expected if expected is None else pytest.approx(expected, abs=0.01))


def test_an_unknown_figure_is_refused():
    with pytest.raises(ConfigError, match="no figure is called 'ema', did you mean ema-gap"):
        run_figures(["ema"], None)
