"""The trainer as a process: its result, its refusals, and its lives after a kill. The model is tiny and the trainer is the real one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from phasewise.tasks.training import attempts, local, monitor
from phasewise.tasks.training.attempts import MAX_RESTARTS, launch_trainer
from phasewise.tasks.training.run_identity import finished_result, last_saved_step
from phasewise.tasks.training.time_breakdown import read_time_breakdown
from phasewise.trainer.base.errors import ExitCode, StorageError, TrainingDiverged, TrainingError, VerdictError
from phasewise.trainer.base.identity import read_sealed
from phasewise.trainer.base.run_folder import read_events
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.process.signals import STOP_VARIABLE
from tests.tasks.training.conftest import STEPS, BuildRun

pytestmark = pytest.mark.timeout(240)  # a guard against hanging

KILLED_AFTER = 35


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    """What the trainers compile runs for milliseconds: it need not be optimised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setattr("phasewise.tasks.training.attempts.BACKOFF_SECONDS", 0.01)
        yield


def start_instead(patch: pytest.MonkeyPatch, attempt: Callable[[Path], int]) -> None:
    """Have a function of `run.json` make the attempts, and return their exit codes."""
    patch.setattr(attempts, "start_and_monitor", lambda _launcher, one, *_: attempt(one.run_file))


def ignore(rows: list[Row]) -> None:
    assert rows


@dataclass(frozen=True)
class Trained:
    """A run that nothing disturbed, its result, the rows that were passed on while it ran, and how long it took."""

    run: RunConfig
    result: dict[str, Any]
    said: list[Row]
    seconds: float


@pytest.fixture(scope="module")
def trained(build_run: BuildRun) -> Trained:
    run = build_run("plain")
    said = list[Row]()
    started = time.monotonic()
    result = launch_trainer(run, said.extend)
    return Trained(run, result, said, time.monotonic() - started)


def test_a_run_ends_with_its_result(trained: Trained):
    output = Path(trained.run.output)
    assert trained.result == read_sealed(output / "result.json") == finished_result(trained.run)
    assert trained.result["run_digest"] == trained.run.digest
    assert Path(trained.result["checkpoint"]).is_dir()
    assert [row["step"] for row in trained.said] == list(range(1, STEPS + 1))
    assert trained.said == read_metrics(output / "metrics.jsonl")
    assert trained.said[-1]["loss"] < trained.said[0]["loss"] - 0.5


def test_where_the_time_of_a_training_went_is_all_of_it(trained: Trained):
    spent = read_time_breakdown(Path(trained.run.output))
    assert spent is not None
    assert spent.lives == 1
    assert {"process", "compile", "step", "save"} <= spent.seconds.keys()
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds, rel=0.01)
    assert 0.8 * trained.seconds < spent.wall_seconds <= trained.seconds


def test_the_same_run_is_not_trained_again(trained: Trained, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "subprocess", None)
    assert launch_trainer(trained.run, ignore) == trained.result


