"""The mean of the last checkpoints of one run.

Steps that a learning rate takes late in a phase mostly go to and fro; their mean is nearer to the bottom than any of them (Izmailov et
al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018). Every checkpoint counts alike.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.files import is_committed, saved_steps
from phasewise.trainer.checkpoints.state import read_about, read_params
from phasewise.trainer.config import RunConfig
from phasewise.trainer.model.params import Params


def kept_steps(folder: Path, run: RunConfig) -> list[int]:
    """The steps of the phase that have a committed checkpoint, oldest first; none where that of its end is not there."""
    steps = [step for step in saved_steps(folder) if run.start_step < step <= run.stop_step and is_committed(folder / str(step))]
    return steps if steps and steps[-1] == run.stop_step else []


def last_steps(folder: Path, run: RunConfig, count: int) -> tuple[int, ...]:
    """The steps of the run's last `count` checkpoints, oldest first. The last is that of `stop_step`; those of other runs never count.

    Raises:
        CheckpointError: fewer are kept, or one was written by another run or model.
    """
    steps = kept_steps(folder, run)
    if len(steps) < max(count, 1):
        raise CheckpointError(
            f"the last {count} checkpoints must end with the one of step {run.stop_step}, and {folder} has {len(steps)} of this phase "
            f"({', '.join(map(str, steps)) or 'none'}). Ask for fewer, or have more kept: `checkpoints.keep_all` or `checkpoints.at_steps`."
        )
    chosen = tuple(steps[-count:])
    _check_one_run(folder, chosen, run)
    return chosen


def average_of_last(folder: Path, run: RunConfig, count: int) -> tuple[Params, tuple[int, ...]]:
    """The mean of the weights of the run's last `count` checkpoints, and their steps, oldest first.

    The last is that of `stop_step`; those of other runs in the folder, and steps before the phase began, never count. Sums are in float64
    on the host, one checkpoint at a time; the mean has the weights' own types.

    Raises:
        CheckpointError: fewer are kept, one is damaged, or one was written by another run or model.
    """
    chosen = last_steps(folder, run, count)
    total: Any = None
    last: Params | None = None
    for step in chosen:
        last = read_params(folder / str(step), run.model)
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), last)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    return jax.tree.map(lambda leaf, like: jnp.asarray((leaf / count).astype(like.dtype)), total, last), chosen


def _check_one_run(folder: Path, steps: tuple[int, ...], run: RunConfig) -> None:
    """By the digest that each names: settings, model, caches, and the weights and grafts that it started from."""
    written = {step: RunConfig.model_validate(read_about(folder / str(step))["run"]) for step in steps}
    last = written[steps[-1]]
    if (last.recipe, last.phase, last.model) != (run.recipe, run.phase, run.model):
        raise CheckpointError(
            f"{folder / str(steps[-1])} is of {last.recipe}/{last.phase} or of another model, not of {run.recipe}/{run.phase}."
        )
    for step, one in written.items():
        if one.digest != last.digest:
            raise CheckpointError(
                f"only checkpoints of one run belong together: {folder / str(step)} was written by the run {one.digest[:12]}, the last one "
                f"by {last.digest[:12]}. Ask for fewer, or train the phase again."
            )
