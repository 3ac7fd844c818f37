"""Swarms of proxies: short trainings of a phase on different mixtures, spread by Dask, and their losses on held-out text."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phasewise.tasks.data.cluster import run_all
from phasewise.tasks.progress import say
from phasewise.tasks.training.attempts import launch_trainer
from phasewise.trainer.base.errors import TrainingDiverged
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import CheckpointPolicy, LossEvaluation, MixtureShares, RunConfig, Steps
from phasewise.trainer.metrics import read_metrics

HELD_OUT_ROWS = 64  # rows of each component that measure a proxy


def shortened(run: RunConfig, steps: int) -> RunConfig:
    """Return the run with another number of steps. The schedules of rates, batches and mixtures are compressed to them."""
    first, factor = run.start_step, steps / (run.stop_step - run.start_step)

    def moved(step: int) -> int:
        return max(0, first + round((step - first) * factor))

    segments: list[dict[str, Any]] = []
    for one in run.learning_rate:
        start, end = segments[-1]["end_step"] if segments else moved(one.start_step), moved(one.end_step)
        if end > max(start, first):
            segments.append(one.model_dump() | {"start_step": start, "end_step": end})
    by_steps: dict[str, Any] = {}
    for name, values in (("batch", run.batch), ("mixture", run.mixture)):
        earlier = dict(values.within(0, first)) if first else {}
        later = {moved(step): value for step, value in values.within(first, run.stop_step)}
        by_steps[name] = tuple({**earlier, **later}.items())
    return run.but(stop_step=first + steps, learning_rate=segments, **by_steps)


def proxy_of(run: RunConfig, shares: MixtureShares, held_out: Mapping[str, str], folder: Path, seed: int | None = None) -> RunConfig:
    """Return the run on another mixture, measured only at its end. `seed` None keeps the seeds of weights and data order."""
    earlier = dict(run.mixture.within(0, run.start_step)) if run.start_step else {}
    seeds = {} if seed is None else {"seed": seed, "order": run.order.but(seed=seed, cut_blocks=True)}
    return run.but(
        **{"order": run.order.but(cut_blocks=True), **seeds},
        mixture=Steps[MixtureShares](tuple({**earlier, run.start_step: shares}.items())),
        output=str(folder),
        checkpoints=CheckpointPolicy(every_steps=run.stop_step, every_minutes=None, keep_all=False),
        evaluation=LossEvaluation(every_steps=run.stop_step, sequences=HELD_OUT_ROWS, caches=dict(held_out)),
    )


def train_proxy(settings: dict[str, Any]) -> dict[str, float] | None:
    """Train a proxy, if it is not trained yet, and return the held-out loss of each component. None if the loss diverged.

    The weights are deleted: only the losses are results.
    """
    run = RunConfig.model_validate(settings)
    try:
        launch_trainer(run, lambda _rows: None)
    except TrainingDiverged:
        return None
    folder = RunFolder(run.output)
    shutil.rmtree(folder.checkpoints, ignore_errors=True)
    last = read_metrics(folder.metrics)[-1]
    return {name: float(last[f"eval_loss/{name}"]) for name in run.evaluation.caches} if run.evaluation else None


def train_swarm(work: str, proxies: Sequence[RunConfig]) -> np.ndarray:
    """Train proxies in parallel, and return their losses (proxies, components in the order of their names), NaN if a proxy diverged."""
    found = run_all(work, train_proxy, [(one.model_dump(mode="json"),) for one in proxies])
    if diverged := sum(losses is None for losses in found):
        say(f"{work}: {diverged} of {len(proxies)} diverged, and have no losses")
    names = sorted(proxies[0].evaluation.caches) if proxies[0].evaluation else []
    return np.array([[np.nan if losses is None else losses[name] for name in names] for losses in found])
