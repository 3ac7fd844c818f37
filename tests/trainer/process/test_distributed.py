import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import pytest

from phasewise.trainer import recorder
from phasewise.trainer.base.errors import ConfigError, ExitCode
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.state import read_params
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.process import distributed
from phasewise.trainer.process.distributed import is_of_the_runtime, start
from phasewise.trainer.step import params_digest
from tests.ports import free_port
from tests.trainer.conftest import MakeRun, RowsOf, WaitUntil

StartOn = Callable[[RunConfig, int], "list[subprocess.Popen[bytes]]"]
HEARTBEAT_SECONDS = 5

# processes that start again and again; a busy machine may need minutes for them
pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]


def test_the_environment_says_who_this_is_or_is_refused_where_it_contradicts_itself(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Any, ...]] = []

    def initialize(address: str | None, *, num_processes: int | None, process_id: int | None, **seconds: int) -> None:
        asked.append((address, num_processes, process_id, seconds["heartbeat_timeout_seconds"]))

    monkeypatch.setattr(distributed.jax.distributed, "initialize", initialize)
    start({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"})
    start({"TPU_WORKER_HOSTNAMES": "a,b", "PHASEWISE_HEARTBEAT_SECONDS": "7"})
    start({"MEGASCALE_COORDINATOR_ADDRESS": "a"})
    assert asked == [("a:1", 4, 3, 60), (None, None, None, 7), (None, None, None, 60)]
    for environment, message in (
        ({"JAX_NUM_PROCESSES": "2"}, "must be set both or not at all, found only JAX_NUM_PROCESSES"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID must be below JAX_NUM_PROCESSES, found 2 of 2"),
        ({"JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES must be a whole number, found 'two'"),
    ):
        with pytest.raises(ConfigError, match=message):
            start({"JAX_COORDINATOR_ADDRESS": "localhost:1", **environment})
    assert len(asked) == 3


def test_a_collective_that_fails_is_another_process_s_end():
    assert is_of_the_runtime(jax.errors.JaxRuntimeError("INTERNAL: Gloo all-reduce failed"))
    assert is_of_the_runtime(ValueError("UNKNOWN: Gloo AllGather failed: Read error [127.0.0.1]:50824: Connection reset by peer"))
    for error in (ValueError("the batch is UNKNOWN: look"), OSError("UNKNOWN: no space"), ConfigError("INTERNAL: no")):
        assert not is_of_the_runtime(error)


class Jax:
    """jax's rule: all stop at the number after the largest that any has asked with; before the first that is 0.

    Tried with jax 0.10.2: a SIGTERM before the first question, then questions from 41 on, is never answered.
    """

    last, point = 0, -1

    def notice(self) -> None:
        self.point = self.last + 1

    def reached(self, number: int) -> bool:
        self.last = number
        return number == self.point


@pytest.mark.parametrize("heard_before", range(5))
@pytest.mark.parametrize("steps", [[1, 2, 3, 4, 5], [41, 42, 47, 48, 53], [41, 42, 31, 32, 37]], ids=["begins", "skips", "rolls back"])
def test_a_stop_is_agreed_on_at_the_next_update(monkeypatch: pytest.MonkeyPatch, steps: list[int], heard_before: int):
    jax = Jax()
    monkeypatch.setattr(distributed, "_stop_requests", itertools.count(1))
    monkeypatch.setattr(distributed.multihost_utils, "reached_preemption_sync_point", jax.reached)
    for number, step in enumerate(steps):
        if number == heard_before:
            jax.notice()
        assert distributed.stop_agreed(step) == (number == heard_before)


def test_the_first_alone_writes_metrics(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = make_run("first")
    for first in (False, True):
        monkeypatch.setattr(recorder, "is_first", lambda first=first: first)
        with recorder.Recorder(run, restored_step=0):
            assert (Path(run.output) / "metrics.jsonl").exists() == first


@pytest.fixture(scope="module")
def start_on() -> Iterator[StartOn]:
    """Starts `python -m phasewise.trainer RUN.json` as so many processes that share eight devices; what still runs at the end is killed."""
    with ExitStack() as stack:

        def start_all(run: RunConfig, count: int) -> "list[subprocess.Popen[bytes]]":
            path, found = Path(run.output) / "run.json", list["subprocess.Popen[bytes]"]()
            write_json(path, run.model_dump(mode="json"))
            joined = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
            environment = {
                **os.environ, **(joined if count > 1 else {}), "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "3", "PHASEWISE_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
                "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={8 // count}",
            }  # fmt: skip
            for index in range(count):
                own = {"JAX_PROCESS_ID": str(index)} if count > 1 else {}
                with open(path.with_name(f"trainer-{index}.log"), "wb") as log:
                    command = [sys.executable, "-m", "phasewise.trainer", str(path)]
                    found.append(stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log, env=environment | own)))
                stack.callback(found[-1].kill)
            return found

        yield start_all


def run_on(make_run: MakeRun, name: str, **mesh: int) -> RunConfig:
    """Eight updates; two microbatches each from step 4 on."""
    return make_run(name, stop_step=8, batch=[[0, 8], [4, 16]], execution={"mesh": mesh, "microbatch_sequences": 8})


def logs(run: RunConfig) -> str:
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(Path(run.output).glob("trainer-*.log")))


def last_step(run: RunConfig) -> int:
    rows = read_metrics(Path(run.output) / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def assert_nearly_equal(rows: list[Row], expected: list[Row]) -> None:
    """The same updates, the same batches, and numbers within float32 rounding: other devices add up in another order.

    `batch_het` compares the parts of a batch, which are others on another mesh.
    """
    assert [row["step"] for row in rows] == [row["step"] for row in expected] == list(range(1, 9))
    for row, wanted in zip(rows, expected, strict=True):
        ours, theirs = ({name: value for name, value in one.items() if name != "batch_het"} for one in (row, wanted))
        assert ours == pytest.approx(theirs, rel=2e-5, abs=1e-6)


@pytest.fixture(scope="module")
def straight(make_run: MakeRun, start_on: StartOn, rows_of: RowsOf) -> list[Row]:
    run = run_on(make_run, "one of eight", replica=2, fsdp=4)
    assert [process.wait() for process in start_on(run, 1)] == [0], logs(run)
    return rows_of(run)


def test_two_processes_train_what_one_trains(make_run: MakeRun, start_on: StartOn, rows_of: RowsOf, straight: list[Row]):
    run = run_on(make_run, "two of four", replica=2, fsdp=4)
    assert [process.wait() for process in start_on(run, 2)] == [0, 0], logs(run)
    assert_nearly_equal(rows_of(run), straight)
    weights = params_digest(read_params(RunFolder(run.output).checkpoint(8), run.model))
    assert read_json(Path(run.output) / "result.json")["params_digest"] == weights


def test_a_sigterm_to_one_stops_both_and_the_run_goes_on_on_another_mesh(
    make_run: MakeRun, start_on: StartOn, wait_until: WaitUntil, rows_of: RowsOf, straight: list[Row]
):
    run = run_on(make_run, "moved", context=8)  # each process has all rows and half of their positions
    first, second = start_on(run, 2)
    wait_until(first, lambda: last_step(run) >= 1)
    second.terminate()
    assert [first.wait(), second.wait()] == [75, 75], logs(run)
    stopped = last_step(run)
    assert 1 <= stopped < 8
    assert (RunFolder(run.output).checkpoint(stopped) / "about").exists()
    moved = run_on(make_run, "moved", fsdp=2, tensor=2, context=2)
    assert [process.wait() for process in start_on(moved, 1)] == [0], logs(moved)
    assert_nearly_equal(rows_of(moved), straight)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_where_one_process_is_killed_the_other_ends(make_run: MakeRun, start_on: StartOn, wait_until: WaitUntil, victim: int):
    run = run_on(make_run, f"bereft of {victim}", replica=2, fsdp=4)
    processes = start_on(run, 2)
    wait_until(processes[0], lambda: last_step(run) >= 1)
    processes[victim].kill()
    code = processes[1 - victim].wait(timeout=6 * HEARTBEAT_SECONDS)
    assert code in (ExitCode.LOST, -signal.SIGABRT), logs(run)
    assert not (Path(run.output) / "result.json").exists()
