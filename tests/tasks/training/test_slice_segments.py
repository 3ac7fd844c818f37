"""A phase that goes on on another slice: on the same batches, with what happened among its events and in its account."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from phasewise.tasks.training import attempts as module
from phasewise.tasks.training.attempts import SliceSegment, launch_trainer
from phasewise.tasks.training.execution import execution_summary
from phasewise.tasks.training.launchers import Attempt
from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.time_breakdown import read_attempts, read_time_breakdown
from phasewise.trainer.base.errors import ExitCode
from phasewise.trainer.base.run_folder import RunFolder, read_events
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Execution, Mesh, RunConfig
from phasewise.trainer.metrics import Row, of_the_clock, read_metrics
from phasewise.trainer.passed_over import PassedOver, Window, write_passed_over
from phasewise.trainer.run import main
from tests.tasks.training.conftest import BuildRun

pytestmark = pytest.mark.timeout(600)  # a guard against hanging

MOVED_STEPS, MOVED_AT, SAVED_EVERY = 12, 7, 5
TWO, ONE = Execution(mesh=Mesh(fsdp=2)), Execution()


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setattr("phasewise.tasks.training.monitor.POLL_SECONDS", 0.02)
        yield


def short_run(run: RunConfig) -> RunConfig:
    checkpoints = {"every_steps": SAVED_EVERY, "every_minutes": None, "keep_all": False}
    return run.but(
        stop_step=MOVED_STEPS, batch=[[0, 4]], checkpoints=checkpoints, learning_rate=[run.learning_rate[0].but(end_step=MOVED_STEPS)]
    )


def segments_of(run: RunConfig) -> list[SliceSegment]:
    """Two devices, then one."""
    first = SliceSegment(run.but(execution=TWO, until_step=MOVED_AT), LocalLauncher(), "cpu-2")
    return [first, SliceSegment(run.but(execution=ONE), LocalLauncher(), "cpu-1")]


def rows_of(run: RunConfig) -> list[Row]:
    rows = read_metrics(RunFolder.at(run.output).metrics)
    return [{name: value for name, value in row.items() if not of_the_clock(name)} for row in rows]


@pytest.fixture(scope="module")
def moved(build_run: BuildRun) -> RunConfig:
    run = short_run(build_run("moved"))
    launch_trainer(run, lambda rows: None, segments=segments_of(run))
    return run


@pytest.fixture(scope="module")
def stayed(build_run: BuildRun) -> RunConfig:
    """The same on one device, in this process."""
    run = short_run(build_run("stayed"))
    write_json(RunFolder.at(run.output).run_file, run.model_dump(mode="json"))
    assert main([str(RunFolder.at(run.output).run_file)]) == ExitCode.DONE
    return run


def test_it_goes_on_with_the_same_batches(moved: RunConfig, stayed: RunConfig):
    rows, wanted = rows_of(moved), rows_of(stayed)
    assert [row["step"] for row in rows] == list(range(1, MOVED_STEPS + 1))
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in wanted]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in wanted], rel=2e-4)


def test_where_it_moved_is_among_its_events(moved: RunConfig):
    (event,) = read_events(moved.output)
    assert (event["kind"], event["step"]) == ("moved", MOVED_AT)
    assert event["text"] == ("trained to step 7 on cpu-2: 2 devices (fsdp 2), and saved; going on on cpu-1: 1 device, on the same batches")
    words = execution_summary(Path(moved.output), "cpu-1")
    assert words.startswith("cpu-1: 1 device, ")
    assert words.endswith("; before that to step 7 on cpu-2: 2 devices (fsdp 2)")


def test_the_account_has_each_slice(moved: RunConfig):
    lives = read_attempts(Path(moved.output))
    assert [(life.slice_name, life.from_step, life.to_step, life.is_whole) for life in lives] == [
        ("cpu-2", 0, MOVED_AT, True),
        ("cpu-1", MOVED_AT, MOVED_STEPS, True),
    ]
    spent = read_time_breakdown(Path(moved.output))
    assert spent is not None
    assert spent.slices == {"cpu-2": lives[0].wall_seconds, "cpu-1": lives[1].wall_seconds}
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds)
    assert "replay" not in spent.seconds


def test_a_move_whose_state_is_not_there_is_not_believed(build_run: BuildRun, monkeypatch: pytest.MonkeyPatch):
    """The launcher looks for the checkpoint; where there is none, the segment is trained again, as after a loss."""
    run = short_run(build_run("not saved"))
    lives: list[int | None] = []

    def end(_launcher: object, attempt: Attempt, *_: object) -> int:
        lives.append(attempt.run.until_step)
        if len(lives) == 1:
            return ExitCode.MOVES
        write_json(RunFolder.at(run.output).result, {})
        return ExitCode.DONE

    monkeypatch.setattr(module, "start_and_monitor", end)
    launch_trainer(run, lambda rows: None, segments=segments_of(run))
    assert lives == [MOVED_AT, MOVED_AT]
    assert [event["kind"] for event in read_events(run.output)] == ["restart"]


def test_a_move_within_what_is_passed_over_trains_nothing_of_it(stayed: RunConfig, build_run: BuildRun):
    """The update after which the slice changes is never made."""
    found: list[list[Row]] = []
    for phase, untils in (("whole", [None]), ("in two", [MOVED_AT, None])):
        run = short_run(build_run(phase))
        file = RunFolder.at(run.output).run_file
        write_passed_over(Path(run.output), PassedOver((Window(4, MOVED_AT + 1),)), ["a test"])
        for until in untils:
            write_json(file, run.but(until_step=until).model_dump(mode="json"))
            assert main([str(file)]) == (ExitCode.DONE if until is None else ExitCode.MOVES)
        found.append(rows_of(run))
    whole, in_two = found
    assert [row["step"] for row in whole] == [1, 2, 3, 4, *range(MOVED_AT + 2, MOVED_STEPS + 1)]
    assert in_two == whole
