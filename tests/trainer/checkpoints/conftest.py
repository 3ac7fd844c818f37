"""What a phase leaves behind, and the run of the phase that starts from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import RunConfig
from phasewise.trainer.step import TrainState, abstract_state, params_digest
from tests.trainer.conftest import MakeRun

ADAM = {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": ADAM,
    "adamc": {**ADAM, "kind": "adamc", "peak_learning_rate": 3e-3},
    "nadamw": {**ADAM, "kind": "nadamw"},
    "muon": {
        "kind": "muon", "momentum": 0.95, "nesterov": True, "newton_schulz_steps": 5, "epsilon": 1e-7, "weight_decay": 0.1, "adam": ADAM,
        "adam_learning_rate_scale": 0.3,
    },
}  # fmt: skip
WINDOWS = {
    "max_update_norm": [[0, {"window": 8, "min_samples": 4, "sigmas": 2.0}]],
    "skip_step": [[0, {"window": 6, "min_samples": 3, "sigmas": 4.0}]],
}


class Parent(NamedTuple):
    checkpoint: Path
    state: TrainState

    def start(self, *fresh: str, **grafts: "Parent") -> dict[str, Any]:
        graft = [{"part": part, **other.weights()} for part, other in grafts.items()]
        return {**self.weights(), "fresh": fresh, "graft": graft}

    def weights(self) -> dict[str, Any]:
        return {"checkpoint": str(self.checkpoint), "params_digest": params_digest(self.state.params)}


Build = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def build(make_run: MakeRun) -> Build:
    """A run with what is asked for: `qk_norm`, `optimizer` by kind, `windows`, `ema_decay`, `start`."""
    plain = make_run("hand-off").model_dump(mode="json")
    off: dict[str, Any] = {name: [[0, None]] for name in WINDOWS}

    def make(optimizer: str = "adamw", *, windows: bool = True, ema_decay: Any = 0.9, start: Any = None, **model: Any) -> RunConfig:
        changes = {
            "phase": "child" if start else "parent", "model": {**plain["model"], **model}, "optimizer": OPTIMIZERS[optimizer],
            "stability": {**plain["stability"], **(WINDOWS if windows else off), "ema_decay": [[0, ema_decay]]}, "start": start,
        }  # fmt: skip
        return RunConfig.model_validate({**plain, **changes})

    return make


def random_state(run: RunConfig, seed: int = 0) -> TrainState:
    rng = np.random.default_rng(seed)
    like = abstract_state(run, with_ema=run.keeps_average)
    return jax.tree.map(lambda leaf: jnp.asarray(100 * rng.normal(size=leaf.shape), leaf.dtype), like)


@pytest.fixture(scope="session")
def leave(tmp_path_factory: pytest.TempPathFactory, build: Build) -> Callable[..., Parent]:

    def make(seed: int = 0, **kind: Any) -> Parent:
        run = build(**kind)
        state = random_state(run, seed)
        path = RunFolder(tmp_path_factory.mktemp("parent")).checkpoint(24)
        with Checkpoints(path.parent, run) as checkpoints:
            checkpoints.save(24, state, {})
        return Parent(path, state)

    return make


@pytest.fixture(scope="session")
def llama(leave: Callable[..., Parent]) -> Parent:
    return leave()


@pytest.fixture(scope="session")
def qwen(leave: Callable[..., Parent]) -> Parent:
    return leave(1, qk_norm=True)


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))
