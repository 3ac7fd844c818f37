"""A phase that waits for a person: suspended, through the death of server and worker, until somebody decides in the form or a terminal."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psutil
import pytest
from playwright.sync_api import sync_playwright
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.settings import temporary_settings
from pydantic import SecretStr

from phasewise.deployments.notify import AUTOMATION, register_notification
from phasewise.deployments.worker import RUN_MODULE
from phasewise.flows.prefect.email_block import Mail
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import ConfigError
from tests.chromium import CHROMIUM
from tests.deployments.asking_recipe import STOP_STEP
from tests.deployments.listening import USER, mail_server, webhook
from tests.deployments.up import (
    FINAL,
    SECRET,
    WAIT_SECONDS,
    Up,
    ask,
    environment,
    final_state,
    processes,
    start_run,
    state_of,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)  # a guard against hanging
WORST = "by step 6 component medu_science_qa has been seen 0.02 times over (found 0.02 epochs of 379 rows; limit 0.001 epochs)"


class Told(NamedTuple):
    """A phase that waits for a person, and what was said of it elsewhere."""

    run: str
    messages: list[Any]


class Asked(NamedTuple):
    """Two phases that wait for a person.

    Attributes:
        left: their processes, once they waited.
    """

    runs: dict[str, str]
    left: list[psutil.Process]


def suspended(up: Up, run: str) -> dict[str, Any]:
    def waits() -> dict[str, Any] | None:
        state = state_of(up, run)
        assert state["type"] not in FINAL, state["message"]
        return state if state["type"] == "PAUSED" else None

    return wait_for(up, "that it waits", waits)


def register(up: Up, block: str) -> int:
    """Name a block twice; how many automations there are."""

    async def twice() -> int:
        async with get_client() as client:
            for _ in range(2):
                assert await register_notification(client, block) == block
            return len(await client.read_automations_by_name(AUTOMATION))

    with temporary_settings(up.prefect_settings):
        return asyncio.run(twice())


def save(up: Up, block: Any) -> None:
    with temporary_settings(up.prefect_settings):
        block.save("gates")


def ask_people(up: Up, name: str) -> str:
    """A run whose data is drawn more often than its limit."""
    run = start_run(up, f"train-phase/{name}-kestrel")
    suspended(up, run)
    return run


@pytest.fixture(scope="module")
def posted(up: Up) -> Told:
    """The first is sent to a webhook."""
    with webhook() as (url, messages):
        save(up, CustomWebhookNotificationBlock(name="gates", url=url, json_data={"subject": "{{subject}}", "body": "{{body}}"}))  # pyright: ignore[reportCallIssue]
        assert register(up, "custom-webhook/gates") == 1
        run = ask_people(up, "asking")
        wait_for(up, "the message", lambda: messages)
        return Told(run, messages)


@pytest.fixture(scope="module")
def mailed(up: Up, posted: Told) -> Told:
    """The second by mail, and no more to the webhook."""
    with mail_server(SECRET) as (port, messages):
        sender, recipients, password = "gates@example.org", ["ada@example.org"], SecretStr(SECRET)
        save(up, Mail(host="127.0.0.1", port=port, encrypt=False, sender=sender, recipients=recipients, user=USER, password=password))
        assert register(up, "mail/gates") == 1
        run = ask_people(up, "asked-too")
        wait_for(up, "the mail", lambda: messages)
        return Told(run, messages)


@pytest.fixture(scope="module")
def asked(up: Up, posted: Told, mailed: Told) -> Asked:
    wait_for(up, "the end of their processes", lambda: not processes(up, RUN_MODULE))
    return Asked({"asking": posted.run, "asked-too": mailed.run}, processes(up, RUN_MODULE))


@pytest.fixture(scope="module")
def again(up: Up, asked: Asked) -> Up:
    """Everything was killed at once, and is up again."""
    assert not psutil.wait_procs(up.kill(), timeout=WAIT_SECONDS)[1]
    up.start()
    return up


def test_people_are_told_that_a_phase_waits(posted: Told):
    assert posted.messages[0]["subject"] == "asking/proxy/kestrel waits for a person"
    assert WORST in posted.messages[0]["body"]


def test_people_are_told_by_mail_where_that_is_named(mailed: Told, posted: Told):
    [message] = mailed.messages
    assert message["Subject"] == "asked-too/proxy/kestrel waits for a person"
    assert (message["From"], message["To"]) == ("gates@example.org", "ada@example.org")
    assert WORST in message.get_content()
    assert len(posted.messages) == 1


def test_a_block_that_is_not_there_is_refused(up: Up):
    with pytest.raises(ConfigError, match="the Prefect server has none"):
        register(up, "custom-webhook/nobody")


def test_the_page_of_the_verdict_is_on_the_page_of_the_phase_s_run(posted: Told, up: Up):
    run = posted.run
    pages = ask(up, "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"like_": "asking-%"}}})
    texts = {page["key"]: page["data"] for page in pages if page["task_run_id"] is None}
    assert list(texts) == ["asking-proxy-kestrel-data"]
    assert "**The phase waits for a person.** by step 6 component medu\\_science\\_qa" in texts["asking-proxy-kestrel-data"]
    assert (
        "| ✗ failed | No component is repeated more often than the recipe allows. | 0.02 epochs of 379 rows | 0.001 epochs |"
        in (texts["asking-proxy-kestrel-data"])
    )


def test_what_waits_holds_no_process_and_outlives_server_and_worker(asked: Asked, again: Up):
    assert asked.left == []
    for name, run in asked.runs.items():
        state = state_of(again, run)
        assert (state["type"], state["name"]) == ("PAUSED", "Suspended")
        said = re.escape(f"Waits for a person. {name}/proxy/kestrel data failed: {WORST}.")
        page = rf"http://127\.0\.0\.1:\d+/{name}/proxy/kestrel/data"
        assert re.fullmatch(rf"{said} See {page} Decide with Resume, or in a terminal\.", state["message"])
        assert not (again.home / "runs" / f"{name}-proxy").exists()


@pytest.mark.parametrize("given", [{"approve": True, "reason": " ", "who": "Ada"}, {"approve": True, "reason": "fine"}, {}])
def test_a_decision_without_reason_or_name_is_not_taken(asked: Asked, again: Up, given: dict[str, Any]):
    answer = ask(again, f"flow_runs/{asked.runs['asking']}/resume", {"run_input": given})
    assert answer["status"] == "REJECT"
    assert state_of(again, asked.runs["asking"])["name"] == "Suspended"


def approve_in_the_form(up: Up, run: str) -> None:
    """As a person does it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.goto(f"{up.links[0]}&{quote(f'/runs/flow-run/{run}', safe='')}")
        page.get_by_role("button", name="Resume").click()
        form = page.get_by_role("dialog")
        form.get_by_text("asking/proxy/kestrel data failed.").wait_for()
        form.get_by_role("switch").or_(form.get_by_role("checkbox")).first.click()
        form.get_by_role("textbox").nth(0).fill("six steps do no harm")
        form.get_by_role("textbox").nth(1).fill("Ada")
        form.get_by_role("button", name="Submit").click()
        form.wait_for(state="hidden")
        browser.close()


