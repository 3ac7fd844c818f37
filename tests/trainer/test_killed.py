import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.state import read_about, read_leaves
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row
from phasewise.trainer.run import main
from phasewise.trainer.step import params_digest
from tests.trainer.conftest import MakeRun, RowsOf, StartTrainer, WaitUntil

STOP_STEP, SAVE_EVERY = 200, 6
# a guard against hanging: processes that start again and again; a busy machine may need minutes for them
pytestmark = pytest.mark.timeout(600)


class Nursery:
    def __init__(self, process: "subprocess.Popen[bytes]"):
        assert process.stdin
        assert process.stdout
        self._stdin, self._stdout, self._process_id, self._log = process.stdin, process.stdout, 0, Path()

    def start(self, run: RunConfig, *stop: float) -> None:
        """To stop it by SIGTERM: at which step, and seconds after its row."""
        path = Path(run.output) / "run.json"
        self._log = path.with_name("trainer.log")
        write_json(path, run.model_dump(mode="json"))
        self._stdin.write(json.dumps([str(path), *stop]).encode() + b"\n")
        self._process_id = self.ended()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert not self.ends_within(0.001) or holds(), f"the trainer ended first, with {self.ended()}: {self._log.read_text()}"

    def ends_within(self, seconds: float) -> bool:
        return bool(select.select([self._stdout], [], [], seconds)[0])

    def kill(self) -> None:
        os.kill(self._process_id, signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def ended(self) -> int:
        return int(self._stdout.readline())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    command = [sys.executable, "-m", "tests.trainer.nursery"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment) as process:
        yield Nursery(process)
        process.kill()


@pytest.fixture(scope="module")
def long_run(make_run: MakeRun) -> MakeRun:
    """200 steps with accumulation, an average, rolling windows, and changes of batch, mixture and z-loss."""

    def make(name: str, **changes: Any) -> RunConfig:
        values: dict[str, Any] = {
            "stop_step": STOP_STEP, "batch": [[0, 4], [90, 8]], "execution": {"microbatch_sequences": 2},
            "learning_rate": [
                {"kind": "linear", "start_step": 0, "end_step": 20, "start": 0.0, "end": 3e-3},
                {"kind": "cosine", "start_step": 20, "end_step": STOP_STEP, "start": 3e-3, "end": 3e-4},
            ],
            "stability": {
                "max_grad_norm": [[0, 1.0]], "z_loss": [[0, None], [150, 1e-4]], "ema_decay": [[0, 0.9]], "max_update_rms": [[0, None]],
                "max_update_norm": [[0, {"window": 16, "min_samples": 8, "sigmas": 2.0}]],
                "skip_step": [[0, {"window": 32, "min_samples": 16, "sigmas": 2.0}]],
            },
            "mixture": [[0, {"books": 60, "code": 40}], [120, {"books": 30, "code": 30, "web": 40}]],
            "checkpoints": {"every_steps": SAVE_EVERY, "every_minutes": None, "keep_all": False},
        }  # fmt: skip
        return make_run(name, **{**values, **changes})

    return make


def outcome(run: RunConfig, rows: list[Row]) -> dict[str, Any]:
    last = RunFolder(run.output).checkpoint(STOP_STEP)
    leaves = read_leaves(last, read_about(last)["leaves"], lambda _: None)
    return {
        "rows": rows, "weights": read_json(Path(run.output) / "result.json")["params_digest"],
        "average": params_digest({name: leaf for name, leaf in leaves.items() if name.startswith("ema.")}), "state": params_digest(leaves),
    }  # fmt: skip


def last_step(run: RunConfig) -> int:
    path = Path(run.output) / "metrics.jsonl"
    lines = path.read_bytes().rsplit(b"\n", 2) if path.exists() else []
    return json.loads(lines[-2])["step"] if len(lines) > 1 and lines[-2] else 0


def half_written(run: RunConfig) -> set[str]:
    """Checkpoints that are being written, or were when the process died: under Orbax's name, or without their digests."""
    folders = set((Path(run.output) / "checkpoints").glob("*"))
    return {path.name for path in folders if not (path / "digests.json").exists()}


def saved(run: RunConfig) -> set[str]:
    return {path.name for path in (Path(run.output) / "checkpoints").iterdir()}


@pytest.fixture(scope="module")
def straight(long_run: MakeRun, nursery: Nursery, rows_of: RowsOf) -> dict[str, Any]:
    run = long_run("straight")
    nursery.start(run)
    assert nursery.ended() == 0
    assert saved(run) == {"198", "200"}
    return outcome(run, rows_of(run))


def test_an_undisturbed_run_writes_each_step_once_and_learns(straight: dict[str, Any]):
    rows = straight["rows"]
    expected = [(step, (4 if step <= 90 else 8) * 32, 0.0 if step <= 150 else 1e-4) for step in range(1, STOP_STEP + 1)]
    assert [(row["step"], row["tokens"], row["z_loss"]) for row in rows] == expected
    assert rows[-1]["loss"] < rows[0]["loss"] - 1.0
    assert straight["average"] != straight["weights"]
    assert 0 < sum(bool(row["skipped"]) for row in rows) < 50, "the windows decide something"


@pytest.mark.parametrize("kills", [3, pytest.param(6, marks=pytest.mark.long)])
def test_killed_at_any_moment_it_goes_on_bit_for_bit(
    long_run: MakeRun, nursery: Nursery, rows_of: RowsOf, straight: dict[str, Any], kills: int
):
    """Two of three kills wait for a checkpoint to be half written."""
    run, random, torn = long_run(f"killed {kills} times"), Random(5), 0
    for number, moment in enumerate(sorted(random.sample(range(1, STOP_STEP - 2 * SAVE_EVERY), kills))):
        nursery.start(run)
        nursery.wait_until(lambda moment=moment: last_step(run) >= moment)
        if number % 3:
            nursery.wait_until(lambda: bool(half_written(run)))
        else:
            nursery.ends_within(random.uniform(0, 0.02))
        nursery.kill()
        torn += bool(half_written(run))
        assert not (Path(run.output) / "result.json").exists()
    assert torn, "a write may end before the kill arrives, but not always"
    nursery.start(run)
    assert nursery.ended() == 0
    assert outcome(run, rows_of(run)) == straight


@pytest.mark.parametrize("stops", [2, pytest.param(4, marks=pytest.mark.long)])
def test_stopped_by_sigterm_at_any_moment_it_saves_what_it_has_and_goes_on(
    long_run: MakeRun, nursery: Nursery, rows_of: RowsOf, straight: dict[str, Any], stops: int
):
    run = long_run(f"stopped {stops} times", checkpoints={"every_steps": 1000, "every_minutes": None, "keep_all": False})
    random, steps = Random(7), list[int]()
    for moment in [0, *sorted(random.sample(range(1, STOP_STEP // 2), stops - 1))]:
        nursery.start(run, moment, random.uniform(0, 0.02))
        code = nursery.ended()
        assert code == 75, (Path(run.output) / "trainer.log").read_text()
        assert not (Path(run.output) / "result.json").exists()
        steps.append(last_step(run))
        if steps[-1]:
            assert max(map(int, saved(run))) == steps[-1]
    assert steps == sorted(set(steps))
    assert steps[-1] < STOP_STEP
    nursery.start(run)
    assert nursery.ended() == 0
    assert outcome(run, rows_of(run)) == straight


@pytest.mark.long
def test_abandoned_by_its_launcher_it_ends_and_lets_nobody_in_before(
    long_run: MakeRun, start_trainer: StartTrainer, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
):
    run = long_run("abandoned")
    process = start_trainer(run, "--with-parent", stdin=subprocess.PIPE)
    wait_until(process, lambda: last_step(run) >= 1)
    assert main([str(Path(run.output) / "run.json")]) == 1
    assert "another trainer is at work" in capsys.readouterr().err
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    assert 1 <= last_step(run) < STOP_STEP
    assert not (Path(run.output) / "result.json").exists()
