import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.trainer.base.errors import ExitCode
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.process.watchdog import Doing, heartbeat, only_one_trainer
from phasewise.trainer.run import main
from phasewise.trainer.step import init_state
from tests.trainer.conftest import MakeRun
from tests.trainer.token_caches import write_passing_verdict

pytestmark = [pytest.mark.usefixtures("built_once"), pytest.mark.timeout(240)]  # a guard against hanging


def execute(run: RunConfig) -> int:
    path = Path(run.output) / "run.json"
    write_json(path, run.model_dump(mode="json"))
    return main([str(path)])


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """The one line on standard error; nothing may be on standard output."""

    def read() -> str:
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1, captured.err
        return captured.err

    return read


def test_wrong_usage_is_said(said: Callable[[], str]):
    for arguments in ([], ["--help"], ["a.json", "b.json"], ["--with-parent"]):
        assert main(arguments) == 2
        assert said() == "usage: python -m phasewise.trainer RUN.json [--with-parent]\n"


def test_a_typo_ends_the_process_with_2_one_line_and_no_traceback(make_run: MakeRun, tmp_path: Path):
    values = make_run("typo").model_dump(mode="json")
    values["optimizer"]["weight_decya"] = values["optimizer"].pop("weight_decay")
    write_json(tmp_path / "run.json", values)
    command = [sys.executable, "-m", "phasewise.trainer", str(tmp_path / "run.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False)
    problems = "optimizer.adamw.weight_decay: expected a value, found none; optimizer.adamw.weight_decya: there is no such field"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"trainer: {tmp_path}/run.json is not a run: {problems}\n")


SPOILED: dict[str, Callable[[RunConfig], None]] = {
    "has no verdict at": lambda run: Path(run.verdict).unlink(),
    "does not pass": lambda run: write_passing_verdict(run, passes=False),
    "was given for other bytes of books": lambda run: write_passing_verdict(run, judged=dict.fromkeys(run.caches, "0" * 64)),
}


@pytest.mark.parametrize("message", SPOILED)
def test_without_a_verdict_nothing_is_trained_or_written(make_run: MakeRun, said: Callable[[], str], message: str):
    run = make_run(message)
    SPOILED[message](run)
    assert execute(run) == 1
    assert message in said()
    assert {path.name for path in Path(run.output).iterdir()} <= {"run.json", "verdict.json"}


def test_another_order_than_that_of_the_checkpoint_and_one_beyond_the_run_s_end_are_refused(make_run: MakeRun, said: Callable[[], str]):
    for name, changes in (("reordered", {}), ("shortened", {"mixture": [[0, {"books": 100}]]})):
        run = make_run(name, **changes)
        folder = Path(run.output) / "checkpoints"
        with Checkpoints(folder, run) as checkpoints:
            checkpoints.save(6, init_state(run), Loader(run).contract())
        other = {"caches": {**run.caches, "books": run.caches["code"]}} if name == "reordered" else {"stop_step": 3, **changes}
        assert execute(make_run(name, **other)) == 1
        assert name == "shortened" or "6 was trained on another data order: components changed since" in said()
        assert [path.name for path in folder.iterdir()] == ["6"]
        assert not (Path(run.output) / "result.json").exists()


def test_a_second_trainer_in_the_folder_is_refused(make_run: MakeRun, said: Callable[[], str]):
    run = make_run("taken")
    at_work = f"another trainer is at work in {run.output} (process {os.getpid()}, step after step 7): wait for it, or stop it.\n"
    doing = Doing("step", 0.0, None), 7
    with only_one_trainer(Path(run.output)) as fence, heartbeat(Path(run.output), lambda: doing, token=fence.number):
        assert execute(run) == 1
        assert said() == f"trainer: {at_work}"
        fence.check()
    assert not (Path(run.output) / "checkpoints").exists()


def test_a_run_that_diverges_ends_with_3_and_says_where(make_run: MakeRun, said: Callable[[], str]):
    segment = {"kind": "constant", "start_step": 0, "end_step": 24, "start": 1e30, "end": 1e30}
    run = make_run("diverged", learning_rate=[segment])
    assert execute(run) == 3
    assert "trainer: phase diverged: param_norm is inf at step 1. The last checkpoint before it is kept in " in said()
    assert [(row["step"], row["param_norm"]) for row in read_metrics(Path(run.output) / "metrics.jsonl")] == [(1, None)]
    assert not (Path(run.output) / "result.json").exists()


def test_a_kernel_that_cannot_run_here_is_refused(make_run: MakeRun, said: Callable[[], str]):
    assert execute(make_run("another kernel", execution={"attention": "splash"})) == 2
    assert "execution.attention = splash needs a TPU, found cpu" in said()


def test_the_codes_are_those_that_scripts_know():
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0, "REFUSED": 1, "USAGE": 2, "DIVERGED": 3, "STALLED": 4, "LOST": 5, "TAKEN_OVER": 6, "NO_STORAGE": 7,
        "ASKS": 8, "MOVES": 9, "PREEMPTED": 75,
    }  # fmt: skip


def test_a_phase_starts_where_its_parent_ended_and_says_what_it_did(make_run: MakeRun):
    parent = make_run("three", stop_step=3)
    assert execute(parent) == 0
    result = read_json(Path(parent.output) / "result.json")
    start = {"checkpoint": result["checkpoint"], "params_digest": result["params_digest"], "fresh": []}
    rate = [{"kind": "constant", "start_step": 3, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    child = make_run("six", start_step=3, stop_step=6, start=start, learning_rate=rate)
    assert execute(child) == 0
    found = outcome(child)
    assert [row["step"] for row in found["rows"]] == [4, 5, 6]
    assert found["result"].items() >= {
        "phase": "six", "run_digest": child.digest, "start_step": 3, "stop_step": 6, "tokens": 3 * 4 * 32,
        "final_loss": pytest.approx(np.mean([row["loss"] for row in found["rows"]])), "checkpoint": f"{child.output}/checkpoints/6",
    }.items()  # fmt: skip
    assert execute(child) == 0
    assert outcome(child) == found


def outcome(run: RunConfig) -> dict[str, Any]:
    return {
        "result": read_json(Path(run.output) / "result.json"),
        "rows": read_metrics(Path(run.output) / "metrics.jsonl"),
        "checkpoints": sorted(path.name for path in (Path(run.output) / "checkpoints").iterdir()),
    }
