import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from phasewise.trainer.base.errors import ExitCode, TakenOver, TrainingError
from phasewise.trainer.base.run_folder import TOKEN_NAME
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.process import watchdog as module
from phasewise.trainer.process.watchdog import Lease, only_one_trainer
from phasewise.trainer.run import main
from tests.trainer.conftest import MakeRun, RowsOf, StartTrainer, WaitUntil

pytestmark = pytest.mark.timeout(240)  # a guard against hanging
HALF_WRITTEN = ".orbax-checkpoint-tmp/"


def test_tokens_only_rise_and_the_last_one_holds(tmp_path: Path):
    first = Lease(tmp_path)
    first.check()
    second = Lease(tmp_path)
    second.check()
    assert (first.number, second.number) == (1, 2)
    with pytest.raises(TakenOver, match=r"this trainer has token 1, the folder has 2\. This trainer stops writing"):
        first.check()


def test_a_token_that_does_not_read_lets_nobody_write(tmp_path: Path):
    for damage in (b"", b"[]", b'{"number": 1}', b'{"number": "x"}'):
        before = Lease(tmp_path)
        (tmp_path / TOKEN_NAME).write_bytes(damage)
        with pytest.raises(TakenOver):
            before.check()
        Lease(tmp_path).check()
        with pytest.raises(TakenOver):  # also where the number starts from one again: names decide
            before.check()


def test_nobody_takes_over_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    stands_still = r"stands still in the middle of a write, for 0\.1 s at least: end that process"
    with only_one_trainer(tmp_path) as first:
        with first.alone(), pytest.raises(TrainingError, match=stands_still), only_one_trainer(tmp_path):
            pass
        first.check()
        with only_one_trainer(tmp_path) as second:
            with pytest.raises(TakenOver), first.alone():
                (tmp_path / "written").touch()
            with second.alone():
                assert not (tmp_path / "written").exists()


def contents(folder: Path) -> dict[str, bytes]:
    """Of what a run is made of; the log and the sign of life are the processes' own."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and path.name not in ("trainer.log", "heartbeat") and not path.name.startswith(".heartbeat"):
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.long
def test_a_trainer_that_is_stopped_and_goes_on_later_damages_nothing(
    make_run: MakeRun, start_trainer: StartTrainer, rows_of: RowsOf, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
):
    monkeypatch.setattr(module, "SILENT_SECONDS", 3.0)
    rate = [{"kind": "constant", "start_step": 0, "end_step": 4000, "start": 1e-3, "end": 1e-3}]
    run = make_run("stopped", stop_step=4000, learning_rate=rate)
    folder, process = Path(run.output), start_trainer(run)
    wait_until(process, lambda: len(read_metrics(folder / "metrics.jsonl")) >= 8)
    os.kill(process.pid, signal.SIGSTOP)
    reached = read_metrics(folder / "metrics.jsonl")[-1]["step"]

    @contextmanager
    def stop_later() -> Iterator[Callable[[], bool]]:
        yield lambda: len(read_metrics(folder / "metrics.jsonl")) >= reached + 12

    monkeypatch.setattr("phasewise.trainer.loop.stop_requests", stop_later)
    assert main([f"{run.output}/run.json"]) == ExitCode.PREEMPTED
    before = contents(folder)
    assert read_json(folder / TOKEN_NAME)["number"] == 2
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait() == ExitCode.TAKEN_OVER
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert all(HALF_WRITTEN in name for name in after.keys() - before.keys())  # what it was writing when it was stopped, never a checkpoint
    steps = [row["step"] for row in rows_of(run)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= reached + 12
