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

from phasewise.tasks.training import attempts, launchers
from phasewise.tasks.training.attempts import MAX_RESTARTS, SliceSegment, launch_trainer
from phasewise.tasks.training.execution import execution_summary
from phasewise.tasks.training.launchers import LocalLauncher
from phasewise.tasks.training.run_identity import extend_run, finished_result, is_begun, last_saved_step, why_not_extended
from phasewise.tasks.training.time_breakdown import read_attempts, read_time_breakdown
from phasewise.trainer.base.errors import ExitCode, StorageError, TrainingDiverged, TrainingError, VerdictError
from phasewise.trainer.base.identity import digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event, read_events
from phasewise.trainer.config import Execution, LearningRateSegment, Mesh, RunConfig
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.process.child_process import STOP_VARIABLE
from phasewise.trainer.run import main
from phasewise.trainer.skipped_steps import SkippedSteps, Window, write_skipped_steps
from tests.compilation import compile_from_now_on
from tests.tasks.training.conftest import STEPS, BuildRun, rows_of, short

pytestmark = pytest.mark.timeout(600)  # a guard against hanging

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
KILLED_AFTER = 35
MOVED_STEPS, MOVED_AT = 12, 7


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    compile_from_now_on(quickly=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setattr("phasewise.tasks.training.attempts.BACKOFF_SECONDS", 0.01)
        patch.setattr("phasewise.tasks.training.attempts.POLL_SECONDS", 0.01)
        yield


@pytest.fixture(autouse=True)
def all_is_logged(caplog: Log) -> None:
    caplog.set_level("INFO")


def ignore(rows: list[Row]) -> None:
    assert rows


def start_instead(patch: Patch, attempt: Callable[[Path], int]) -> None:
    patch.setattr(attempts, "start_and_monitor", lambda _launcher, one, *_: attempt(one.run_file))


@dataclass(frozen=True)
class Trained:
    """A run that nothing disturbed, its result, the rows that were passed on while it ran, and how long it took."""

    run: RunConfig
    result: dict[str, Any]
    said: list[Row]
    seconds: float


@pytest.fixture(scope="module")
def trained(build_run: BuildRun) -> Trained:
    run, said, started = build_run("plain"), list[Row](), time.monotonic()
    band = {name: [value] * STEPS for name, value in (("low", 0.1), ("mean", 3.0), ("high", 100.0))}
    forecast = {"run_digest": run.digest, "patience_updates": 5, "earlier_phases": 8, **band}
    result = launch_trainer(run, said.extend, forecast=forecast)
    return Trained(run, result, said, time.monotonic() - started)


def test_a_run_ends_with_its_result_and_is_not_trained_again(trained: Trained, monkeypatch: Patch):
    output = Path(trained.run.output)
    [forecast] = read_events(output)
    assert forecast["text"] == f"loss of 3 forecast for the end, sha256 {digest_of_json(read_sealed(output / 'forecast.json'))}"
    assert trained.result == read_sealed(output / "result.json") == finished_result(trained.run)
    assert trained.result["run_digest"] == trained.run.digest
    assert [row["step"] for row in trained.said] == list(range(1, STEPS + 1))
    assert trained.said == read_metrics(output / "metrics.jsonl")
    assert trained.said[-1]["loss"] < trained.said[0]["loss"] - 0.5
    spent: Any = read_time_breakdown(output)
    assert spent.lives == 1
    assert {"process", "compile", "step", "save"} <= spent.seconds.keys()
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds, rel=0.01)
    assert 0.8 * trained.seconds < spent.wall_seconds <= trained.seconds
    monkeypatch.setattr(launchers, "subprocess", None)
    assert launch_trainer(trained.run, ignore) == trained.result
    last = Path(trained.result["checkpoint"])
    moved = last.rename(last.with_name("elsewhere"))
    assert finished_result(trained.run) == trained.result, "it was deleted to make room"
    moved.rename(last)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_run_sets_the_folder_aside(build_run: BuildRun, trained_at: Path, monkeypatch: Patch, caplog: Log):
    folder, before, after = trained_at / "changing", build_run("changing"), build_run("changing", seed=1)
    write_sealed(folder / "run.json", before.model_dump(mode="json"))
    write_sealed(folder / "result.json", {"run_digest": before.digest})
    (folder / "checkpoints" / "10").mkdir(parents=True)
    kept = contents(folder)
    assert finished_result(before)
    assert finished_result(after) is None
    write_sealed(folder / "run.json", after.model_dump(mode="json"))
    assert finished_result(before) is None, "what the folder says of its run was changed"
    write_sealed(folder / "run.json", before.model_dump(mode="json"))
    start_instead(monkeypatch, lambda file: write_sealed(file.with_name("result.json"), {"run_digest": after.digest}) or 0)
    assert launch_trainer(after, ignore)["run_digest"] == after.digest
    (aside,) = trained_at.glob("changing.superseded-*")
    assert contents(aside) == kept
    assert (aside / "checkpoints" / "10").is_dir()
    assert f"it is kept in {aside.name}" in caplog.text