def test_a_person_approves_in_the_form_and_the_phase_goes_on(asked: Asked, again: Up):
    """Where there is no browser, by what the form sends."""
    run = asked.runs["asking"]
    if CHROMIUM:
        approve_in_the_form(again, run)
    else:
        answer = {"approve": True, "reason": "six steps do no harm", "who": "Ada"}
        assert ask(again, f"flow_runs/{run}/resume", {"run_input": answer})["status"] == "ACCEPT"
    decided = decision_path(again.home / "verdicts" / "asking-proxy" / "kestrel" / "data.json")
    latest = wait_for(again, "its decision", lambda: json.loads(decided.read_text()) if decided.exists() else None)["latest"]
    assert (latest["approves"], latest["reason"], latest["who"]) == (True, "six steps do no harm", "Ada")


def test_what_was_approved_is_trained_and_reported_with_the_name(asked: Asked, again: Up):
    state = final_state(again, asked.runs["asking"])
    assert state["type"] == "COMPLETED", state["message"]
    decided = json.loads(decision_path(again.home / "verdicts" / "asking-proxy" / "kestrel" / "data.json").read_text())
    assert decided["before"] == []
    metrics = (again.home / "runs" / "asking-proxy" / "kestrel" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(1, STOP_STEP + 1))
    report = (again.home / "reports" / "asking-proxy" / "report.html").read_text()
    assert "Approved by Ada on " in report


def test_a_person_rejects_in_a_terminal_and_the_run_ends_refused(asked: Asked, again: Up, recipes: Path):
    target = f"{recipes / 'asked-too.json'}/kestrel"
    command = [sys.executable, "-m", "phasewise.flows.cli.main", "approve", target, "--reject", "--reason", "too often", "--who", "Grace"]
    settings = {**environment(), **again.settings}
    done = subprocess.run([*command, "--home", str(again.home)], env=settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[0] == "asked-too/proxy/kestrel data: rejected by Grace: too often"
    assert said[1:] == ["The flow run 'train asked-too/kestrel (proxy)' goes on."]
    state = final_state(again, asked.runs["asked-too"])
    assert state["type"] == "FAILED"
    assert "asked-too/proxy/kestrel data was rejected by Grace on " in state["message"]
    assert not (again.home / "runs" / "asked-too-proxy").exists()


def test_no_secret_is_written_anywhere(asked: Asked, again: Up):
    """Logs, artifacts and states are in Prefect's database, which is in the home; runs, manifests and reports beside it."""
    found = [path for path in again.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert found == []
    assert any(path.suffix == ".db" for path in (again.home / "prefect").iterdir())
