"""What comes back from a checkpoint, what a hand-off carries, and what is refused."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.checkpoint import Checkpoints, read_about, read_params, state_to_start_from
from trainer.checkpoint_path import checkpoint_path
from trainer.config import CheckpointPolicy, RunConfig
from trainer.data.loader import Loader
from trainer.errors import CheckpointError
from trainer.state import TrainState, init_state, params_digest

MakeRun = Callable[..., RunConfig]
LAST_ONLY = CheckpointPolicy(every_steps=3, every_minutes=None, keep_all=False)
CONTRACT = {"seed": 1, "mixture": [[0, {"books": 100.0}]]}


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    return make_run("checkpoint")


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    """Nothing in it is zero, one, or equal to anything else."""
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), init_state(run))
    adam, *others = cast(tuple[Any, ...], drawn.optimizer)
    return drawn._replace(optimizer=(adam._replace(count=jnp.int32(12)), *others))


def save(folder: Path, state: TrainState, *steps: int, policy: CheckpointPolicy = LAST_ONLY) -> None:
    with Checkpoints(folder, policy) as checkpoints:
        for step in steps:
            checkpoints.save(step, state, CONTRACT)


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


# ── one run's own checkpoints ──


def test_a_state_comes_back_bit_for_bit(tmp_path: Path, run: RunConfig, state: TrainState):
    save(tmp_path, state, 12)
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints:
        assert checkpoints.latest_step() == 12
        assert_equal(checkpoints.restore(12, run, CONTRACT), state)


def test_no_checkpoint_is_no_step(tmp_path: Path):
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints:
        assert checkpoints.latest_step() is None


@pytest.mark.parametrize(("keep_all", "kept"), [(False, {"7"}), (True, {"3", "6", "7"})])
def test_only_the_last_one_stays_unless_the_policy_keeps_them(tmp_path: Path, state: TrainState, keep_all: bool, kept: set[str]):
    """4 and 7 are between the regular ones: by minutes, by SIGTERM or by the phase's end."""
    save(tmp_path, state, 3, 4, 6, 7, policy=CheckpointPolicy(every_steps=3, every_minutes=None, keep_all=keep_all))
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_step_is_saved_once(tmp_path: Path, run: RunConfig, state: TrainState):
    save(tmp_path, state, 12)
    save(tmp_path, init_state(run), 12)
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints:
        assert_equal(checkpoints.restore(12, run, CONTRACT), state)


def test_one_that_was_being_written_does_not_count_and_is_written_anew(tmp_path: Path, state: TrainState):
    save(tmp_path, state, 3)
    shutil.copytree(tmp_path / "3", tmp_path / "6.orbax-checkpoint-tmp")
    (tmp_path / "6.orbax-checkpoint-tmp" / "left over").touch()
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints:
        assert checkpoints.latest_step() == 3
        checkpoints.save(6, state, CONTRACT)
    assert {path.name for path in tmp_path.iterdir()} == {"6"}
    assert not (tmp_path / "6" / "left over").exists()


def test_another_data_order_is_refused_by_name(tmp_path: Path, run: RunConfig, state: TrainState):
    save(tmp_path, state, 12)
    message = r"12 was trained on another data order: extra, seed changed since\. Restore what it was"
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.restore(12, run, {**CONTRACT, "seed": 2, "extra": 1})


def test_another_shape_is_refused(tmp_path: Path, run: RunConfig, state: TrainState):
    save(tmp_path, state, 12)
    wider = RunConfig.model_validate({**run.model_dump(), "phase": "wider", "model": {**run.model.model_dump(), "d_ff": 64}})
    message = r"12 does not fit the model: \['blocks'\]\['\w+'\] is \[2, "
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.restore(12, wider, CONTRACT)


# ── from a parent's checkpoint to a phase's first state ──


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory, state: TrainState) -> dict[str, Path]:
    """One with a moving average, one without."""
    folder = tmp_path_factory.mktemp("parents")
    save(checkpoint_path(folder / "with", 24).parent, state, 24)
    save(checkpoint_path(folder / "without", 24).parent, state._replace(ema=None), 24)
    return {name: checkpoint_path(folder / name, 24) for name in ("with", "without")}