def is_trainer(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE and "phasewise.trainer" in process.cmdline()
    return False


@pytest.mark.long
def test_a_killed_trainer_goes_on_and_ends_with_the_same_weights(build_run: BuildRun, trained: Trained, caplog: Log):
    killed: list[int] = []
    seen: list[int] = []

    def kill_once(rows: list[Row]) -> None:
        seen.extend(row["step"] for row in rows)
        if not killed and KILLED_AFTER <= rows[-1]["step"] < STEPS:
            (child,) = filter(is_trainer, psutil.Process().children())
            os.kill(child.pid, signal.SIGKILL)
            killed.append(rows[-1]["step"])

    run = build_run("killed")
    result = launch_trainer(run, kill_once)
    assert killed
    assert "killed: the trainer was ended by SIGKILL; resuming from its " in caplog.text
    [event] = read_events(run.output)
    assert (event["kind"], event["step"]) in [("restart", step) for step in (None, 30, 60)]  # the last may not be committed yet
    assert (result["params_digest"], result["final_loss"]) == (trained.result["params_digest"], trained.result["final_loss"])
    assert [row["step"] for row in rows_of(run)] == list(range(1, STEPS + 1))
    assert set(seen) == set(range(1, STEPS + 1))


class Stopped(BaseException):
    """As a signal or Prefect stops a run."""


def stop_after(step: int, run: RunConfig) -> Callable[[], None]:
    def check() -> None:
        rows = read_metrics(Path(run.output) / "metrics.jsonl")
        if rows and rows[-1]["step"] >= step:
            raise Stopped

    return check


@pytest.mark.long
def test_a_run_that_is_stopped_saves_its_last_update_and_goes_on(build_run: BuildRun, trained: Trained, caplog: Log):
    run = build_run("stopped")
    with pytest.raises(Stopped):
        launch_trainer(run, ignore, stop_after(KILLED_AFTER, run))
    stopped_at = len(rows_of(run))
    assert stopped_at == last_saved_step(run)
    assert KILLED_AFTER <= stopped_at < STEPS
    assert f"stopped: stopped after step {stopped_at} of {STEPS}, which is saved; a restart resumes there" in caplog.text
    assert launch_trainer(run, ignore)["params_digest"] == trained.result["params_digest"]
    assert f"stopped: resuming from step {stopped_at} of {STEPS}" in caplog.text


def test_who_cannot_save_in_time_is_cut_off_and_what_is_lost_is_said(build_run: BuildRun, monkeypatch: Patch, caplog: Log):
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

    monkeypatch.setattr(launchers.subprocess, "Popen", start_deaf)
    with pytest.raises(Stopped):
        launch_trainer(run, ignore, stop_after(40, run))
    assert processes[0].returncode == -signal.SIGKILL
    assert "slow: stopped after step 40 of 90; the checkpoint of step 30 is kept, and 10 updates are done again" in caplog.text


@pytest.mark.parametrize(("code", "ending"), [(4, "ended stalled"), (75, "ended preempted"), (-9, "was ended by SIGKILL")])
def test_what_may_go_on_is_started_again(build_run: BuildRun, monkeypatch: Patch, caplog: Log, code: int, ending: str):
    lives: list[Path] = []

    def end_early(run_file: Path) -> int:
        lives.append(run_file)
        if len(lives) <= MAX_RESTARTS:
            return code
        write_sealed(run_file.parent / "result.json", {"life": len(lives)})
        return 0

    start_instead(monkeypatch, end_early)
    assert launch_trainer(build_run(f"unlucky{code}"), ignore) == {"life": 1 + MAX_RESTARTS}
    assert caplog.text.count(f"unlucky{code}: the trainer {ending}; resuming from its beginning") == MAX_RESTARTS


def test_another_execution_goes_on_in_the_folder(build_run: BuildRun, trained_at: Path, monkeypatch: Patch, caplog: Log):
    before, folder = build_run("otherwise"), trained_at / "otherwise"
    write_sealed(folder / "run.json", before.model_dump(mode="json"))
    (folder / "checkpoints" / "30").mkdir(parents=True)
    execution = {"mesh": {"fsdp": 2}, "remat": "full", "microbatch_sequences": 1}
    after = before.but(execution=execution, instrumentation={"layer_norms_every": 5, "tensorboard": True})
    found: list[RunConfig] = []

    def look(run_file: Path) -> int:
        found.append(RunConfig.model_validate(read_sealed(run_file)))
        assert (run_file.parent / "checkpoints" / "30").is_dir()
        append_event(run_file.parent, "replanned", 30, "going on under other conditions")
        write_sealed(run_file.parent / "result.json", {"run_digest": after.digest})
        return 0

    start_instead(monkeypatch, look)
    assert launch_trainer(after, ignore) == {"run_digest": before.digest}
    assert found == [after]
    assert not list(trained_at.glob("otherwise.superseded-*"))
    assert caplog.text.count("otherwise: going on under other conditions") == 1


NO_SPACE = r"No space left on device \(the trainer ended with code 7: its log says nothing"
REASON = r"^fails\d+ was not trained: the reason\.$"


@pytest.mark.parametrize(("code", "log", "kind", "message"), [
    *((code, "trainer: an old reason.\nnoise\ntrainer: the reason.\nTraceback: noise\n", kind, REASON) for code, kind in (
        (1, VerdictError), (2, TrainingError), (3, TrainingDiverged), (120, TrainingError))),
    (ExitCode.NO_STORAGE, "", StorageError, NO_SPACE),
])  # fmt: skip
def test_a_failure_has_its_kind_its_last_reason_and_no_second_try(
    build_run: BuildRun, monkeypatch: Patch, code: int, log: str, kind: Any, message: str
):
    lives: list[int] = []

    def fail(run_file: Path) -> int:
        run_file.with_name("trainer.log").write_text(log)
        lives.append(code)
        return code

    start_instead(monkeypatch, fail)
    with pytest.raises(kind, match=message) as failure:
        launch_trainer(build_run(f"fails{code}"), ignore)
    assert type(failure.value) is kind
    assert len(lives) == 1


@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param("state/manifest.ocdbt", "is damaged", marks=pytest.mark.long),
        ("../../metrics.jsonl", "was saved with other rows than"),
    ],
)
def test_a_finished_phase_goes_on_from_before_a_damaged_checkpoint(trained: Trained, name: str, what: str, monkeypatch: Patch, caplog: Log):
    run, file = trained.run, Path(trained.result["checkpoint"]) / name
    content = file.read_bytes()
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert finished_result(run) is None

    def interrupt(_: Path) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        start_instead(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            launch_trainer(run, ignore)
    assert f"its last checkpoint {what}" in caplog.text
    assert not (Path(run.output) / "result.json").exists(), "killed on the way, it must not look finished"
    assert launch_trainer(run, ignore) == trained.result == finished_result(run)


# ── a phase that goes on on another slice ──


def segments_of(run: RunConfig) -> list[SliceSegment]:
    first = SliceSegment(run.but(execution=Execution(mesh=Mesh(fsdp=2)), until_step=MOVED_AT), LocalLauncher(), "cpu-2")
    return [first, SliceSegment(run.but(execution=Execution()), LocalLauncher(), "cpu-1")]


def train_here(run: RunConfig) -> int:
    file = RunFolder(run.output).run_file
    write_sealed(file, run.model_dump(mode="json"))
    return main([str(file)])


def test_more_steps_continue_from_the_last_checkpoint_and_give_the_weights_of_one_training(build_run: BuildRun):
    flat = LearningRateSegment(kind="constant", start_step=0, end_step=8, start=1e-3, end=1e-3)
    fall = LearningRateSegment(kind="linear", start_step=8, end_step=12, start=1e-3, end=0.0)
    first, at_once = (short(build_run(name), 12).but(learning_rate=(flat, fall)) for name in ("extended", "at-once"))
    begun = first.but(stop_step=8, learning_rate=(flat,))
    assert (train_here(begun), train_here(at_once)) == (ExitCode.DONE, ExitCode.DONE)
    early = first.but(learning_rate=(flat.but(end_step=6), fall.but(start_step=6)))
    assert why_not_extended(early) == "learning_rate of update 8: expected 0.001 as trained, found 0.000833333"
    assert why_not_extended(begun).startswith("stop_step: expected more than the trained 8, found 8")
    assert why_not_extended(first) == ""
    extend_run(first)
    assert is_begun(first)
    assert finished_result(first) is None
    assert train_here(first) == ExitCode.DONE
    results = [read_sealed(RunFolder(run.output).result) for run in (first, at_once)]
    assert len({result["params_digest"] for result in results}) == len({result["final_loss"] for result in results}) == 1
    assert [row["step"] for row in rows_of(first)] == list(range(1, 13))
    assert [event["text"] for event in read_events(first.output) if event["kind"] == "extended"] == ["continues from step 8 to step 12"]


@pytest.mark.long
def test_a_phase_goes_on_on_another_slice_with_the_same_batches_and_says_so(build_run: BuildRun):
    run, stayed = short(build_run("moved"), MOVED_STEPS), short(build_run("stayed"), MOVED_STEPS)
    launch_trainer(run, ignore, segments=segments_of(run))
    assert train_here(stayed) == ExitCode.DONE
    rows, wanted = rows_of(run), rows_of(stayed)
    assert [(row["step"], row["tokens"]) for row in rows] == [(row["step"], row["tokens"]) for row in wanted]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in wanted], rel=2e-4)
    (event,) = read_events(run.output)
    assert (event["kind"], event["step"]) == ("moved", MOVED_AT)
    assert event["text"] == "trained to step 7 on cpu-2: 2 devices (fsdp 2), and saved; resuming on cpu-1: 1 device, on the same batches"
    words = execution_summary(Path(run.output), "cpu-1")
    assert words.startswith("cpu-1: 1 device, ")
    assert words.endswith("; before that to step 7 on cpu-2: 2 devices (fsdp 2)")
    lives = read_attempts(Path(run.output))
    found = [(life.slice_name, life.from_step, life.to_step, life.is_whole) for life in lives]
    assert found == [("cpu-2", 0, MOVED_AT, True), ("cpu-1", MOVED_AT, MOVED_STEPS, True)]
    spent: Any = read_time_breakdown(Path(run.output))
    assert spent.slices == {"cpu-2": lives[0].wall_seconds, "cpu-1": lives[1].wall_seconds}
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds)
    assert "replay" not in spent.seconds


