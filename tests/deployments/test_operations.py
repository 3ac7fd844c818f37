"""Operated as people do it: from the UI (its API), from the terminal, and from both at once, on a real server with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.deployments.long_recipe import write_long_recipe
from tests.deployments.up import (
    WAIT_SECONDS,
    Up,
    ask,
    brought_up,
    environment,
    final_state,
    logs_of,
    start_run,
    state_of,
    subflows_of,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: a busy machine may need minutes for a server and a first training


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_long_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with brought_up(tmp_path_factory.mktemp("operated") / "home") as up:
        yield up


def run_folder(up: Up) -> Path:
    return up.home / "runs" / "long-proxy" / "kestrel"


def trained_steps(up: Up) -> int:
    metrics = run_folder(up) / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def saved_steps(up: Up) -> list[int]:
    """The committed checkpoints."""
    return sorted(int(path.parent.name) for path in (run_folder(up) / "checkpoints").glob("*/digests.json"))


def trains_on(up: Up) -> None:
    """Wait until it trains further than it has."""
    before = trained_steps(up)
    wait_for(up, f"a step after {before}", lambda: trained_steps(up) > before + 10)


def phasewise(up: Up, *arguments: object) -> subprocess.Popen[str]:
    """`phasewise …` beside what is up, in a process group of its own, as a terminal makes it."""
    command = [sys.executable, "-m", "flows.cli", *map(str, arguments), "--home", str(up.home)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True)


def test_ctrl_c_in_the_terminal_saves_the_last_update(up: Up, recipe: Path) -> None:
    """And the run uses the server that is up, so that it is seen there."""
    with phasewise(up, "run", recipe) as process:
        trains_on(up)
        seen = ask(up, "flow_runs/filter", {"flow_runs": {"name": {"like_": "train"}}})
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=WAIT_SECONDS)[1]
    assert process.returncode == 130, errors
    assert f"using the Prefect server of `phasewise up` (process {up.process.pid}, since " in errors
    assert {run["state"]["type"] for run in seen} == {"RUNNING"}
    steps = trained_steps(up)
    assert saved_steps(up)[-1] == steps
    assert f"kestrel: stopped after step {steps:,} of 1,000,000, which is saved" in errors
    assert errors.endswith("phasewise: stopped; the same command goes on from here.\n")
    assert "Traceback" not in errors


def suspend(up: Up, run: str) -> None:
    """As the UI does it."""
    details = {"pause_reschedule": True, "pause_timeout": "2100-01-01T00:00:00Z"}
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "PAUSED", "name": "Suspended", "state_details": details}})


def at_work(up: Up, run: str) -> list[str]:
    return [child["name"] for child in subflows_of(up, run) if child["state"]["type"] in {"RUNNING", "PENDING", "CANCELLING"}]


@pytest.fixture(scope="module")
def training(up: Up, recipe: Path) -> str:
    """A flow run, started in the UI, that goes on with what the terminal began."""
    run = start_run(up, "train_recipe/marin-8b", recipe=str(recipe))
    trains_on(up)
    return run


def test_the_log_of_a_run_says_what_happens(up: Up, training: str) -> None:
    def said() -> list[str] | None:
        lines = logs_of(up, training)
        return lines if any(line.startswith("train kestrel: ") for line in lines) else None

    lines = wait_for(up, "a line about the loss", said)
    assert any(line.startswith("kestrel: going on from step ") for line in lines)
    assert any(" loss " in line and "tokens/s" in line for line in lines if line.startswith("train kestrel: "))
    assert any(line.startswith("long/proxy/kestrel data ") for line in lines)


def test_a_run_beside_what_is_up_is_refused_at_once_and_disturbs_nothing(up: Up, training: str, recipe: Path) -> None:
    before = state_of(up, training)
    with phasewise(up, "run", recipe) as process:
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, output) == (2, "")
    assert errors.startswith("phasewise: the flow run 'train ")
    assert f"is at work in {up.home}: wait for it, stop it, or choose another home with --home.\n" in errors
    assert state_of(up, training) == before
    trains_on(up)


def test_a_suspended_run_stops_saved_and_resumes(up: Up, training: str) -> None:
    suspend(up, training)
    wait_for(up, "the end of its subflows", lambda: not at_work(up, training))
    steps = trained_steps(up)
    assert saved_steps(up)[-1] == steps
    assert state_of(up, training)["name"] == "Suspended"
    assert not [process for process in trainers(up) if process.is_running()]
    ask(up, f"flow_runs/{training}/resume", {})
    trains_on(up)
    assert f"kestrel: going on from step {steps:,} of 1,000,000" in logs_of(up, training)
    assert state_of(up, training)["type"] == "RUNNING"


def trainers(up: Up) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(up.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            if child.status() != psutil.STATUS_ZOMBIE and "trainer" in child.cmdline():
                found.append(child)
    return found


def test_a_cancelled_run_has_saved_its_last_update_and_leaves_nothing_at_work(up: Up, training: str) -> None:
    assert len(trainers(up)) == 1
    ask(up, f"flow_runs/{training}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert final_state(up, training)["type"] == "CANCELLED"
    steps = trained_steps(up)
    assert saved_steps(up)[-1] == steps
    assert any(line.startswith(f"kestrel: stopped after step {steps:,} of 1,000,000, which is saved") for line in logs_of(up, training))
    assert (at_work(up, training), trainers(up)) == ([], [])


def test_a_run_that_was_killed_is_closed_while_the_server_is_up(up: Up, recipe: Path) -> None:
    """With its subflows: nobody else would ever say that they ended."""
    with phasewise(up, "run", recipe) as process:
        trains_on(up)
        process.kill()
    begun = ask(up, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    assert {run["name"].split(" ")[0] for run in begun} == {"train"}
    assert len(begun) == 2
    for run in begun:
        state = final_state(up, run["id"])
        assert (state["type"], "goes on from what is done" in state["message"]) == ("CRASHED", True)


def pause_after_failure(up: Up, deployment_id: str) -> None:
    """An automation: where a run of the deployment fails, the deployment is paused."""
    trigger = {
        "type": "event",
        "posture": "Reactive",
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "match_related": {"prefect.resource.id": f"prefect.deployment.{deployment_id}", "prefect.resource.role": "deployment"},
        "for_each": ["prefect.resource.id"],
        "expect": ["prefect.flow-run.Failed"],
        "threshold": 1,
        "within": 0,
    }
    action = {"type": "pause-deployment", "source": "selected", "deployment_id": deployment_id}
    ask(up, "automations/", {"name": "pause after a failure", "trigger": trigger, "actions": [action]})


def test_a_phase_without_its_parent_is_refused_before_anything_is_prepared_and_an_automation_acts(up: Up) -> None:
    deployment = ask(up, "deployments/name/train_phase/marin-8b")["id"]
    pause_after_failure(up, deployment)
    before = sorted(path.name for path in up.home.iterdir())
    run = start_run(up, "train_phase/marin-8b", phase="ocelot")
    state = final_state(up, run)
    assert state["type"] == "FAILED"
    assert "marin-8b-proxy/ocelot rests on kestrel, which is not done: there is no verdict on its data." in state["message"]
    assert "phasewise run marin-8b/kestrel --scale proxy --home " in state["message"]
    assert [child["name"] for child in subflows_of(up, run)] == []
    assert sorted(path.name for path in up.home.iterdir()) == before
    wait_for(up, "the automation's action", lambda: ask(up, f"deployments/{deployment}")["paused"])


def errors_in(log: str) -> list[str]:
    """What the server reported as an error, each with its traceback.

    That SQLite's file had another writer at that moment is no fault of a version: whoever was refused asks again.
    """
    records = re.split(r"^(?=\d\d:\d\d:\d\d\.\d{3} \| )", log, flags=re.MULTILINE)
    return [record for record in records if ("| ERROR" in record or "Traceback" in record) and "database is locked" not in record]


def test_a_schedule_fires_and_the_server_reports_no_error(up: Up) -> None:
    """What one of the server's libraries may break without a word: `constraints.txt` and `pyproject.toml` bound those that did."""
    deployment = ask(up, "deployments/name/prepare_data/marin-8b")
    wrong = {**deployment["parameters"], "recipe": "marin-9b"}
    schedules = f"deployments/{deployment['id']}/schedules"
    [schedule] = ask(up, schedules, [{"schedule": {"interval": 15}, "active": True, "parameters": wrong}])
    runs = {"flow_runs": {"deployment_id": {"any_": [deployment["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}

    def failed() -> dict[str, Any] | None:
        found = ask(up, "flow_runs/filter", runs)
        return next((run for run in found if run["state"]["type"] == "FAILED" and run["auto_scheduled"]), None)

    run = wait_for(up, "a run of the schedule", failed)
    assert "no recipe is called 'marin-9b'" in run["state"]["message"]
    ask(up, f"{schedules}/{schedule['id']}", method="DELETE")
    artifacts = ask(up, "artifacts/filter", {"limit": 200})
    assert {"long-kestrel-data", "long-kestrel-training"} <= {artifact["key"] for artifact in artifacts}
    workers = ask(up, "work_pools/phasewise-local/workers/filter", {})
    assert [worker["status"] for worker in workers] == ["ONLINE"]
    assert errors_in((up.home / "prefect" / "server.log").read_text()) == []


def test_ctrl_c_ends_everything(up: Up, recipe: Path) -> None:
    """A run at work saves first."""
    start_run(up, "train_recipe/marin-8b", recipe=str(recipe))
    trains_on(up)
    os.killpg(up.process.pid, signal.SIGINT)
    assert up.process.wait(WAIT_SECONDS) == 0
    assert saved_steps(up)[-1] == trained_steps(up)
    lines = (run_folder(up) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))
