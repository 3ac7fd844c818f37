"""The result of an experiment: a table of differences from the control, curves, and the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phasewise.flows.experiments.arms import Arm, Experiment
from phasewise.flows.status.phase_status import read_record
from phasewise.flows.status.summary import macro_mean, shared_components
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import State
from phasewise.tasks.report.charts import Figure, Interval, Line, curve, intervals, means
from phasewise.tasks.report.html import STYLE_SHEET, environment, static_files
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RESULT_NAME, RunFolder
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.base.wording import name_some, plural, signed
from phasewise.trainer.metrics import read_metrics
from phasewise.validations.evidence.arm_differences import ERROR_RATE, Measured, difference_table
from phasewise.validations.evidence.parent_comparison import name_of, pair_items

PAGE, MAX_POINTS, PLACES = "report.html", 60, 4
Evaluations = Mapping[str, Mapping[str, Any]]  # folder of a run → benchmark → result with the answers to its items


def measure_experiment(experiment: Experiment, refusals: Mapping[str, str]) -> dict[str, Any]:
    """Return the result in the shape of `--json`. Missing values are null.

    `refusals`: folder → reason of a run that a verdict stopped in this process. Earlier reasons are in the home.
    """
    records = {run.folder: read_record(run.resolved, run.phase) for arm in experiment.arms for run in arm.runs}
    shared = shared_components([record.evaluation for record in records.values()])
    evaluations: dict[str, dict[str, Any]] = {}
    arms: list[dict[str, Any]] = []
    for arm in experiment.arms:
        runs: list[dict[str, Any]] = []
        for run in arm.runs:
            record = records[run.folder]
            evaluations[run.folder] = {name_of(one): one for one in (record.evaluation or {}).get("results", ())}
            found = {"final loss": (record.result or {}).get("final_loss"), "bits per byte": macro_mean(record.evaluation, shared)[0]}
            found |= {name: one["value"] for name, one in evaluations[run.folder].items()}
            measures = {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}
            refusal = refusals.get(run.folder) or ("; ".join(record.lacks) if record.state != State.DONE else "")
            runs.append({"seed": run.seed, "folder": run.folder, "measures": measures, "refusal": next(iter(refusal.splitlines()), None)})
        fields = ("name", "phase", "settings", "variables", "differences")
        arms.append({**{name: getattr(arm, name) for name in fields}, "refusal": arm.refusal or None, "runs": runs})
    recipe, seeds = experiment.resolved.recipe, len(arms[0]["runs"])
    known = {"recipe": recipe.name, "scale": recipe.scale, "phase": experiment.phase.name, "name": experiment.name, "seeds": seeds}
    differences = compare_arms(arms, evaluations)
    shown = [f"{row['arm']} {row['measure']} {signed(row['difference'], places=PLACES)}" for row in differences if row["is_shown"]]
    words = f"{len(shown)} of {plural(len(differences), 'difference')} shown{f': {name_some(shown, 4)}' if shown else ''}."
    notes = notes_of(experiment.arms, arms)
    return known | {"error_rate": ERROR_RATE, "arms": arms, "differences": differences, "headline": words, "notes": notes}


def compare_arms(arms: Sequence[Mapping[str, Any]], evaluations: Evaluations) -> list[dict[str, Any]]:
    """Return a row for each arm and measure. Replicates without a pair are left out, except if the data order is the variable."""
    tests: list[Measured] = []
    control, *others = arms
    for arm in others:
        is_paired = "order" not in arm["variables"]
        for measure in dict.fromkeys(name for one in arms for run in one["runs"] for name in run["measures"]):
            both = [pair for pair in zip(arm["runs"], control["runs"], strict=False) if all(measure in run["measures"] for run in pair)]
            answers = [[evaluations.get(run["folder"], {}).get(measure, {}) for run in pair] for pair in both]
            items = [pair_items(*pair) for pair in answers if all(one.get("answers") for one in pair)]
            sides = zip(*both, strict=True) if is_paired and both else (arm["runs"], control["runs"]) if not is_paired else ((), ())
            values = ([run["measures"][measure] for run in side if measure in run["measures"]] for side in sides)
            tests.append(Measured(arm["name"], measure, *values, items=items, is_paired=is_paired))
    rows: list[dict[Any, Any]] = difference_table(tests).to_dict("records") if tests else []
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


def notes_of(arms: Sequence[Arm], described: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on the limits of the table: several variables, unpaired orders, a single seed, refused and missing runs."""
    notes = ["One seed gives no interval. Use at least 3 seeds."] if len(arms[0].runs) < 2 else []
    for arm, known in zip(arms, described, strict=True):
        if len(arm.variables) > 1:
            notes.append(f"{arm.name} differs in more than one variable: {', '.join(arm.variables)}. The table does not tell them apart.")
        if "order" in arm.variables:
            notes.append(f"{arm.name} has a different data order: the seeds have no pair in the control (Welch's test).")
        notes += [f"{arm.name} has no run: {arm.refusal}"] if arm.refusal else []
        notes += [f"{arm.name}, seed {run['seed']}: {run['refusal'].rstrip('.')}." for run in known["runs"] if run["refusal"]]
    return notes