@pytest.fixture
def child(run: RunConfig, parents: Mapping[str, Path], state: TrainState) -> Callable[..., RunConfig]:
    """A phase that starts from one of them."""

    def build(parent: str, *fresh: str, ema_decay: float | None = 0.9, digest: str | None = None) -> RunConfig:
        start = {"checkpoint": str(parents[parent]), "params_digest": digest or params_digest(state.params), "fresh": fresh}
        stability = {**run.stability.model_dump(), "ema_decay": [[0, ema_decay]]}
        return RunConfig.model_validate({**run.model_dump(), "phase": "child", "start": start, "stability": stability})

    return build


def test_a_hand_off_carries_everything(child: Callable[..., RunConfig], state: TrainState):
    assert_equal(state_to_start_from(child("with")), state)


def test_what_is_declared_fresh_is_made_anew(child: Callable[..., RunConfig], state: TrainState):
    found = state_to_start_from(child("with", "ema", "optimizer"))
    assert_equal(found.params, state.params)
    assert_equal(found.ema, state.params)
    assert_equal(found.optimizer, init_state(child("with")).optimizer)


def test_a_fresh_average_may_start_from_a_parent_without_one(child: Callable[..., RunConfig], state: TrainState):
    found = state_to_start_from(child("without", "ema"))
    assert_equal(found.ema, state.params)
    assert_equal(found.optimizer, state.optimizer)
    for average, weight in zip(jax.tree.leaves(found.ema), jax.tree.leaves(found.params), strict=True):
        assert average is not weight  # the step takes the memory of both


def test_an_average_that_nobody_declared_is_refused(child: Callable[..., RunConfig]):
    with pytest.raises(
        CheckpointError, match=r"has no moving average, and phase child does not declare it fresh: add 'ema' to its hand-off"
    ):
        state_to_start_from(child("without"))


def test_a_phase_without_an_average_has_none(child: Callable[..., RunConfig]):
    assert state_to_start_from(child("with", ema_decay=None)).ema is None
    assert state_to_start_from(child("without", ema_decay=None)).ema is None


def test_other_weights_than_planned_are_refused(child: Callable[..., RunConfig], state: TrainState):
    with pytest.raises(CheckpointError, match=rf"expected {'0' * 12}, found {params_digest(state.params)[:12]}\. Run the recipe again"):
        state_to_start_from(child("with", digest="0" * 64))


def test_a_missing_parent_is_refused(child: Callable[..., RunConfig], tmp_path: Path):
    run = child("with")
    start = {"checkpoint": str(tmp_path / "24"), "params_digest": "0" * 64, "fresh": ()}
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*24\. Train the phase that ends there first"):
        state_to_start_from(RunConfig.model_validate({**run.model_dump(), "start": start}))


# ── the weights alone ──


def test_weights_and_average_are_read_apart(run: RunConfig, parents: Mapping[str, Path], state: TrainState):
    assert_equal(read_params(parents["with"], run.model), state.params)
    assert_equal(read_params(parents["with"], run.model, ema=True), state.ema)
    about = read_about(parents["with"])
    assert (about["contract"], about["has_ema"], len(about["shapes"])) == (CONTRACT, True, 12)


def test_an_average_that_is_not_there_is_refused(run: RunConfig, parents: Mapping[str, Path]):
    with pytest.raises(CheckpointError, match=r"has no moving average"):
        read_params(parents["without"], run.model, ema=True)


# ── the contract of a real run ──


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch": [[0, 4], [10, 9]]}, "batch"),
        ({"mixture": [[0, {"books": 60, "code": 40}]]}, "components, mixture"),
        ({"order": {"seed": 12, "permutation": "linear", "block_sequences": 8}}, "block_sequences, permutation, seed"),
    ],
)
def test_what_decides_the_order_decides_the_contract(
    make_run: MakeRun, tmp_path: Path, run: RunConfig, state: TrainState, change: dict[str, Any], named: str
):
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints:
        checkpoints.save(12, state, Loader(run).contract())
    with Checkpoints(tmp_path, LAST_ONLY) as checkpoints:
        assert_equal(checkpoints.restore(12, run, Loader(run).contract()), state)
        with pytest.raises(CheckpointError, match=rf"another data order: {named} changed since"):
            checkpoints.restore(12, run, Loader(make_run("changed", **change)).contract())