def test_a_segment_whose_checkpoint_is_not_there_is_trained_again(build_run: BuildRun, monkeypatch: Patch):
    run, lives = short(build_run("not saved"), MOVED_STEPS), list[int | None]()

    def end(run_file: Path) -> int:
        lives.append(RunConfig.model_validate(read_sealed(run_file)).until_step)
        if len(lives) == 1:
            return ExitCode.MOVES
        write_sealed(RunFolder(run.output).result, {})
        return ExitCode.DONE

    start_instead(monkeypatch, end)
    launch_trainer(run, ignore, segments=segments_of(run))
    assert lives == [MOVED_AT, MOVED_AT]
    assert [event["kind"] for event in read_events(run.output)] == ["restart"]


def test_a_move_within_what_is_passed_over_trains_nothing_of_it(build_run: BuildRun):
    found: list[list[Row]] = []
    for phase, untils in (("whole", [None]), ("in two", [MOVED_AT, None])):
        run = short(build_run(phase), MOVED_STEPS)
        write_skipped_steps(Path(run.output), SkippedSteps((Window(4, MOVED_AT + 1),)), ["a test"])
        for until_step in untils:
            assert train_here(run.but(until_step=until_step)) == (ExitCode.DONE if until_step is None else ExitCode.MOVES)
        found.append(rows_of(run))
    whole, in_two = found
    assert [row["step"] for row in whole] == [1, 2, 3, 4, *range(MOVED_AT + 2, MOVED_STEPS + 1)]
    assert in_two == whole
