"""A run's own checkpoints: what comes back, when one is due, which are kept, which one is used, and what is refused."""

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from phasewise.trainer.base.errors import CheckpointError, StorageError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints, read_params, saved_params_digest
from phasewise.trainer.checkpoints.files import saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.state import TrainState, init_state, params_digest

MakeRun = Callable[..., RunConfig]
CONTRACT = {"seed": 1, "components": {}, "mixture": [[0, {"books": 100.0}]]}
WINDOWS = {
    "max_update_norm": [[0, {"window": 8, "min_samples": 4, "sigmas": 2.0}]],
    "skip_step": [[0, {"window": 6, "min_samples": 3, "sigmas": 4.0}]],
}


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    """With a moving average and rolling windows."""
    plain = make_run("checkpoint")
    return make_run("checkpoint", stability={**plain.stability.model_dump(mode="json"), **WINDOWS})


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    """Nothing in it is zero, one, or equal to anything else."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(100 * rng.normal(size=leaf.shape), leaf.dtype), init_state(run))


@pytest.fixture
def checkpoints_of(tmp_path: Path, run: RunConfig) -> Callable[..., Checkpoints]:
    """Those in this test's folder, with another policy or clock."""

    def build(clock: Callable[[], float] = lambda: 0.0, **policy: Any) -> Checkpoints:
        changed = run.model_copy(update={"checkpoints": run.checkpoints.model_copy(update=policy)})
        return Checkpoints(tmp_path, changed, clock=clock)

    return build


def save(checkpoints: Checkpoints, state: TrainState, *steps: int) -> None:
    with checkpoints:
        for step in steps:
            checkpoints.save(step, state, CONTRACT)


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ── what comes back ──


def test_a_state_comes_back_bit_for_bit(checkpoints_of: Callable[..., Checkpoints], state: TrainState):
    save(checkpoints_of(), state, 12)
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() == 12
        assert_equal(checkpoints.restore(12, CONTRACT), state)


def test_weights_and_average_are_read_apart(checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, run: RunConfig, state: TrainState):
    save(checkpoints_of(), state, 3)
    save(checkpoints_of(), state._replace(ema=None), 6)
    assert_equal(read_params(tmp_path / "3", run.model), state.params)
    assert_equal(read_params(tmp_path / "3", run.model, ema=True), state.ema)
    assert saved_params_digest(tmp_path / "3") == params_digest(state.params)
    with pytest.raises(CheckpointError, match=r"6 has no moving average"):
        read_params(tmp_path / "6", run.model, ema=True)


def test_what_is_saved_is_not_what_the_next_update_makes_of_it(
    checkpoints_of: Callable[..., Checkpoints], state: TrainState, monkeypatch: pytest.MonkeyPatch
):
    """The update takes the state's memory before a line of it is written."""
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    training = jax.tree.map(jnp.copy, state)
    updated = threading.Event()
    write = ocp.AsyncCheckpointer.save

    def write_later(*arguments: Any, **named: Any) -> None:
        updated.wait(20)
        write(*arguments, **named)

    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", write_later)
    with checkpoints_of() as checkpoints:
        checkpoints.save(12, training, CONTRACT)
        training = jax.block_until_ready(add(training))
        updated.set()
        checkpoints.wait()
        assert_equal(checkpoints.restore(12, CONTRACT), state)
        assert not np.array_equal(training.params["head"], state.params["head"])


# ── when, and which are kept ──


def test_they_are_due_by_steps_and_by_minutes_since_the_last_save(checkpoints_of: Callable[..., Checkpoints], state: TrainState):
    now = 0.0
    with checkpoints_of(lambda: now, every_steps=5, every_minutes=2.0) as checkpoints:
        assert [step for step in range(1, 12) if checkpoints.due(step)] == [5, 10]
        now = 120.0
        assert checkpoints.due(6)
        checkpoints.save(6, state, CONTRACT)
        assert not checkpoints.due(7)
        checkpoints.wait()
        now = 239.9
        assert not checkpoints.due(8)
        now = 240.0
        assert checkpoints.due(9)
    with checkpoints_of(lambda: now, every_steps=5) as checkpoints:
        now = 1e9
        assert not checkpoints.due(6)


@pytest.mark.parametrize(
    ("keep_all", "kept"), [(False, [{3}, {3, 4}, {4, 6}, {6, 7}, {7, 9}]), (True, [{3}, {3, 4}, {3, 4, 6}, {3, 6, 7}, {3, 6, 7, 9}])]
)
def test_the_newest_two_stay_and_where_all_are_kept_the_permanent_ones(
    checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, state: TrainState, keep_all: bool, kept: list[set[int]]
):
    """4 and 7 are between the regular ones: by minutes, by SIGTERM or by the phase's end."""
    with checkpoints_of(every_steps=3, keep_all=keep_all) as checkpoints:
        for step, expected in zip((3, 4, 6, 7, 9), kept, strict=True):
            checkpoints.save(step, state, CONTRACT)
            checkpoints.wait()
            assert set(saved_steps(tmp_path)) == expected


