"""The mean of the last checkpoints: the right ones, each alike, and of one run."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.state import average_of_last
from phasewise.trainer.config import RunConfig
from phasewise.trainer.state import TrainState, abstract_state

STEPS = (10, 20, 30, 40)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    home = Home.open(str(tmp_path_factory.mktemp("home")))
    values = build_run(recipe, phase, home, dict.fromkeys(phase.components, Path("nowhere"))).model_dump(mode="json")
    return RunConfig.model_validate({**values, "checkpoints": {**values["checkpoints"], "every_steps": 10, "keep_all": True}})


def random_state(run: RunConfig, seed: int) -> TrainState:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), abstract_state(run, with_ema=False))


@pytest.fixture(scope="module")
def saved(run: RunConfig) -> tuple[Path, list[TrainState]]:
    states = [random_state(run, step) for step in STEPS]
    folder = Path(run.output) / "checkpoints"
    with Checkpoints(folder, run) as checkpoints:
        for step, state in zip(STEPS, states, strict=True):
            checkpoints.save(step, state, {})
    return folder, states


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_of_the_last_counts_alike(run: RunConfig, saved: tuple[Path, list[TrainState]], count: int):
    folder, states = saved
    params, steps = average_of_last(folder, run, count)
    assert steps == STEPS[-count:]
    chosen = [state.params for state in states[-count:]]
    expected = jax.tree.map(
        lambda *leaves: np.mean([np.asarray(leaf, np.float64) for leaf in leaves], axis=0).astype(leaves[0].dtype), *chosen
    )
    for found, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)


def test_more_than_are_kept_are_refused(run: RunConfig, saved: tuple[Path, list[TrainState]]):
    with pytest.raises(CheckpointError, match=r"has 4 of this phase \(10, 20, 30, 40\)"):
        average_of_last(saved[0], run, 5)


def test_another_run_s_checkpoint_is_refused(run: RunConfig, saved: tuple[Path, list[TrainState]], tmp_path: Path):
    folder = Path(shutil.copytree(saved[0], tmp_path / "checkpoints"))
    other = RunConfig.model_validate({**run.model_dump(mode="json"), "seed": 9})
    shutil.rmtree(folder / "30")
    with Checkpoints(folder, other) as checkpoints:
        checkpoints.save(30, random_state(run, 1), {})
    with pytest.raises(CheckpointError, match="only checkpoints of one run belong together"):
        average_of_last(folder, run, 2)
    with pytest.raises(CheckpointError, match="or of another model"):
        average_of_last(folder, RunConfig.model_validate({**run.model_dump(mode="json"), "phase": "ocelot"}), 2)