def test_another_run_sets_the_folder_aside(build_run: BuildRun, trained_at: Path, caplog: pytest.LogCaptureFixture):
    """What was there is kept whole under another name."""
    caplog.set_level("INFO")
    before = build_run("changing")
    after = build_run("changing", peak=1e-3)
    write_json(trained_at / "changing" / "run.json", before.model_dump(mode="json"))
    write_json(trained_at / "changing" / "result.json", {"run_digest": before.digest})
    (trained_at / "changing" / "checkpoints" / "10").mkdir(parents=True)
    kept = contents(trained_at / "changing")
    assert finished_result(before)
    assert finished_result(after) is None
    write_json(trained_at / "changing" / "run.json", after.model_dump(mode="json"))
    assert finished_result(before) is None, "what the folder says of its run was changed"
    write_json(trained_at / "changing" / "run.json", before.model_dump(mode="json"))

    result = launch_trainer(after, ignore)
    (aside,) = trained_at.glob("changing.superseded-*")
    assert contents(aside) == kept
    assert (aside / "checkpoints" / "10").is_dir()
    assert f"it is kept in {aside.name}" in caplog.text
    assert result["run_digest"] == after.digest


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_trainer(process: psutil.Process) -> bool:
    """Whether it is one, and at work. Other children of this process may end while they are asked."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE and "phasewise.trainer" in process.cmdline()
    return False


def test_a_killed_trainer_goes_on_and_ends_with_the_same_weights(
    build_run: BuildRun, trained: Trained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    monkeypatch.setattr(monitor, "POLL_SECONDS", 0.01)
    killed: list[int] = []
    seen: list[int] = []

    def kill_once(rows: list[Row]) -> None:
        seen.extend(row["step"] for row in rows)
        if not killed and KILLED_AFTER <= rows[-1]["step"] < STEPS:
            (child,) = filter(is_trainer, psutil.Process().children())
            os.kill(child.pid, signal.SIGKILL)
            killed.append(rows[-1]["step"])

    result = launch_trainer(build_run("killed"), kill_once)
    assert killed
    assert "killed: the trainer was ended by SIGKILL; going on from its " in caplog.text
    [event] = read_events(build_run("killed").output)
    assert (event["kind"], event["step"]) in [("restart", step) for step in (None, 30, 60)]  # the last may not be committed yet
    assert result["params_digest"] == trained.result["params_digest"]
    assert result["final_loss"] == trained.result["final_loss"]
    assert [row["step"] for row in read_metrics(Path(result["checkpoint"]).parents[1] / "metrics.jsonl")] == list(range(1, STEPS + 1))
    assert set(seen) == set(range(1, STEPS + 1))


class Stopped(BaseException):
    """As a signal or Prefect stops a run."""


def stop_after(step: int, run: RunConfig) -> Callable[[], None]:
    """A check that stops the run once it has come so far."""

    def check() -> None:
        rows = read_metrics(Path(run.output) / "metrics.jsonl")
        if rows and rows[-1]["step"] >= step:
            raise Stopped

    return check


def test_a_run_that_is_stopped_saves_its_last_update_and_goes_on(
    build_run: BuildRun, trained: Trained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    monkeypatch.setattr(monitor, "POLL_SECONDS", 0.01)
    run = build_run("stopped")
    with pytest.raises(Stopped):
        launch_trainer(run, ignore, stop_after(KILLED_AFTER, run))
    stopped_at = len(read_metrics(Path(run.output) / "metrics.jsonl"))
    assert KILLED_AFTER <= stopped_at < STEPS
    assert last_saved_step(run) == stopped_at
    assert f"stopped: stopped after step {stopped_at} of {STEPS}, which is saved; started again, it goes on from there" in caplog.text
    assert launch_trainer(run, ignore)["params_digest"] == trained.result["params_digest"]
    assert f"stopped: going on from step {stopped_at} of {STEPS}" in caplog.text


def test_a_trainer_that_cannot_save_in_time_is_cut_off_and_what_is_lost_is_said(
    build_run: BuildRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A process that does not hear SIGTERM stands in for a save that takes too long."""
    caplog.set_level("INFO")
    monkeypatch.setattr(monitor, "POLL_SECONDS", 0.01)
    monkeypatch.setenv(STOP_VARIABLE, "0.2")
    run = build_run("slow")
    rows = "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(1, 41))
    deaf = f"""
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path({run.output!r})
(folder / "checkpoints" / "30").mkdir(parents=True)
(folder / "checkpoints" / "30" / "digests.json").touch()
(folder / "metrics.jsonl").write_text({rows!r})
signal.pause()
"""
    processes: list[Any] = []
    start: Any = subprocess.Popen

    def start_deaf(_command: list[str], **settings: Any) -> Any:
        processes.append(start([sys.executable, "-c", deaf], **settings))
        return processes[-1]

    monkeypatch.setattr(local.subprocess, "Popen", start_deaf)
    with pytest.raises(Stopped):
        launch_trainer(run, ignore, stop_after(40, run))
    assert processes[0].returncode == -signal.SIGKILL
    assert "slow: stopped after step 40 of 90; the checkpoint of step 30 is kept, and 10 updates are done again" in caplog.text


@pytest.mark.parametrize(("code", "ending"), [(4, "ended stalled"), (75, "ended preempted"), (-9, "was ended by SIGKILL")])
def test_what_may_go_on_is_started_again(
    build_run: BuildRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, ending: str
):
    """Three times it ends early, and the fourth life ends with a result."""
    caplog.set_level("INFO")
    lives: list[Path] = []

    def end_early(run_file: Path, *_: object) -> int:
        (run_file.parent / "trainer.log").touch()
        lives.append(run_file)
        if len(lives) <= MAX_RESTARTS:
            return code
        write_json(run_file.parent / "result.json", {"life": len(lives)})
        return 0

    start_instead(monkeypatch, end_early)
    assert launch_trainer(build_run(f"unlucky{code}"), ignore) == {"life": 1 + MAX_RESTARTS}
    assert caplog.text.count(f"unlucky{code}: the trainer {ending}; going on from its beginning") == MAX_RESTARTS


