"""The trainer as a process of its own, killed, stopped and abandoned: what it trains is what it would have trained, bit for bit."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint import read_params
from trainer.checkpoint_path import checkpoint_path
from trainer.config import RunConfig
from trainer.metrics import Row, read_metrics
from trainer.run import main
from trainer.state import params_digest
from trainer.storage import read_json

MakeRun = Callable[..., RunConfig]
StartTrainer = Callable[..., "subprocess.Popen[bytes]"]
WaitUntil = Callable[["subprocess.Popen[bytes]", Callable[[], bool]], None]
RowsOf = Callable[[RunConfig], list[Row]]

pytestmark = pytest.mark.timeout(180)  # processes that start again and again; a busy machine may need minutes for them


def outcome(run: RunConfig, rows: list[Row]) -> dict[str, Any]:
    """All that must not depend on how often the run was stopped."""
    return {
        "rows": rows,
        "weights": read_json(Path(run.output) / "result.json")["params_digest"],
        "average": params_digest(read_params(checkpoint_path(run.output, 24), run.model, ema=True)),
        "checkpoints": [path.name for path in (Path(run.output) / "checkpoints").iterdir()],
    }


def last_step(run: RunConfig) -> int:
    """That of the newest row."""
    rows = read_metrics(Path(run.output) / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def half_written(run: RunConfig) -> list[int]:
    """Steps whose checkpoints are being written, or were when the process died."""
    return [int(path.name.split(".")[0]) for path in (Path(run.output) / "checkpoints").glob("*.orbax-checkpoint-tmp*")]


@pytest.fixture(scope="module")
def straight(make_run: MakeRun, start_trainer: StartTrainer, rows_of: RowsOf) -> dict[str, Any]:
    """What the run gives when nobody disturbs it; its launcher stays alive."""
    run = make_run("straight")
    process = start_trainer(run, "--with-parent", stdin=subprocess.PIPE)
    assert process.wait() == 0
    return outcome(run, rows_of(run))


def test_an_undisturbed_run_writes_each_step_once_and_learns(straight: dict[str, Any]):
    rows = straight["rows"]
    assert [row["step"] for row in rows] == list(range(1, 25))
    assert [row["tokens"] for row in rows] == [4 * 32] * 10 + [8 * 32] * 14
    assert [row["z_loss"] for row in rows] == [0.0] * 16 + [1e-4] * 8
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1
    assert straight["average"] != straight["weights"]
    assert straight["checkpoints"] == ["24"]


def test_killed_at_any_moment_it_goes_on_bit_for_bit(
    make_run: MakeRun, start_trainer: StartTrainer, wait_until: WaitUntil, rows_of: RowsOf, straight: dict[str, Any]
):
    run = make_run("killed")

    def kill_when(holds: Callable[[], bool]) -> None:
        process = start_trainer(run)
        wait_until(process, holds)
        process.kill()
        assert process.wait() == -9

    kill_when(lambda: last_step(run) >= 4)
    for step in (6, 9, 12):  # a write may end before the kill arrives: then try at the next one
        kill_when(lambda step=step: any(written >= step for written in half_written(run)))
        if half_written(run):
            break
    assert half_written(run)
    kill_when(lambda: last_step(run) >= 17)
    assert not (Path(run.output) / "result.json").exists()
    process = start_trainer(run)
    assert process.wait() == 0
    assert outcome(run, rows_of(run)) == straight


def test_stopped_by_sigterm_it_saves_what_it_has_and_goes_on(
    make_run: MakeRun, start_trainer: StartTrainer, wait_until: WaitUntil, rows_of: RowsOf, straight: dict[str, Any]
):
    run = make_run("stopped", checkpoints={"every_steps": 1000, "every_minutes": None, "keep_all": False})
    process = start_trainer(run)
    wait_until(process, lambda: last_step(run) >= 1)
    process.terminate()
    assert process.wait() == 75
    assert [path.name for path in (Path(run.output) / "checkpoints").iterdir()] == [str(last_step(run))]
    assert 1 <= last_step(run) < 24
    assert not (Path(run.output) / "result.json").exists()
    assert main([str(Path(run.output) / "run.json")]) == 0
    assert outcome(run, rows_of(run)) == straight


def test_abandoned_by_its_launcher_it_ends_and_lets_nobody_in_before(
    make_run: MakeRun, start_trainer: StartTrainer, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
):
    run = make_run("abandoned")
    process = start_trainer(run, "--with-parent", stdin=subprocess.PIPE)
    wait_until(process, lambda: last_step(run) >= 1)
    assert main([str(Path(run.output) / "run.json")]) == 1
    assert "another trainer is at work" in capsys.readouterr().err
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    assert 1 <= last_step(run) < 24
    assert not (Path(run.output) / "result.json").exists()