def test_nothing_is_pruned_before_the_next_one_is_committed(
    checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, state: TrainState, monkeypatch: pytest.MonkeyPatch
):
    save(checkpoints_of(), state, 3, 6)

    def fail(*_: object) -> None:
        assert set(saved_steps(tmp_path)) == {3, 6, 9}
        raise OSError("no space left")

    monkeypatch.setattr("phasewise.trainer.checkpoints.checkpointer.write_digests", fail)
    checkpoints = checkpoints_of()
    checkpoints.save(9, state, CONTRACT)
    with pytest.raises(StorageError, match=r"checkpoint .*9 could not be written, the one before it is kept: .*no space left"):
        checkpoints.wait()
    assert set(saved_steps(tmp_path)) == {3, 6, 9}
    monkeypatch.undo()
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() == 6


# ── which one is used ──


def test_one_that_was_being_written_does_not_count_and_is_written_again(
    checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, state: TrainState
):
    save(checkpoints_of(), state, 3)
    shutil.copytree(tmp_path / "3", tmp_path / "6.orbax-checkpoint-tmp")
    (tmp_path / "6.orbax-checkpoint-tmp" / "left over").touch()
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() == 3
        checkpoints.save(6, state, CONTRACT)
    assert names(tmp_path) == {"3", "6"}
    assert not (tmp_path / "6" / "left over").exists()


def test_killed_in_its_first_save_a_run_starts_again_and_says_so(
    checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, state: TrainState, capsys: pytest.CaptureFixture[str]
):
    save(checkpoints_of(), state, 3)
    (tmp_path / "3" / "digests.json").unlink()
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() is None
        assert "3 was never committed (it has no digests.json); there is none before it" in capsys.readouterr().err
        checkpoints.save(3, state, CONTRACT)
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() == 3


# ── what is refused ──


def test_another_data_order_is_refused_by_name(checkpoints_of: Callable[..., Checkpoints], state: TrainState):
    save(checkpoints_of(), state, 12)
    message = r"12 was trained on another data order: extra, seed changed since\. Restore what it was"
    with checkpoints_of() as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.restore(12, {**CONTRACT, "seed": 2, "extra": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"d_ff": 64}}, r"12 does not fit the run: params\.blocks\.down is float32\[2, 48, 32\], not float32\[2, 64, 32\]; "),
        ({"model": {"qk_norm": True}}, r"params\.blocks\.key_norm is nothing, not float32\[2, 8\]"),
        ({"stability": {"ema_decay": [[0, None]]}}, r"ema\.\S+ is float32\[.*\], not nothing"),
        ({"stability": {"skip_step": [[0, None]]}}, r"rolling\.losses\.values is float32\[6\], not nothing"),
    ],
)
def test_a_state_with_other_leaves_is_refused(tmp_path: Path, run: RunConfig, state: TrainState, changes: Mapping[str, Any], message: str):
    values = run.model_dump(mode="json")
    changed = RunConfig.model_validate({**values, **{name: {**values[name], **change} for name, change in changes.items()}})
    save(Checkpoints(tmp_path, changed), state, 12)
    with Checkpoints(tmp_path, changed) as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.restore(12, CONTRACT)


# ── damage ──


Spoil = Callable[[Path], None]


def biggest(checkpoint: Path) -> Path:
    return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_a_bit(checkpoint: Path) -> None:
    content = bytearray(biggest(checkpoint).read_bytes())
    content[len(content) // 2] ^= 1
    biggest(checkpoint).write_bytes(content)


def cut_short(checkpoint: Path) -> None:
    biggest(checkpoint).write_bytes(biggest(checkpoint).read_bytes()[:-1])


def lose_a_file(checkpoint: Path) -> None:
    biggest(checkpoint).unlink()


def lose_the_digests(checkpoint: Path) -> None:
    (checkpoint / "digests.json").unlink()


def spoil_the_digests(checkpoint: Path) -> None:
    (checkpoint / "digests.json").write_text("{")


DAMAGE: list[tuple[Spoil, str]] = [
    (flip_a_bit, "is damaged: state/.* has other bytes than were written"),
    (cut_short, r"is damaged: state/.* has \d+ bytes, not \d+"),
    (lose_a_file, "is damaged: state/.* is missing"),
    (lose_the_digests, r"was never committed \(it has no digests.json\)"),
    (spoil_the_digests, r"is damaged: its digests\.json does not read"),
]


@pytest.mark.parametrize(("spoil", "message"), DAMAGE, ids=[spoil.__name__ for spoil, _ in DAMAGE])
def test_damage_is_found_and_the_one_before_is_used_and_named(
    checkpoints_of: Callable[..., Checkpoints],
    tmp_path: Path,
    run: RunConfig,
    state: TrainState,
    capsys: pytest.CaptureFixture[str],
    spoil: Spoil,
    message: str,
):
    save(checkpoints_of(), state, 3, 6)
    spoil(tmp_path / "6")
    with pytest.raises(CheckpointError, match=rf"6 {message}"):
        read_params(tmp_path / "6", run.model)
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() == 3
        said = capsys.readouterr().err
        assert said.startswith(f"trainer: checkpoint {tmp_path / '6'} ")
        assert said.endswith("; the one before it is used\n")
        assert jax.tree.all(jax.tree.map(np.array_equal, checkpoints.restore(3, CONTRACT), state))
        checkpoints.save(6, state, CONTRACT)  # trained again, and written again
        checkpoints.wait()
        assert checkpoints.latest_step() == 6
        assert capsys.readouterr().err == ""
        assert set(saved_steps(tmp_path)) == {3, 6}