def test_a_run_that_is_carried_out_otherwise_goes_on_in_its_folder(build_run: BuildRun, trained_at: Path, monkeypatch: pytest.MonkeyPatch):
    """Another mesh, other kernels, other sinks: the same run, and its checkpoints are its own."""
    before = build_run("moved")
    write_json(trained_at / "moved" / "run.json", before.model_dump(mode="json"))
    (trained_at / "moved" / "checkpoints" / "30").mkdir(parents=True)
    changes = {
        "execution": {"mesh": {"fsdp": 2}, "remat": "full", "microbatch_sequences": 1},
        "instrumentation": {"layer_norms_every": 5, "tensorboard": True},
    }
    after = before.but(**changes)
    found: list[RunConfig] = []

    def look(run_file: Path, *_: object) -> int:
        found.append(RunConfig.model_validate(read_sealed(run_file)))
        assert (run_file.parent / "checkpoints" / "30").is_dir()
        write_json(run_file.parent / "result.json", {"run_digest": after.digest})
        return 0

    start_instead(monkeypatch, look)
    assert launch_trainer(after, ignore) == {"run_digest": before.digest}
    assert found == [after]
    assert not list(trained_at.glob("moved.superseded-*"))


@pytest.mark.parametrize(("code", "kind"), [(1, VerdictError), (2, TrainingError), (3, TrainingDiverged), (120, TrainingError)])
def test_a_failure_has_its_kind_and_its_last_reason(build_run: BuildRun, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]):
    """One clear line, and no second try: what failed for a reason would fail for it again."""
    lives: list[int] = []

    def fail(run_file: Path, *_: object) -> int:
        with open(run_file.parent / "trainer.log", "a") as log:
            log.write("trainer: an old reason.\nnoise\ntrainer: the reason.\nTraceback: noise\n")
        lives.append(code)
        return code

    start_instead(monkeypatch, fail)
    with pytest.raises(kind, match=r"^fails was not trained: the reason\.$") as failure:
        launch_trainer(build_run("fails"), ignore)
    assert type(failure.value) is kind
    assert len(lives) == 1


def test_a_trainer_whose_log_could_not_be_written_says_that_its_disk_is_full(build_run: BuildRun, monkeypatch: pytest.MonkeyPatch):
    start_instead(monkeypatch, lambda *_: ExitCode.NO_STORAGE)
    with pytest.raises(StorageError, match=r"No space left on device \(the trainer ended with code 7: its log says nothing") as failure:
        launch_trainer(build_run("full"), ignore)
    assert failure.value.exit_code == 7


def test_a_loss_that_is_no_number_stops_the_run(build_run: BuildRun):
    with pytest.raises(
        TrainingDiverged, match=r"diverges was not trained: phase diverges: (loss|grad_norm|param_norm) is (nan|inf) at step \d+"
    ):
        launch_trainer(build_run("diverges", peak=1e30), ignore)


@pytest.mark.parametrize(
    ("name", "what"),
    [("digests.json", "is damaged"), ("state/manifest.ocdbt", "is damaged"), ("../../metrics.jsonl", "was saved with other rows than")],
)
def test_a_finished_phase_whose_last_checkpoint_was_damaged_goes_on_from_the_one_before(
    trained: Trained, name: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A digest, weights, or a row of the metrics was changed; killed on the way, the run does not look finished."""
    run, last = trained.run, Path(trained.result["checkpoint"])
    content = (last / name).read_bytes()
    (last / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert finished_result(run) is None
    caplog.set_level("INFO")
    with monkeypatch.context() as patch:
        start_instead(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            launch_trainer(run, ignore)
    assert f"its last checkpoint {what}" in caplog.text
    assert not (Path(run.output) / "result.json").exists()
    assert launch_trainer(run, lambda rows: None) == trained.result == finished_result(run)


def interrupt(*_: object) -> int:
    raise KeyboardInterrupt


def test_a_last_checkpoint_that_was_deleted_to_make_room_is_no_damage(trained: Trained, tmp_path: Path):
    last = Path(trained.result["checkpoint"])
    last.rename(tmp_path / "elsewhere")
    assert finished_result(trained.run) == trained.result
    (tmp_path / "elsewhere").rename(last)
    assert finished_result(trained.run) == trained.result
