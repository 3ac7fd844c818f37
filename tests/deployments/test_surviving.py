"""What survives on a real server: a question to a person, the place in the queue of a process that was killed, a server that is away."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from phasewise.deployments.watch import SWEEP_SECONDS
from phasewise.deployments.worker import RUN_MODULE
from phasewise.flows.prefect.stale_runs import RERUN_MESSAGE
from phasewise.flows.prefect.stale_runs import RERUN_MESSAGE as LEFT_OVER
from phasewise.trainer.base.decision import decision_path
from tests.deployments.spiking_recipe import NOISE_FROM, NOISE_TO, STOP_STEP
from tests.deployments.up import WAIT_SECONDS, Up, ask, environment, final_state, pause, processes, start_run, state_of, wait_for

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: a busy machine may need minutes for a server and a first training
MAX_SLOT_SECONDS = 90.0
HASTY = {"PREFECT_API_REQUEST_TIMEOUT": "4", "PREFECT_CLIENT_MAX_RETRIES": "2"}
AWAY_SECONDS = 25.0
"""Longer than the three tries of a request take together with these settings, and the seconds between them."""
SERVER_MODULE = "phasewise.flows.prefect.server"
DIES_AS_IT_BEGINS = """
import os, signal, sys
import phasewise.flows.prefect.flow_decorator
from phasewise.flows.prepare_data import prepare_data
phasewise.flows.prefect.flow_decorator.end_if_missed = lambda: os.kill(os.getpid(), signal.SIGKILL)
prepare_data("marin-8b", home=sys.argv[1])
"""
"""A flow run of a terminal that ends between Prefect's state Running and the first line of its flow."""


def folder(up: Up, recipe: str) -> Path:
    return up.home / "runs" / f"{recipe}-proxy" / "kestrel"


def steps(up: Up, recipe: str) -> int:
    metrics = folder(up, recipe) / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def trains_on(up: Up, recipe: str) -> None:
    before = steps(up, recipe)
    wait_for(up, f"a step after {before}", lambda: steps(up, recipe) > before + 10)


def states(up: Up, run: str) -> list[dict[str, Any]]:
    return ask(up, f"flow_run_states/?flow_run_id={run}")


def suspended(up: Up, run: str) -> dict[str, Any]:
    def waits() -> dict[str, Any] | None:
        state = state_of(up, run)
        assert state["type"] not in ("COMPLETED", "FAILED", "CANCELLED"), state["message"]
        return state if state["name"] == "Suspended" else None

    return wait_for(up, "that a person is asked", waits)


@pytest.fixture(scope="module")
def asked(up: Up) -> str:
    """A run whose training met a jump of its loss. Its process was killed once before, in its first moment, and started once more."""
    run = start_run(up, "train-phase/spiking-kestrel")
    (flow,) = wait_for(up, "its process", lambda: processes(up, RUN_MODULE))
    flow.kill()
    wait_for(up, "the second start", lambda: RERUN_MESSAGE in [state["message"] for state in states(up, run)])
    suspended(up, run)
    wait_for(up, "the end of its process", lambda: not processes(up, RUN_MODULE))
    return run


