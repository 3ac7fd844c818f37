"""The figures of the published runs as experiments: a measure of the metrics, a verdict, and a plot beside the published statement."""

import time
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from phasewise.flows.experiments.result import compare_arms, figures_of, words_of, write_experiment
from phasewise.flows.recipes import default_scale, load_written
from phasewise.flows.recipes.assignments import settings_in_force
from phasewise.flows.recipes.recipe import Scale
from phasewise.tasks.home import Home
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_yaml
from phasewise.trainer.metrics import Row, read_metrics

HERE = Path(__file__).parent
OWN_RECIPES = ("figures", "figures-mixed")
SPIKE_DEVIATIONS, SPIKE_WINDOW, LEAD_ROWS = 7.5, 20, 3
"""Median absolute deviations above the median of the window, five standard deviations of normal values."""
Steps = tuple[int, int]


class Measure(Frozen):
    """A number of a run, from a column of `metrics.jsonl`, or from its difference to the column `minus`.

    `steps` and `before` are the first and the last step. A lead is the share of the spikes of `minus` with a spike of `column` in the
    `LEAD_ROWS` rows before, minus this share among all rows.
    """

    of: Literal["mean", "change", "slope", "spikes", "deviation", "lead"]
    column: str
    minus: str | None = None
    steps: Steps
    before: Steps | None = None

    def value(self, rows: list[Row]) -> float | None:
        """The measure of a run, or None without a finite value in these steps. A slope is per 100 steps."""
        names = (self.column, self.minus or self.column)
        full = [row for row in rows if all(row.get(name) is not None for name in names)]
        if self.of == "lead":
            inside = [[row[name] for row in full if self.steps[0] <= row["step"] <= self.steps[1]] for name in names]
            leading, late = (spikes_of(np.array(values, np.float64)) for values in inside)
            before = np.array([leading[max(0, at - LEAD_ROWS) : at].any() for at in range(len(leading))], bool)
            return float(before[late].mean() - before.mean()) if late.any() else None
        taken = [(row["step"], row[names[0]] - (row[names[1]] if self.minus else 0.0)) for row in full]
        known = np.array(taken, np.float64).reshape(-1, 2)
        stretches = [known[(known[:, 0] >= steps[0]) & (known[:, 0] <= steps[1])] for steps in (self.steps, self.before or self.steps)]
        stretches = [one[np.isfinite(one[:, 1])] for one in stretches]
        if not all(map(len, stretches)):
            return None
        (steps, values), (_, before) = (one.T for one in stretches)
        if self.of == "slope":
            return float(100 * np.polyfit(steps, values, 1)[0])
        if self.of == "spikes":
            return float(spikes_of(values).sum())
        if self.of == "deviation":
            return float(np.diff(values).std() / np.sqrt(2))
        return float(values.mean() - (before.mean() if self.of == "change" else 0.0))


def spikes_of(values: np.ndarray) -> np.ndarray:
    """Return which values after the first window are far above the median of the window before them."""
    if len(values) <= SPIKE_WINDOW:
        return np.zeros(0, bool)
    windows = np.lib.stride_tricks.sliding_window_view(values, SPIKE_WINDOW)[:-1]
    middle = np.median(windows, axis=1)
    return values[SPIKE_WINDOW:] > middle + SPIKE_DEVIATIONS * np.median(np.abs(windows - middle[:, None]), axis=1)


class FigureExperiment(Frozen):
    """A figure: published statement and source, phase and arms of `phasewise try`, and the expected sign of every arm's difference.

    `texts` is a folder of this package that is measured as `evaluation.held_out`.
    """

    name: str
    figure: str
    statement: str
    source: str
    phase: str
    arms: tuple[str, ...]
    seeds: int = 3
    texts: str | None = None
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
    recipe = str(HERE / f"{recipe}.json") if recipe in OWN_RECIPES else recipe
    return recipe, phase, default_scale(load_written(recipe))


def run_figure(figure: FigureExperiment, home: Home) -> dict[str, Any]:
    """Run the experiment of a figure, judge the statement, and write the page. Trained runs are reused.

    `verdict` is `appears` if every arm shows a difference with the expected sign, else `does not appear`.
    """
    from phasewise.flows.try_phase import try_phase

    began = time.monotonic()
    recipe, phase, scale = target_of(figure)
    texts = (f"*.evaluation.held_out={HERE / 'texts' / figure.texts}",) if figure.texts else ()
    result = try_phase(recipe, phase, figure.arms, figure.seeds, None, scale, str(home.root), (*settings_in_force(), *texts))
    named = f"{figure.measure.of} of {figure.measure.column}"
    for run in (run for arm in result["arms"] for run in arm["runs"]):
        value = figure.measure.value(read_metrics(RunFolder(home.work / run["folder"]).metrics))
        run["measures"] = {} if value is None else {named: value}
    compared = result["arms"]
    if figure.measure.of == "lead":
        runs = [{**run, "measures": dict.fromkeys(run["measures"], 0.0)} for run in compared[0]["runs"]]
        compared = [{**compared[0], "runs": runs}, compared[0]]
    rows = compare_arms(compared, {})
    sign = 1 if figure.expected == "higher" else -1
    appears = bool(rows) and all(row["is_shown"] and sign * row["difference"] > 0 for row in rows)
    verdict = {"figure": figure.figure, "statement": figure.statement, "source": figure.source, "expected": figure.expected}
    verdict |= {"verdict": "appears" if appears else "does not appear", "seconds": round(time.monotonic() - began, 1)}
    effects = "; ".join(f"{row['arm']} {words_of(row)}" for row in rows)
    result |= {"name": f"figure-{figure.name}", "differences": rows, "headline": f"{figure.figure}: {verdict['verdict']}. {effects}"}
    result = {**{name: value for name, value in result.items() if name != "report"}, **verdict}
    return write_experiment(result, home, figures_of(result, home, figure.column))