def words_of(row: Mapping[str, Any]) -> str:
    """A difference with its interval: `+0.012 (-0.003 to +0.027)`."""
    value, low, high = ("" if row[name] is None else signed(row[name], places=PLACES) for name in ("difference", "low", "high"))
    return f"{value} ({low} to {high})" if low else value or "not measured"


def figures_of(result: Mapping[str, Any], home: Home, column: str = "loss") -> list[Figure]:
    """Draw the differences of each measure with intervals, and a column of the metrics per arm with a band over the seeds."""
    places = {arm["name"]: place % 8 for place, arm in enumerate(result["arms"])}
    found: list[Figure | None] = []
    for measure in dict.fromkeys(row["measure"] for row in result["differences"]):
        rows = [row for row in result["differences"] if row["measure"] == measure and row["low"] is not None]
        drawn = [Interval(row["arm"], row["low"], row["difference"], row["high"], places[row["arm"]]) for row in rows]
        found.append(intervals(f"{measure}: arm − control, 95 % interval", drawn))
    lines: list[Line] = []
    for arm in result["arms"]:
        points: dict[float, list[float]] = {}
        for path in (RunFolder(home.work / run["folder"]).metrics for run in arm["runs"]):
            rows = [row for row in (read_metrics(path) if path.exists() else ()) if row.get(column) is not None]
            steps, values = (np.array([row[name] for row in rows], np.float64) for name in ("step", column))
            for step, value in means(steps, values, most=MAX_POINTS) if rows else ():
                points.setdefault(step, []).append(value)
        band = [(step, min(of), max(of)) for step, of in sorted(points.items())]
        middle = [(step, float(np.mean(of))) for step, of in sorted(points.items())]
        lines.append(Line(arm["name"], [middle], places[arm["name"]], spread=band if len(arm["runs"]) > 1 else ()))
    found.append(curve(column.replace("_", " "), lines, unit="mean of the seeds with their range"))
    return [figure for figure in found if figure]


def write_experiment(result: dict[str, Any], home: Home, figures: Sequence[Figure]) -> dict[str, Any]:
    """Write result, page and pictures to the home, and return the result with the page's path. The sealed result is written last."""
    folder = home.experiment(f"{result['recipe']}-{result['scale']}", result["name"])
    style = static_files()[STYLE_SHEET].decode()
    for number, figure in enumerate(figures, start=1):
        picture = figure.svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f"><style>{style}</style>", 1)
        write_atomically(folder / f"{number}.svg", picture.encode())
    rows = [(row, words_of(row)) for row in result["differences"]]
    page = environment().get_template("experiment.html").render(result=result, rows=rows, figures=figures)
    write_atomically(folder / PAGE, page.encode())
    write_sealed(folder / RESULT_NAME, result)
    return {**result, "report": str(folder / PAGE)}