def test_a_training_that_asks_is_suspended_with_its_numbers_and_holds_nothing(asked: str, up: Up):
    state = state_of(up, asked)
    assert state["message"].startswith("Waits for a person. spiking/proxy/kestrel training failed: the loss is ")
    assert f"the limit over the 10 updates before it at step {NOISE_FROM + 1}" in state["message"]
    assert f"{up.site.rstrip('/')}/spiking/proxy/kestrel Decide with Resume" in state["message"]
    pages = ask(up, "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [asked]}, "key": {"like_": "%-recovery"}}})
    assert [page["key"] for page in pages] == ["spiking-proxy-kestrel-recovery"]
    assert "Approve to go back to step 20 and to pass over steps 21 to 22 for good, with 4 sequences" in pages[0]["data"]


def test_no_crash_is_seen_while_a_person_is_asked_and_the_question_outlives_server_and_worker(asked: str, up: Up):
    assert not psutil.wait_procs(up.kill(), timeout=WAIT_SECONDS)[1]
    up.start()
    seen = time.monotonic()
    wait_for(up, "two sweeps", lambda: time.monotonic() - seen > 2 * SWEEP_SECONDS)
    assert state_of(up, asked)["name"] == "Suspended"
    assert processes(up, RUN_MODULE) == []
    assert [state["message"] for state in states(up, asked)].count(RERUN_MESSAGE) == 1


def test_approved_in_the_form_it_rolls_back_and_ends(asked: str, up: Up):
    answer = {"approve": True, "reason": "noise in the data", "who": "Ada"}
    assert ask(up, f"flow_runs/{asked}/resume", {"run_input": answer})["status"] == "ACCEPT"
    state = final_state(up, asked)
    assert state["type"] == "COMPLETED", state["message"]
    rows = [json.loads(line)["step"] for line in (folder(up, "spiking") / "metrics.jsonl").read_text().splitlines()]
    assert rows == [step for step in range(1, STOP_STEP + 1) if not NOISE_FROM < step <= NOISE_TO]
    decided = json.loads(decision_path(folder(up, "spiking") / "recovery.json").read_text())["latest"]
    assert (decided["approves"], decided["reason"], decided["who"]) == (True, "noise in the data", "Ada")
    report = (up.home / "reports" / "spiking-proxy" / "report.html").read_text()
    assert "steps 21 to 22" in report
    assert "approved by Ada on " in report


def test_rejected_in_a_terminal_it_ends_with_the_reason(up: Up, recipes: Path):
    run = start_run(up, "train-phase/spiked-kestrel")
    suspended(up, run)
    command = [
        sys.executable,
        "-m",
        "phasewise.flows.cli.main",
        "approve",
        f"{recipes / 'spiked.json'}/kestrel",
        "--reject",
        "--reason",
        "look first",
    ]
    settings = {**environment(), **up.settings}
    done = subprocess.run([*command, "--who", "Grace", "--home", str(up.home)], env=settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "spiked/proxy/kestrel recovery: rejected by Grace: look first",
        "The flow run 'train spiked/kestrel (proxy)' goes on.",
    ]
    state = final_state(up, run)
    assert state["type"] == "FAILED"
    assert "to roll back was rejected by Grace on " in state["message"]
    assert steps(up, "spiked") == NOISE_FROM + 1


def test_the_place_of_a_killed_process_is_free_within_90_seconds(up: Up, capsys: pytest.CaptureFixture[str]):
    """The sweep and the worker see the end of the process; nothing waits for a lease to run out."""
    first, second = start_run(up, "train-phase/long-kestrel"), start_run(up, "train-phase/short-kestrel")
    trains_on(up, "long")
    assert state_of(up, second)["type"] == "SCHEDULED"
    (flow,) = processes(up, RUN_MODULE)
    flow.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    wait_for(up, "that another process has the place", lambda: state_of(up, second)["type"] != "SCHEDULED" or has_begun_again(up, first))
    seconds = time.monotonic() - killed
    with capsys.disabled():
        print(f"\nthe place was free and taken after {seconds:.1f} s")
    assert seconds < MAX_SLOT_SECONDS
    for run in (first, second):
        cancel(up, run)


def test_a_run_that_dies_as_soon_as_it_is_running_is_closed(up: Up):
    named = {"flow_runs": {"name": {"any_": ["prepare data of marin-8b (proxy)"]}}}
    begun = {run["id"] for run in ask(up, "flow_runs/filter", named)}
    command = [sys.executable, "-c", DIES_AS_IT_BEGINS, str(up.home)]
    assert subprocess.run(command, env={**environment(), **up.client_environment}, check=False).returncode == -signal.SIGKILL
    (run,) = {run["id"] for run in ask(up, "flow_runs/filter", named)} - begun
    assert "Running" in [state["name"] for state in states(up, run)]
    assert final_state(up, run)["message"] == LEFT_OVER


def cancel(up: Up, run: str) -> None:
    """Once its process is there: a run that is cancelled before waits five minutes for one."""
    found = wait_for(up, "that it runs, or is not begun", lambda: state if (state := state_of(up, run))["type"] != "PENDING" else None)
    word = "CANCELLED" if found["type"] == "SCHEDULED" else "CANCELLING"
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": word, "name": word.title()}})
    final_state(up, run)


def has_begun_again(up: Up, run: str) -> bool:
    found = sorted(states(up, run), key=lambda state: state["timestamp"])
    names = [state["message"] for state in found]
    return RERUN_MESSAGE in names and any(state["type"] in ("PENDING", "RUNNING") for state in found[names.index(RERUN_MESSAGE) + 1 :])


@pytest.fixture
def hasty(up: Up) -> Iterator[Up]:
    """The same, started again; what asks its server gives up after seconds, and not after minutes. The next file starts it as it was."""
    slow = dict(up.settings)
    assert not psutil.wait_procs(up.kill(), timeout=WAIT_SECONDS)[1]
    up.settings = HASTY | slow
    up.start()
    yield up
    assert not psutil.wait_procs(up.kill(), timeout=WAIT_SECONDS)[1]
    up.settings = slow


def test_a_training_goes_on_while_the_server_is_away_and_the_ui_catches_up(hasty: Up):
    """First it does not answer; then it is killed, and `up` starts it again at the same address."""
    run = start_run(hasty, "train-phase/long-kestrel")
    trains_on(hasty, "long")
    (flow,) = processes(hasty, RUN_MODULE)
    (server,) = processes(hasty, SERVER_MODULE)
    server.suspend()
    goes_on(hasty, AWAY_SECONDS)
    server.resume()
    catches_up(hasty, run)
    server.kill()
    goes_on(hasty, 1.0)
    catches_up(hasty, run)
    assert processes(hasty, SERVER_MODULE) not in ([], [server])
    assert processes(hasty, RUN_MODULE) == [flow]
    names = [state["name"] for state in states(hasty, run)]
    assert (names[-1], "Crashed" in names) == ("Running", False)
    cancel(hasty, run)
    assert state_of(hasty, run)["name"] == "Cancelled"
    assert not flow.is_running(), "cancelled only where it has ended"


def goes_on(up: Up, seconds: float) -> None:
    before, began = steps(up, "long"), time.monotonic()
    while time.monotonic() - began < seconds:
        pause(up)
        assert up.process.poll() is None
    wait_for(up, "more steps without a server", lambda: steps(up, "long") > before)


def catches_up(up: Up, run: str) -> None:
    """The UI shows what was trained without it, and that the run is at work."""
    wait_for(up, "that the server answers", lambda: is_answering(up))
    trained = steps(up, "long")
    wait_for(up, "that the progress in the UI is that of now", lambda: shown_steps(up, run) >= trained)
    assert state_of(up, run)["name"] == "Running"


def is_answering(up: Up) -> bool:
    try:
        return ask(up, "health") is True
    except OSError:
        return False


def shown_steps(up: Up, run: str) -> float:
    """How far the progress on the run's page is."""
    children = ask(up, "task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"name": {"like_": "train %"}}})
    wanted = {"task_run_id": {"any_": [child["id"] for child in children]}, "type": {"any_": ["progress"]}}
    found = ask(up, "artifacts/filter", {"artifacts": wanted})
    return max((float(one["data"]) for one in found), default=0.0) / 100 * 1_000_000
