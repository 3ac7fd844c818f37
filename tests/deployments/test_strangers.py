import base64
import http.client
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from playwright.sync_api import Route, sync_playwright
from prefect.server.api.server import API_ROUTERS
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from phasewise.flows.prefect.access import OPEN_PATH
from tests.chromium import CHROMIUM, NEEDS_CHROMIUM
from tests.deployments.up import Up, ask, final_state

pytestmark = pytest.mark.timeout(900)  # a guard against hanging
FOREIGN = ("http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1", "http://localhost.evil.example", "null", "file://")
FOREIGN_HOSTS = ("evil.example", "127.0.0.1.evil.example:{port}", "127.0.0.1:1", "10.0.0.9:{port}", "")
ROUTES = sorted(
    (method, re.sub(r"\{[^}]+\}", "00000000-0000-0000-0000-000000000000", route.path))
    for router in API_ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
)
"""Of Prefect's API, `/api` left out."""
SOCKETS = sorted(
    re.sub(r"\{[^}]+\}", "local", route.path) for router in API_ROUTERS for route in router.routes if isinstance(route, APIWebSocketRoute)
)


class Answer(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]


def request(up: Up, method: str, path: str, headers: dict[str, str], *, port: int | None = None, body: object = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port or up.port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    data = b"" if body is None else json.dumps(body).encode()
    for name, value in {**headers, "Content-Length": str(len(data)), "Content-Type": "application/json"}.items():
        connection.putheader(name, value)
    connection.endheaders(data)
    answer = connection.getresponse()
    found = Answer(answer.status, answer.read().decode(errors="replace"), {name.lower(): value for name, value in answer.getheaders()})
    connection.close()
    return found


def test_its_owner_is_answered_from_its_own_pages(up: Up) -> None:
    for origin in (up.ui, f"http://localhost:{up.port}"):
        answer = request(up, "POST", "/api/flow_runs/count", {**up.headers, "Origin": origin}, body={})
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (200, origin)
    for host in (f"localhost:{up.port}", f"[::1]:{up.port}", f"LOCALHOST:{up.port}"):
        assert request(up, "POST", "/api/flow_runs/count", {**up.headers, "Host": host}, body={}).status == 200


def without_csrf(up: Up) -> dict[str, str]:
    return {name: value for name, value in up.headers.items() if not name.startswith("Prefect-Csrf")}


def requested_runs(up: Up) -> set[str]:
    """The runs of deployments, without scheduled runs and runs that another run started: the server makes these meanwhile."""
    runs = ask(up, "flow_runs/filter", {"flow_runs": {"deployment_id": {"is_null_": False}}})
    return {run["id"] for run in runs if not run["auto_scheduled"] and run["parent_task_run_id"] is None}


def test_every_address_of_the_api_asks_for_the_token_and_knows_its_origin(up: Up) -> None:
    assert len(ROUTES) > 150
    before = (requested_runs(up), ask(up, "work_pools/local")["base_job_template"])
    for method, path in ROUTES:
        if path not in ("/health", "/ready"):
            assert request(up, method, f"/api{path}", {**up.headers, "Authorization": ""}).status == 401, (method, path)
        assert request(up, method, f"/api{path}", {**up.headers, "Origin": FOREIGN[0]}).status == 403, (method, path)
        assert request(up, method, f"/api{path}", {**up.headers, "Host": FOREIGN_HOSTS[0]}).status == 421, (method, path)
        if method not in ("GET", "HEAD"):
            assert request(up, method, f"/api{path}", without_csrf(up)).status == 403, (method, path)
    for path in ("/", "/v2/", "/ui-settings", "/docs", OPEN_PATH):
        assert request(up, "GET", path, {"Origin": FOREIGN[0]}).status == 403, path
        assert up.auth not in request(up, "GET", path, {}).text
    assert (requested_runs(up), ask(up, "work_pools/local")["base_job_template"]) == before


@NEEDS_CHROMIUM
def test_prefects_pages_work_and_load_nothing_from_other_hosts(up: Up) -> None:
    """Their analytics and the scripts of `/docs` would stand next to the auth string. The policy stops both before a request."""
    others: list[str] = []

    def note(route: Route) -> None:
        others.append(route.request.url)
        route.abort()

    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.route(lambda url: not url.startswith((up.ui, "data:", "blob:")), note)
        page.goto(up.links[0])
        page.get_by_text("Work Pools").last.wait_for()  # a page that is left while it checks the auth string drops the string
        for path, shown in (("/deployments", r"\d+ Deployments"), ("/v2/deployments", r"\d+ Deployments"), ("/docs", "")):
            page.goto(up.ui + path)
            page.get_by_text(re.compile(shown)).first.wait_for(state="attached")
            page.wait_for_load_state("networkidle")
            assert others == [], path


@pytest.mark.parametrize(
    ("statuses", "headers"),
    [
        *(({403}, {"Origin": origin}) for origin in FOREIGN),
        *(({400, 421}, {"Host": host}) for host in FOREIGN_HOSTS),
        ({401}, {"Authorization": f"Basic {base64.b64encode(b'phasewise:wrong').decode()}"}),
        ({401}, {"Authorization": "Bearer {auth}"}),
    ],
)
def test_a_stranger_starts_no_run_and_reads_nothing(up: Up, statuses: set[int], headers: dict[str, str]) -> None:
    deployment = ask(up, "deployments/name/train-phase/short · 1 kestrel")["id"]
    given = {name: value.format(port=up.port, auth=up.auth) for name, value in headers.items()}
    for path in (f"/api/deployments/{deployment}/create_flow_run", "/api/flow_runs/filter"):
        answer = request(up, "POST", path, {**up.headers, **given}, body={})
        assert answer.status in statuses, answer
        assert "access-control-allow-origin" not in answer.headers


def first_answer(address: str, message: dict[str, str]) -> str:
    with connect(address, subprotocols=["prefect"]) as socket:  # type: ignore[list-item]
        socket.send(json.dumps(message))
        try:
            return str(socket.recv(timeout=30))
        except ConnectionClosed:
            return "closed"


@pytest.mark.parametrize("path", SOCKETS)
def test_every_websocket_asks_for_the_token_and_knows_its_origin(up: Up, path: str) -> None:
    address = f"ws://127.0.0.1:{up.port}/api{path}"
    for headers in ({"Origin": FOREIGN[0]}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=headers, subprotocols=["prefect"]):  # type: ignore[list-item]
            pass
        assert refused.value.response.status_code == 403
    for first in ({"type": "auth", "token": "phasewise:wrong"}, {"type": "auth"}, {"type": "event"}):
        assert "auth_success" not in first_answer(address, first)
    assert "auth_success" in first_answer(address, {"type": "auth", "token": up.auth})


def test_variables_of_a_job_are_refused_also_from_the_owner(up: Up) -> None:
    deployment = ask(up, "deployments/name/prepare-data/~ prepare")["id"]
    given = {"recipe": "marin-8b"}
    later = {
        "parameters": given,
        "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": (datetime.now(UTC) + timedelta(days=1)).isoformat()}},
    }
    scheduled = ask(up, f"deployments/{deployment}/create_flow_run", later)["id"]
    runs = {"flow_runs": {"deployment_id": {"any_": [deployment]}}}
    before = ask(up, "flow_runs/count", runs)
    create = f"/api/deployments/{deployment}/create_flow_run"
    for variables in ({"command": "touch x"}, {"env": {"PYTHONSTARTUP": "x"}}, {"working_dir": "/"}, {"env.A": "b"}):
        for method, path in (("POST", create), ("POST", f"{create}/bulk"), ("PATCH", f"/api/flow_runs/{scheduled}")):
            body: object = {"parameters": given, "job_variables": variables}
            answer = request(up, method, path, up.headers, body=[body] if path.endswith("bulk") else body)
            assert answer.status == (200 if path.endswith("bulk") else 422), answer  # of many at once the answer names what failed
            assert "Validation failed. Failure reason: Additional properties are not allowed" in answer.text
    assert ask(up, "flow_runs/count", runs) == before
    ask(up, f"flow_runs/{scheduled}", method="DELETE")


def test_a_run_that_evades_the_check_runs_no_command(up: Up, tmp_path: Path) -> None:
    found = ask(up, "deployments/name/prepare-data/~ prepare")
    variables = {"command": f"touch {tmp_path / 'ran'}", "env": {"PHASEWISE_HOME": str(tmp_path)}, "env.PHASEWISE_HOME": str(tmp_path)}
    body = {
        "flow_id": found["flow_id"],
        "deployment_id": found["id"],
        "job_variables": variables,
        "parameters": {"recipe": "marin-8b", "settings": ["a.b=1"]},
    }
    body |= {"work_pool_name": found["work_pool_name"], "work_queue_name": found["work_queue_name"], "state": {"type": "SCHEDULED"}}
    run = ask(up, "flow_runs/", body)["id"]  # Prefect checks variables only where a deployment makes the run
    assert final_state(up, run)["type"] in ("FAILED", "CRASHED")
    assert list(tmp_path.iterdir()) == []
