import asyncio
import json
import logging
import re
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from prefect.settings import temporary_settings

from phasewise.deployments.declared import Source, declare, declare_pools, read_folder
from phasewise.deployments.local import RUN_MODULE
from phasewise.deployments.register import register
from phasewise.flows.prefect.server import SERVED
from phasewise.flows.prefect.stale_runs import CANCELLED_MESSAGE, close_leftovers
from phasewise.flows.recipes import NAMES, load_written
from phasewise.flows.recipes.python_file import allow_code
from phasewise.tasks.home import Home
from tests.deployments.up import Up, ask, final_state, logs_of, processes, start_run, state_of, subflows_of, wait_for
from tests.flows.test_flow_runs import judge

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: a busy machine may need minutes for a server
T = TypeVar("T")
AT_WORK = """
import sys
from pathlib import Path
from phasewise.flows.prefect.stale_runs import stay_present
from phasewise.tasks.home import Home
stay_present(Home(Path(sys.argv[1])), sys.argv[2], "a run")
print("at work", flush=True)
sys.stdin.read()
"""
"""The process of a flow run, as far as others can see."""
REFUSAL = "--set kestrel.nonsense=1: kestrel has no field 'nonsense', did you mean notes?"


@pytest.fixture(scope="module")
def run(up: Up) -> str:
    """Of a setting that does not exist, made by a path of the API that checks nothing."""
    found = ask(up, "deployments/name/prepare-data/~ prepare")
    body = {"flow_id": found["flow_id"], "deployment_id": found["id"], "state": {"type": "SCHEDULED"}}
    body |= {
        "work_pool_name": "data",
        "work_queue_name": "default",
        "parameters": {"recipe": "marin-8b", "settings": ["kestrel.nonsense=1"]},
    }
    return ask(up, "flow_runs/", body)["id"]


BRANCH, OCELOT, TRAIN = "train-phase/marin-8b · branch", "train-phase/marin-8b · 2 ocelot", "train-recipe/marin-8b"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("prepare-data/~ prepare", {"recipe": "marin-9b"}, "recipe: expected a choice of the form, found 'marin-9b', did you mean marin-8b"),
    (
        "prepare-data/~ prepare",
        {"recipe": "marin-8b", "scale": "huge"},
        "scale: expected a choice of the form, found 'huge', there are proxy,",
    ),
    ("validate-data/~ validate", {"recipe": "marin-32b", "phase": "kestrel"}, "marin-32b has no phase 'kestrel'"),
    ("validate-data/~ validate", {"recipe": "marin-8b"}, "the deployment ~ validate needs the phase: choose it in the form."),
    (BRANCH, {"phase": "desert-v3"}, "phase: expected a choice of the form, found 'desert-v3', did you mean dessert-v3"),
    (BRANCH, {"phase": "dessert-v1"}, "the mixture from step 820000 must have a sequence of every component in every block"),
    (OCELOT, {"phase": "kestrel"}, "the deployment marin-8b · 2 ocelot is for phase 'ocelot', and this run was given 'kestrel'"),
    (OCELOT, {"retain": True}, "the deployment marin-8b · 2 ocelot has no parameter 'retain', did you mean retrain?"),
    (OCELOT, {"settings": ["kestrel.nonsense=1"]}, REFUSAL),
    (OCELOT, {"settings": {"__prefect_kind": "json", "value": '["kestrel.nonsense=1"]'}}, REFUSAL),
    (OCELOT, {"settings": ["slice=v5e-256"]}, "phase ocelot of marin-8b-proxy needs the slice v5e-256, and only this machine can train"),
    (OCELOT, {"retrain": "maybe"}, "'maybe' is not of type 'boolean'"),
    ("try/~ try", {"recipe": "marin-8b", "phase": "ocelot", "arms": ["hot"]}, "--arm takes NAME:FIELD=VALUE or NAME:PHASE"),
    ("try/~ try", {"recipe": "marin-8b", "phase": "ocelot", "arms": ["hot:nonsense=1"]}, "ocelot-hot-1 has no field 'nonsense'"),
    (TRAIN, {"up_to": "kestrel", "retrain": ["ocelot"]}, "--retrain names ocelot: expected phases of this run (kestrel)."),
]


def answer_to(up: Up, path: str, body: Any, *, method: str = "POST") -> tuple[int, Any]:
    try:
        return 200, ask(up, path, body, method=method)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_wrong_value_is_refused_with_one_sentence_before_a_run_or_a_schedule_exists(up: Up) -> None:
    before = ask(up, "flow_runs/count", {})
    for deployment, given, wanted in WRONG:
        path = f"deployments/{ask(up, f'deployments/name/{deployment}')['id']}"
        times = [{"schedule": {"cron": "0 4 * * *"}, "parameters": given}]
        requests = [
            ("create_flow_run", {"parameters": given, "enforce_parameter_schema": False}),
            ("create_flow_run/bulk", [{"parameters": given}]),
        ]
        for last, body in [*requests, *([("schedules", times)] if "boolean" not in wanted else [])]:
            code, answer = answer_to(up, f"{path}/{last}", body)
            assert wanted in str(answer), (given, answer)
            assert (code in (409, 422) and "\n" not in answer["detail"]) or last.endswith("bulk"), (given, answer)
    assert ask(up, "flow_runs/count", {}) == before


