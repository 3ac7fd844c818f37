"""What every launcher must do, tried on each: start, follow, preempt, lose a host, two owners, cancel.

Each run is two processes on two hosts. The model is tiny; the trainer, its processes and their connections are real. Trainers wait
where they are struck (`tests.trainer.gated`), so nothing depends on how quick the machine is.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from phasewise.tasks.training.attempts import SliceSegment, launch_trainer
from phasewise.tasks.training.launchers import Attempt, LocalLauncher
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import ROLL_CALL_NAME, RunFolder, read_events
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row
from phasewise.trainer.run import main
from tests.compilation import compile_from_now_on
from tests.tasks.training.conftest import BuildRun, called_as_python, rows_of, short
from tests.tasks.training.machines import Machines, machines_of
from tests.trainer.gated import gate, open_gate

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: processes that start again and again, on a machine that may be busy

STEPS = 24
STRIKES = (4, 11, 17)  # after which updates host 1 is preempted, then lost, then the run cancelled
MESHES = {"local": {"replica": 2, "fsdp": 2}}  # two virtual devices a process on this machine; elsewhere, one each


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    compile_from_now_on(quickly=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setattr("phasewise.tasks.training.attempts.BACKOFF_SECONDS", 0.01)
        patch.setattr("phasewise.tasks.training.attempts.POLL_SECONDS", 0.02)
        yield


@pytest.fixture(scope="module", params=["local", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("jobset", "tpu_vm"))])
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp(request.param)
    with machines_of(request.param, folder, called_as_python(folder, "tests.trainer.gated")) as found:
        yield found


def execution_on(kind: str) -> dict[str, object]:
    return {"mesh": MESHES.get(kind, {"fsdp": 2})}


def pids_of(run: RunConfig) -> list[int]:
    meeting = max(Path(run.output).glob(f"{ROLL_CALL_NAME}/*"), key=lambda meeting: meeting.stat().st_mtime)
    return [read_json(path)["pid"] for path in sorted(meeting.glob("*.json"))]


def none_is_left(pids: list[int]) -> bool:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


class Cancelled(BaseException):
    """As a signal or Prefect stops a run."""


@dataclass
class Story:
    """One run that meets everything, the processes of its attempts, the refusal of a second launcher, and where it was cancelled."""

    run: RunConfig
    machines: Machines
    said: list[Row] = field(default_factory=list)
    lives: list[list[int]] = field(default_factory=list)
    refused: str = ""
    stopped: int = 0
    result: dict[str, Any] = field(default_factory=dict)

    def tell(self) -> None:
        folder = Path(self.run.output)
        folder.mkdir()
        for step in STRIKES:
            gate(folder, step).touch()
        with pytest.raises(Cancelled):
            launch_trainer(self.run, self.on_rows, segments=[SliceSegment(self.run, self.machines.launcher())])
        self.stopped = len(rows_of(self.run))
        assert none_is_left(self.lives[-1])
        assert self.machines.are_clean()
        self.result = launch_trainer(self.run, self.said.extend, segments=[SliceSegment(self.run, self.machines.launcher())])

    def on_rows(self, rows: list[Row]) -> None:
        self.said.extend(rows)
        number, folder = len(self.lives), Path(self.run.output)
        if number == len(STRIKES) or rows[-1]["step"] != STRIKES[number] - 1:
            return
        self.lives.append(pids_of(self.run))
        if number == 0:
            with pytest.raises(TrainingError) as refused:
                launch_trainer(self.run, lambda rows: None, segments=[SliceSegment(self.run, self.machines.launcher())])
            self.refused = str(refused.value)
            self.machines.refuses_second(Attempt(self.run, folder / "run.json", owner="somebody else"))
        if number < 2:
            os.kill(self.lives[-1][1], (signal.SIGTERM, signal.SIGKILL)[number])
        open_gate(folder, STRIKES[number], is_asked=number != 1)
        if number == 2:
            raise Cancelled


@pytest.fixture(scope="module")
def alone(build_run: BuildRun) -> list[Row]:
    run = short(build_run("alone"), STEPS)
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    assert main([str(Path(run.output) / "run.json")]) == 0
    return rows_of(run)


@pytest.fixture(scope="module")
def story(build_run: BuildRun, machines: Machines) -> Story:
    found = Story(short(build_run(machines.kind), STEPS).but(execution=execution_on(machines.kind)), machines)
    found.tell()
    return found


def test_a_run_is_followed_through_preemption_loss_and_cancelling_and_says_why(story: Story, alone: list[Row]):
    unsaid = set(range(1, STEPS + 1)) - {row["step"] for row in story.said}
    assert unsaid <= set(range(STRIKES[2], story.stopped + 1)), "all rows but those while it was stopped"
    rows = rows_of(story.run)
    assert [(row["step"], row["tokens"]) for row in rows] == [(row["step"], row["tokens"]) for row in alone]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in alone], rel=2e-4)
    assert RunFolder(Path(story.run.output)).log(1).exists(), "the log of every host is in the run's folder"
    assert story.machines.are_clean()
    assert all(none_is_left(pids) for pids in story.lives)
    preempted, restart, lost, cancelled, resumed = read_events(story.run.output)
    assert [event["kind"] for event in (preempted, restart, lost)] == ["preempted", "restart", "restart"]
    assert restart["step"] == preempted["step"] == STRIKES[0], "nothing is trained twice"
    assert re.search(rf"host 1 \([^()]*{re.escape(story.machines.names[1])}[^()]*\) was ended by SIGKILL", lost["text"])
    assert (cancelled["kind"], resumed["kind"]) == ("preempted", "resumed")
    assert cancelled["step"] == resumed["step"] == story.stopped == STRIKES[2]
    first, second, third = map(set, story.lives)
    assert not first & second
    assert not second & third
    one_at_a_time = r"a run has one launcher at a time, found the \S+ launcher \(process \d+, .*\) at work on .*: wait for it"
    assert re.match(one_at_a_time, story.refused)


@pytest.mark.long
def test_after_all_of_it_the_weights_are_the_same_bit_for_bit(story: Story, build_run: BuildRun):
    run = short(build_run(f"undisturbed {story.machines.kind}"), STEPS).but(execution=execution_on(story.machines.kind))
    result = launch_trainer(run, lambda rows: None, segments=[SliceSegment(run, LocalLauncher(2))])
    assert not read_events(run.output)
    assert story.result["run_digest"] == story.run.digest
    assert story.result["params_digest"] == result["params_digest"]
