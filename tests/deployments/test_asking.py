import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import psutil
import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.settings import temporary_settings

from phasewise.deployments.local import RUN_MODULE
from phasewise.deployments.register import AUTOMATION, register_notification
from phasewise.flows.prefect.server import SERVER_MODULE
from phasewise.flows.prefect.stale_runs import RERUN_MESSAGE
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import ConfigError
from tests.deployments import up as running
from tests.deployments.recipes import ASKING_STEPS, NOISE_FROM, NOISE_TO, SPIKING_STEPS

pytestmark = pytest.mark.timeout(900)  # a guard against hanging
WORST = "by step 6 component medu_science_qa has been seen 0.02 times over (found 0.02 epochs of 379 rows; limit 0.001 epochs)"
HASTY = {"PREFECT_API_REQUEST_TIMEOUT": "4", "PREFECT_CLIENT_MAX_RETRIES": "2"}
AWAY_SECONDS = 25.0  # longer than the three tries of a request take together with these settings, and the seconds between them


class Asked(NamedTuple):
    run: str
    messages: list[dict[str, Any]]


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    posted: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", posted
        server.shutdown()


def register(up: running.Up, block: str) -> int:
    async def twice() -> int:
        async with get_client() as client:
            for _ in range(2):
                assert await register_notification(client, block) == block
            return len(await client.read_automations_by_name(AUTOMATION))

    with temporary_settings(up.prefect_settings):
        return asyncio.run(twice())


def wait_until_asked(up: running.Up, run: str) -> None:
    """And its process has ended."""

    def waits() -> bool:
        state = running.state_of(up, run)
        assert state["type"] not in running.FINAL - {"CRASHED"}, state["message"]
        return state["name"] == "Suspended"

    running.wait_for(up, "that a person is asked", waits)
    running.wait_for(up, "the end of its process", lambda: not running.processes(up, RUN_MODULE))


def metrics_steps(up: running.Up, recipe: str) -> list[int]:
    metrics = up.home / "runs" / f"{recipe}-proxy" / "kestrel" / "metrics.jsonl"
    return [json.loads(line)["step"] for line in metrics.read_text().splitlines()] if metrics.exists() else []


def states(up: running.Up, run: str) -> list[dict[str, Any]]:
    return running.ask(up, f"flow_run_states/?flow_run_id={run}")


def said_by(up: running.Up, run: str) -> list[str]:
    """Our lines on the page of the run itself, without its subflows."""
    found = running.ask(up, "logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC", "limit": 200})
    return [line["message"] for line in found if line["name"] == "phasewise"]


@pytest.fixture(scope="module")
def asked(up: running.Up) -> Asked:
    with webhook() as (url, messages):
        block: Any = CustomWebhookNotificationBlock
        with temporary_settings(up.prefect_settings):
            block(name="gates", url=url, json_data={"subject": "{{subject}}", "body": "{{body}}"}).save("gates")
        assert register(up, "custom-webhook/gates") == 1
        run = running.start_run(up, "train-phase/asking · 1 kestrel")
        wait_until_asked(up, run)
        running.wait_for(up, "the message", lambda: messages)
        return Asked(run, messages)


@pytest.fixture(scope="module")
def again(up: running.Up, asked: Asked) -> running.Up:
    assert not psutil.wait_procs(up.kill(), timeout=running.WAIT_SECONDS)[1]
    up.start()
    return up


def test_people_are_told_that_a_phase_waits_and_its_run_has_the_page_of_the_verdict(asked: Asked, up: running.Up):
    [told] = asked.messages
    assert told["subject"] == "asking/proxy/kestrel waits for a person"
    assert WORST in told["body"]
    wanted = {"flow_run_id": {"any_": [asked.run]}, "key": {"any_": ["asking-proxy-kestrel-data"]}}
    [page] = running.ask(up, "artifacts/filter", {"artifacts": wanted})
    assert "**The phase waits for a person.** by step 6 component medu\\_science\\_qa" in page["data"]
    assert "| No component is repeated more often than the recipe allows. | 0.02 epochs of 379 rows | 0.001 epochs |" in page["data"]
    said = said_by(up, asked.run)
    assert re.fullmatch(r"page: http://127\.0\.0\.1:\d+/asking/proxy/kestrel", said[0])
    assert any(line.startswith(f"asking/proxy/kestrel data failed: {WORST.partition(' (')[0]}") for line in said)  # a subflow said it
    with pytest.raises(ConfigError, match="the Prefect server has none"):
        register(up, "custom-webhook/nobody")


