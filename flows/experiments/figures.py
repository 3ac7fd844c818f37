"""The figures of the published runs as experiments: a measure of the metrics, a verdict, and a plot beside the published statement."""

import time
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from phasewise.flows.experiments.result import compare_arms, figures_of, words_of, write_experiment
from phasewise.flows.recipes import default_scale, load_written
from phasewise.flows.recipes.recipe import Scale
from phasewise.tasks.home import Home
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_yaml
from phasewise.trainer.metrics import Row, read_metrics

HERE = Path(__file__).parent
OWN_RECIPE = "figures"
SPIKE_DEVIATIONS, SPIKE_WINDOW = 7.5, 20
"""Median absolute deviations above the median of the window, five standard deviations of normal values."""
Steps = tuple[int, int]


class Measure(Frozen):
    """A number of a run, from a column of `metrics.jsonl`. `steps` and `before` are the first and the last step."""

    of: Literal["mean", "change", "slope", "spikes", "deviation"]
    column: str
    steps: Steps
    before: Steps | None = None

    def value(self, rows: list[Row]) -> float | None:
        """The measure of a run, or None without a finite value in these steps. A slope is per 100 steps."""
        known = np.array([(row["step"], row[self.column]) for row in rows if row.get(self.column) is not None], np.float64).reshape(-1, 2)
        stretches = [known[(known[:, 0] >= steps[0]) & (known[:, 0] <= steps[1])] for steps in (self.steps, self.before or self.steps)]
        stretches = [one[np.isfinite(one[:, 1])] for one in stretches]
        if not all(map(len, stretches)):
            return None
        (steps, values), (_, before) = (one.T for one in stretches)
        if self.of == "slope":
            return float(100 * np.polyfit(steps, values, 1)[0])
        if self.of == "spikes":
            windows = np.lib.stride_tricks.sliding_window_view(values, SPIKE_WINDOW)[:-1]
            middle = np.median(windows, axis=1)
            spread = np.median(np.abs(windows - middle[:, None]), axis=1)
            return float((values[SPIKE_WINDOW:] > middle + SPIKE_DEVIATIONS * spread).sum())
        if self.of == "deviation":
            return float(np.diff(values).std() / np.sqrt(2))
        return float(values.mean() - (before.mean() if self.of == "change" else 0.0))


class FigureExperiment(Frozen):
    """A figure: published statement and source, phase and arms of `phasewise try`, and the expected sign of every arm's difference."""

    name: str
    figure: str
    statement: str
    source: str
    phase: str
    arms: tuple[str, ...]
    seeds: int = 3
    column: str
    measure: Measure
    expected: Literal["lower", "higher"]


@cache
def declared_figures() -> dict[str, FigureExperiment]:
    """The figures of `figures.yaml` by name."""
    entries = read_yaml(HERE / "figures.yaml")
    return {one.name: one for one in map(FigureExperiment.model_validate, entries)}


def target_of(figure: FigureExperiment) -> tuple[str, str, Scale]:
    """Return recipe, phase and scale of a figure."""
    recipe, _, phase = figure.phase.partition("/")
    recipe = str(HERE / f"{recipe}.json") if recipe == OWN_RECIPE else recipe
    return recipe, phase, default_scale(load_written(recipe))


def run_figure(figure: FigureExperiment, home: Home) -> dict[str, Any]:
    """Run the experiment of a figure, judge the statement, and write the page. Trained runs are reused.

    `verdict` is `appears` if every arm shows a difference with the expected sign, else `does not appear`.
    """
    from phasewise.flows.try_phase import try_phase

    began = time.monotonic()
    recipe, phase, scale = target_of(figure)
    result = try_phase(recipe, phase, figure.arms, figure.seeds, None, scale, str(home.root))
    named = f"{figure.measure.of} of {figure.measure.column}"
    for run in (run for arm in result["arms"] for run in arm["runs"]):
        value = figure.measure.value(read_metrics(RunFolder(home.work / run["folder"]).metrics))
        run["measures"] = {} if value is None else {named: value}
    rows = compare_arms(result["arms"], {})
    sign = 1 if figure.expected == "higher" else -1
    appears = bool(rows) and all(row["is_shown"] and sign * row["difference"] > 0 for row in rows)
    verdict = {"figure": figure.figure, "statement": figure.statement, "source": figure.source, "expected": figure.expected}
    verdict |= {"verdict": "appears" if appears else "does not appear", "seconds": round(time.monotonic() - began, 1)}
    effects = "; ".join(f"{row['arm']} {words_of(row)}" for row in rows)
    result |= {"name": f"figure-{figure.name}", "differences": rows, "headline": f"{figure.figure}: {verdict['verdict']}. {effects}"}
    result = {**{name: value for name, value in result.items() if name != "report"}, **verdict}
    return write_experiment(result, home, figures_of(result, home, figure.column))