def test_runs_are_named_at_their_creation(up: Up) -> None:
    ask(up, "work_pools/local/queues/training", {"is_paused": True}, method="PATCH")
    ocelot, train = (ask(up, f"deployments/name/{one}")["id"] for one in (OCELOT, TRAIN))
    [schedule] = ask(up, f"deployments/{ocelot}/schedules", [{"schedule": {"cron": "0 4 * * *"}, "active": True}])
    names = ("elegant-grouse", "xi49-chort-void", "Incredible-Baird’s Rat Snake", "", "My second try")
    made = [ask(up, f"deployments/{ocelot}/create_flow_run", {"name": name} if name else {}) for name in names]
    made.append(ask(up, f"deployments/{train}/create_flow_run", {"parameters": {"up_to": "ocelot"}}))
    assert [run["name"] for run in made] == [*["marin-8b/ocelot · proxy"] * 4, "My second try", "marin-8b up to ocelot · proxy"]
    wanted = {"flow_runs": {"deployment_id": {"any_": [ocelot]}, "tags": {"all_": ["auto-scheduled"]}}}
    scheduled = wait_for(up, "runs of the schedule", lambda: ask(up, "flow_runs/filter", wanted))
    assert {run["name"] for run in scheduled} == {"marin-8b/ocelot · proxy"}
    ask(up, f"deployments/{ocelot}/schedules/{schedule['id']}", method="DELETE")
    for run in made:
        ask(up, f"flow_runs/{run['id']}", method="DELETE")
    ask(up, "work_pools/local/queues/training", {"is_paused": False}, method="PATCH")


def test_it_says_where_it_is_and_a_run_that_evades_the_check_is_refused_without_a_traceback(up: Up, run: str) -> None:
    assert f"Prefect UI:  {up.ui}\n" in up.text
    assert up.links[0].endswith("%3Ftab%3DDescription")
    state = final_state(up, run)
    assert (state["type"], state["message"].splitlines()[0]) == ("FAILED", REFUSAL)

    def warnings() -> list[str]:
        lines = ask(up, "logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
        assert "Traceback" not in str(lines)
        return [line["message"] for line in lines if line["level"] >= logging.WARNING]

    assert wait_for(up, "the reason in the log", warnings) == [state["message"]]


def test_runs_whose_process_has_gone_are_closed(up: Up, run: str) -> None:
    final_state(up, run)
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    assert final_state(up, run)["type"] == "CRASHED"
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "PENDING"}, "force": True})
    assert run_with(up, close_leftovers(Home(up.home), SERVED)) == 1
    assert state_of(up, run)["type"] == "CRASHED"