@pytest.mark.long
def test_what_waits_outlives_server_and_worker(asked: Asked, again: running.Up):
    state = running.state_of(again, asked.run)
    assert (state["type"], state["name"]) == ("PAUSED", "Suspended")
    said = re.escape(f"Waits for a person. asking/proxy/kestrel data failed: {WORST}.")
    page = r"http://127\.0\.0\.1:\d+/asking/proxy/kestrel/data"
    assert re.fullmatch(rf"{said} See {page} Decide with Resume, or in a terminal\.", state["message"])
    assert not (again.home / "runs" / "asking-proxy").exists()


@pytest.mark.parametrize("given", [{"approve": True, "reason": " ", "who": "Ada"}, {"approve": True, "reason": "fine"}, {}])
def test_a_decision_without_reason_or_name_is_not_taken(asked: Asked, up: running.Up, given: dict[str, Any]):
    answer = running.ask(up, f"flow_runs/{asked.run}/resume", {"run_input": given})
    assert answer["status"] == "REJECT"
    assert running.state_of(up, asked.run)["name"] == "Suspended"


def test_a_phase_that_is_approved_is_trained_and_reported_with_the_name(asked: Asked, up: running.Up):
    run, answer = asked.run, {"approve": True, "reason": "six steps do no harm", "who": "Ada"}
    assert running.ask(up, f"flow_runs/{run}/resume", {"run_input": answer})["status"] == "ACCEPT"
    state = running.final_state(up, run)
    assert state["type"] == "COMPLETED", state["message"]
    decided = json.loads(decision_path(up.home / "verdicts" / "asking-proxy" / "kestrel" / "data.json").read_text())
    latest = decided["latest"]
    assert (latest["approves"], latest["reason"], latest["who"], decided["before"]) == (True, "six steps do no harm", "Ada", [])
    assert metrics_steps(up, "asking") == list(range(1, ASKING_STEPS + 1))
    assert "Approved by Ada on " in (up.home / "reports" / "asking-proxy" / "report.html").read_text()
    said = said_by(up, run)
    for line in ("kestrel: trained to step 6", "kestrel: evaluates 2 benchmarks", "asking/proxy/kestrel model passed", "report: "):
        assert any(one.startswith(line) for one in said), (line, said)
    shown = {one["key"]: one["data"] for one in running.ask(up, "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})}
    assert shown["asking-proxy-kestrel-progress"] == 100
    keys = {f"asking-proxy-{name}" for name in ("page", "report", "kestrel-data", "kestrel-health", "kestrel-model", "kestrel-training")}
    assert keys <= shown.keys()
    assert any(line.startswith("evaluate: 1 of 2 benchmarks, now ") for line in running.logs_of(up, run))


@pytest.mark.long
def test_a_phase_that_is_rejected_in_a_terminal_ends_refused(up: running.Up, recipes: Path):
    run = running.start_run(up, "train-phase/asked-too · 1 kestrel")
    wait_until_asked(up, run)
    target = f"{recipes / 'asked-too.json'}/kestrel"
    command = [sys.executable, "-m", "phasewise.flows.cli.main", "approve", target, "--reject", "--reason", "too often", "--who", "Grace"]
    settings = {**running.environment(), **up.settings}
    done = subprocess.run([*command, "--home", str(up.home)], env=settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "asked-too/proxy/kestrel data: rejected by Grace: too often",
        "The flow run 'asked-too/kestrel · proxy' resumes.",
    ]
    state = running.final_state(up, run)
    assert state["type"] == "FAILED"
    assert "asked-too/proxy/kestrel data was rejected by Grace on " in state["message"]
    assert not (up.home / "runs" / "asked-too-proxy").exists()


def test_no_secret_is_written_anywhere(asked: Asked, up: running.Up):
    found = [path for path in up.home.rglob("*") if path.is_file() and running.SECRET.encode() in path.read_bytes()]
    assert found == []
    assert any(path.suffix == ".db" for path in (up.home / "prefect").iterdir())


@pytest.mark.long
def test_a_training_that_asks_is_suspended_and_rolls_back_once_it_is_approved(up: running.Up):
    run = running.start_run(up, "train-phase/spiking · 1 kestrel")
    (flow,) = running.wait_for(up, "its process", lambda: running.processes(up, RUN_MODULE))
    flow.kill()  # in its first moment: it is started once more
    running.wait_for(up, "the second start", lambda: RERUN_MESSAGE in [state["message"] for state in states(up, run)])
    wait_until_asked(up, run)
    state = running.state_of(up, run)
    assert state["message"].startswith("Waits for a person. spiking/proxy/kestrel training failed: the loss is ")
    assert f"the limit over the 10 updates before it at step {NOISE_FROM + 1}" in state["message"]
    wanted = {"flow_run_id": {"any_": [run]}, "key": {"like_": "%-recovery"}}
    [page] = running.ask(up, "artifacts/filter", {"artifacts": wanted})
    assert page["key"] == "spiking-proxy-kestrel-recovery"
    assert "Approve to go back to step 20 and to pass over steps 21 to 22 for good, with 4 sequences" in page["data"]
    answer = {"approve": True, "reason": "noise in the data", "who": "Ada"}
    assert running.ask(up, f"flow_runs/{run}/resume", {"run_input": answer})["status"] == "ACCEPT"
    state = running.final_state(up, run)
    assert state["type"] == "COMPLETED", state["message"]
    assert metrics_steps(up, "spiking") == [step for step in range(1, SPIKING_STEPS + 1) if not NOISE_FROM < step <= NOISE_TO]
    decided = json.loads(decision_path(up.home / "runs" / "spiking-proxy" / "kestrel" / "recovery.json").read_text())["latest"]
    assert (decided["approves"], decided["reason"], decided["who"]) == (True, "noise in the data", "Ada")
    report = (up.home / "reports" / "spiking-proxy" / "report.html").read_text()
    assert "steps 21 to 22" in report
    assert "approved by Ada on " in report


@pytest.fixture
def hasty(up: running.Up) -> Iterator[running.Up]:
    """The same, started again, with clients that give up after seconds. The next file starts it as it was."""
    slow = dict(up.settings)
    assert not psutil.wait_procs(up.kill(), timeout=running.WAIT_SECONDS)[1]
    up.settings = HASTY | slow
    up.start()
    yield up
    assert not psutil.wait_procs(up.kill(), timeout=running.WAIT_SECONDS)[1]
    up.settings = slow


@pytest.mark.long
def test_a_training_goes_on_while_the_server_is_away_and_the_ui_catches_up(hasty: running.Up):
    run = running.start_run(hasty, "train-phase/long · 1 kestrel")
    running.wait_for(hasty, "its first steps", lambda: len(metrics_steps(hasty, "long")) > 10)
    (flow,) = running.processes(hasty, RUN_MODULE)
    (server,) = running.processes(hasty, SERVER_MODULE)
    for stop, start, seconds in ((server.suspend, server.resume, AWAY_SECONDS), (server.kill, None, 1.0)):
        stop()
        trains_without_a_server(hasty, seconds)
        if start:
            start()
        catches_up(hasty, run)
    assert running.processes(hasty, SERVER_MODULE) not in ([], [server])
    assert running.processes(hasty, RUN_MODULE) == [flow]
    assert "Crashed" not in [state["name"] for state in states(hasty, run)]
    running.ask(hasty, f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert running.final_state(hasty, run)["name"] == "Cancelled"
    assert not flow.is_running(), "cancelled only where it has ended"


def trains_without_a_server(up: running.Up, seconds: float) -> None:
    before, began = len(metrics_steps(up, "long")), time.monotonic()
    running.wait_for(up, "steps without a server", lambda: time.monotonic() - began > seconds and len(metrics_steps(up, "long")) > before)


def catches_up(up: running.Up, run: str) -> None:
    def answers() -> bool:
        try:
            return running.ask(up, "health") is True
        except OSError:
            return False

    def shown_steps() -> float:
        found = running.ask(up, "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}, "type": {"any_": ["progress"]}}})
        return max((float(one["data"]) for one in found), default=0.0) / 100 * 1_000_000

    running.wait_for(up, "that the server answers", answers)
    trained = len(metrics_steps(up, "long"))
    running.wait_for(up, "that the progress in the UI is that of now", lambda: shown_steps() >= trained)
    assert running.state_of(up, run)["name"] == "Running"
