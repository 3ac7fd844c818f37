"""Forecast of a phase's loss before it trains, from the curves of its lineage and of earlier phases of the home."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.tasks.training.run_identity import read_run
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import RESULT_NAME, RunFolder
from phasewise.trainer.config import RunConfig, learning_rate_at
from phasewise.trainer.metrics import read_metrics
from phasewise.validations.evidence.loss_forecast import Curve, forecast_losses

PATIENCE_SHARE, MIN_PATIENCE = 1 / 20, 15  # share of the phase's updates, and fewest updates, whose mean loss must leave the band


def parent_of(run: RunConfig, home: Home) -> RunConfig | None:
    """Return the run that wrote the checkpoint at the run's start. None for a start from scratch or from an imported model."""
    if run.start is None:
        return None
    *_, recipe, phase, _, _ = Path(run.start.checkpoint).parts
    return read_run(home.runs / recipe / phase)


def _curve(run: RunConfig, home: Home) -> Curve | None:
    """Return the curve of the run's lineage. None for a run without a parent, or with a change of model, rows, batch or mixture."""
    lineage = [run]
    while parent := parent_of(lineage[0], home):
        lineage.insert(0, parent)
    changes = [at for one in lineage for values in (one.batch, one.mixture) for at, _ in values.within(one.start_step, one.stop_step)[1:]]
    for earlier, later in pairwise(lineage):
        at = later.start_step
        if _kind(earlier, at - 1) != _kind(later, at):
            changes.append(at)
    begins = max(changes, default=0)  # later losses are comparable
    if len(lineage) < 2 or begins >= run.start_step:
        return None
    rates, losses = np.zeros(run.stop_step), np.full(run.stop_step, np.nan)
    for one, stop in zip(lineage, [*(later.start_step for later in lineage[1:]), run.stop_step], strict=True):
        rates[one.start_step : stop] = [learning_rate_at(one.learning_rate, step) for step in range(one.start_step, stop)]
        for row in read_metrics(RunFolder(one.output).metrics):
            if max(one.start_step, begins) < row["step"] <= stop and row["loss"] is not None:
                losses[row["step"] - 1] = row["loss"]
    return Curve(lineage[0].output, run.start_step, rates, losses)


def _kind(run: RunConfig, step: int) -> tuple[Any, ...]:
    return run.model, run.packing, run.loss_on, run.batch.at(step), run.mixture.at(step)


def forecast_of(run: RunConfig, home: Home) -> dict[str, Any] | None:
    """Return the content of `forecast.json` of a run that has not begun, or say why there is none.

    Every finished run of the home with a parent and without a change of data since its parent is an earlier phase.
    """
    if RunFolder(run.output).metrics.exists() and (read_run(RunFolder(run.output).path) or run).digest == run.digest:
        return None  # the run has begun
    curve, earlier, read = _curve(run, home), list[Curve](), dict[str, str]()
    for folder in sorted(path for path in home.runs.glob("*/*") if (path / RESULT_NAME).exists()):
        other = read_run(folder)
        if other and folder != RunFolder(run.output).path and (found := _curve(other, home)):
            earlier.append(found)
            read["/".join(folder.parts[-2:])] = digest_of_file(RunFolder(folder).metrics)
    if curve is not None and (parent := parent_of(run, home)):
        read["/".join(Path(parent.output).parts[-2:])] = digest_of_file(RunFolder(parent.output).metrics)
    try:
        if curve is None:
            raise DataError("expected a parent with the same model, rows, batch and mixture, found a start or a change.")
        found = forecast_losses(curve, earlier)
    except DataError as error:
        say(f"{run.phase}: no forecast of its loss: {error}")
        return None
    curves = {name: [round(float(value), 5) for value in getattr(found, name)] for name in found._fields}
    patience = max(MIN_PATIENCE, round(PATIENCE_SHARE * (run.stop_step - run.start_step)))
    content = {"run_digest": run.digest, "patience_updates": patience, "earlier_phases": len(earlier), "metrics": read, **curves}
    low, end, high = (f"{curves[name][-1]:.3f}" for name in ("low", "mean", "high"))
    say(f"{run.phase}: loss of {end} forecast for the end (80 % of updates: {low} to {high}), from {len(earlier)} earlier phases")
    return content