@pytest.mark.long
def test_a_cancelled_run_that_no_worker_knows_ends(up: Up, run: str) -> None:
    final_state(up, run)
    wait_for(up, "the end of its process", lambda: not processes(up, RUN_MODULE))  # it reports its end before
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    with subprocess.Popen([sys.executable, "-c", AT_WORK, str(up.home), run], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": True})
        process.stdout.read()
        assert process.wait() == -signal.SIGTERM
    state = final_state(up, run)
    assert (state["type"], state["message"]) == ("CANCELLED", CANCELLED_MESSAGE)


def test_schedules_are_kept(up: Up, recipes: Path) -> None:
    before = ask(up, "deployments/name/train-phase/marin-8b · 1 kestrel")
    ask(up, f"deployments/{before['id']}/schedules/{before['schedules'][0]['id']}", {"active": True}, method="PATCH")
    copied = {name: before[name] for name in ("flow_id", "entrypoint", "parameters")}
    ask(up, "deployments/", {**copied, "name": "ours-of-old", "tags": ["phasewise"]})
    ask(up, "deployments/", {**copied, "name": "of-a-person", "tags": ["mine"]})
    ask(up, "deployments/", {**copied, "name": "of-another", "tags": ["phasewise"], "entrypoint": "elsewhere.py:flow"})
    old = ask(up, f"deployments/name/{OCELOT}")
    ask(up, f"deployments/{old['id']}", method="DELETE")
    times = [{"schedule": {"cron": "7 4 * * *"}, "active": True, "slug": "mine"}]
    named = {"name": "marin-8b-ocelot", "tags": ["phasewise"], "schedules": times}  # as an earlier version named it
    ask(up, "deployments/", {**{name: old[name] for name in copied}, **named})
    with allow_code():
        sources = [*(Source(name, load_written(name)) for name in NAMES), *read_folder(recipes, Home(up.home))]
    changed = [one.but(description="Changed.") if one.name == "marin-8b · 1 kestrel" else one for one in declare(sources)]
    pools = declare_pools(sources)
    assert run_with(up, register(changed, pools)) == ["train-phase/marin-8b-ocelot", "train-phase/ours-of-old"]
    assert [(one["slug"], one["active"]) for one in ask(up, f"deployments/name/{OCELOT}")["schedules"]] == [("mine", True)]
    assert run_with(up, register(changed, pools)) == []
    after = ask(up, "deployments/name/train-phase/marin-8b · 1 kestrel")
    assert [(schedule["slug"], schedule["active"]) for schedule in after["schedules"]] == [("nightly", True)]
    assert (before["schedules"][0]["active"], after["description"], after["id"]) == (False, "Changed.", before["id"])
    assert {one["name"] for one in ask(up, "deployments/filter", {"limit": 200})} >= {"of-a-person", "of-another", "marin-8b · 5 starling"}


def run_with(up: Up, work: Coroutine[Any, Any, T]) -> T:
    with temporary_settings(up.prefect_settings):
        return asyncio.run(work)


@pytest.mark.long
def test_a_phase_waits_for_its_parent_without_a_process_and_ends_with_the_reason_where_that_is_refused(up: Up) -> None:
    before = sorted(path.name for path in up.home.iterdir())
    run = start_run(up, "train-phase/marin-8b · 2 ocelot")
    state = waits(up, run)
    assert state["message"].startswith("Since 20")
    assert "ocelot rests on kestrel, which is not done: there is no verdict on its data." in state["message"]
    wait_for(up, "the end of its process", lambda: not processes(up, RUN_MODULE))
    assert subflows_of(up, run) == []
    assert sorted(path.name for path in up.home.iterdir()) == sorted([*before, "stages"])  # the stage of a phase that waits
    judge(Home(up.home), "kestrel", "data", passes=False)
    state = final_state(up, run)
    assert (state["type"], ask(up, f"flow_runs/{run}")["run_count"]) == ("FAILED", 2)
    assert "marin-8b-proxy/ocelot needs kestrel, which is not done: the verdict on its data fails: it is spoiled." in state["message"]
    errors = wait_for(up, "the reason in its log", lambda: [line for line in logs_of(up, run) if "it is spoiled" in line])
    assert errors[0] == state["message"]
    assert not [line for line in logs_of(up, run) if "Traceback" in line]


def waits(up: Up, run: str) -> dict[str, Any]:
    def waiting() -> dict[str, Any] | None:
        state = state_of(up, run)
        return state if state["name"] == "Waiting for kestrel" else None

    return wait_for(up, "waiting", waiting)


@pytest.mark.long
def test_a_phase_that_waits_starts_when_its_parent_is_past_its_gates(up: Up) -> None:
    run = start_run(up, "train-phase/short · 2 ocelot")
    waits(up, run)
    assert final_state(up, start_run(up, "train-recipe/short", up_to="kestrel"))["type"] == "COMPLETED"
    assert final_state(up, run)["type"] == "COMPLETED"
    assert ask(up, f"flow_runs/{run}")["run_count"] == 2


@pytest.mark.long
def test_of_scheduled_runs_that_were_missed_the_last_one_runs_and_the_server_reports_no_error(up: Up) -> None:
    deployment = ask(up, "deployments/name/evaluate/~ evaluate")["id"]
    queue = "work_pools/local/queues/default"
    ask(up, queue, {"is_paused": True}, method="PATCH")
    refused = {"recipe": "marin-8b", "phase": "starling"}  # it is not trained
    timetable = {"rrule": f"DTSTART:{datetime.now(UTC):%Y%m%dT%H%M%SZ}\nRRULE:FREQ=SECONDLY;INTERVAL=4;COUNT=12"}  # a minute: not 100 runs
    [schedule] = ask(up, f"deployments/{deployment}/schedules", [{"schedule": timetable, "active": True, "parameters": refused}])
    runs = {"flow_runs": {"deployment_id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC", "limit": 200}

    def of_name(name: str) -> list[dict[str, Any]]:
        return [run for run in ask(up, "flow_runs/filter", runs) if run["state"]["name"] == name]

    wait_for(up, "missed runs", lambda: len(of_name("Missed")) >= 2)
    ask(up, queue, {"is_paused": False}, method="PATCH")
    [first, *_] = wait_for(up, "one that runs", lambda: of_name("Failed"))
    ask(up, f"deployments/{deployment}/schedules/{schedule['id']}", method="DELETE")
    for run in [*of_name("Scheduled"), *of_name("Late")]:  # made ahead of their time; some may have begun meanwhile
        with suppress(urllib.error.HTTPError):
            ask(up, f"flow_runs/{run['id']}", method="DELETE")
    missed = of_name("Missed")
    assert {run["run_count"] for run in missed[:2]} == {0}
    assert max(run["expected_start_time"] for run in missed[:2]) < first["expected_start_time"]
    assert [worker["status"] for worker in ask(up, "work_pools/local/workers/filter", {})] == ["ONLINE"]
    records = re.split(r"^(?=\d\d:\d\d:\d\d\.\d{3} \| )", (up.home / "prefect" / "server.log").read_text(), flags=re.MULTILINE)
    errors = [record for record in records if "| ERROR" in record or "Traceback" in record]
    assert [record for record in errors if "sqlite3.OperationalError: database is locked" not in record] == []  # as on a slow machine
