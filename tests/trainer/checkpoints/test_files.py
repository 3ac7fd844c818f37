"""Damage to a checkpoint's files is found, whatever it is; the one before is used, and it is said."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints, read_params
from phasewise.trainer.checkpoints.files import saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.state import TrainState, init_state

MakeRun = Callable[..., RunConfig]
CONTRACT = {"seed": 1}


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    return make_run("damaged")


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    return init_state(run)


@pytest.fixture
def checkpoints_of(tmp_path: Path, run: RunConfig) -> Callable[[], Checkpoints]:
    """Those in this test's folder."""
    return lambda: Checkpoints(tmp_path, run)


def save(checkpoints: Checkpoints, state: TrainState, *steps: int) -> None:
    with checkpoints:
        for step in steps:
            checkpoints.save(step, state, CONTRACT)


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


def test_a_damaged_one_is_not_kept_as_one_to_fall_back_on(checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, state: TrainState):
    save(checkpoints_of(), state, 3, 6)
    flip_a_bit(tmp_path / "6")
    with checkpoints_of() as checkpoints:
        assert checkpoints.latest_step() == 3
        checkpoints.save(5, state, CONTRACT)
        checkpoints.wait()
        assert set(saved_steps(tmp_path)) == {3, 5}


@pytest.mark.parametrize("spoils", [(flip_a_bit, flip_a_bit), (lose_the_digests, lose_the_digests), (flip_a_bit, lose_the_digests)])
def test_where_none_is_whole_it_is_said_what_to_do(
    checkpoints_of: Callable[..., Checkpoints], tmp_path: Path, state: TrainState, spoils: tuple[Spoil, Spoil]
):
    save(checkpoints_of(), state, 3, 6)
    for step, spoil in zip((3, 6), spoils, strict=True):
        spoil(tmp_path / str(step))
    with (
        checkpoints_of() as checkpoints,
        pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole\. Bring one back from a copy"),
    ):
        checkpoints.latest_step()
