import base64
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from phasewise.deployments.local import RUN_MODULE
from phasewise.flows.prefect.access import AUTH_VARIABLES
from phasewise.tasks.data.cluster import cluster
from tests.deployments import up as running

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: a busy machine may need minutes for a server and a first training


def run_folder(up: running.Up) -> Path:
    return up.home / "runs" / "long-proxy" / "kestrel"


def trained_steps(up: running.Up) -> int:
    metrics = run_folder(up) / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def saved_steps(up: running.Up) -> list[int]:
    return sorted(int(path.parent.name) for path in (run_folder(up) / "checkpoints").glob("*/digests.json"))


def trains_on(up: running.Up) -> None:
    before = trained_steps(up)
    running.wait_for(up, f"a step after {before}", lambda: trained_steps(up) > before + 10)


def phasewise(up: running.Up, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "phasewise.flows.cli.main", *map(str, arguments), "--home", str(up.home)]
    settings = {**running.environment(), **up.settings}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings, start_new_session=True)


@pytest.mark.long
def test_ctrl_c_in_the_terminal_saves_the_last_update(up: running.Up, recipes: Path) -> None:
    with phasewise(up, "run", recipes / "long.json") as process:
        trains_on(up)
        seen = running.ask(up, "flow_runs/filter", {"flow_runs": {"name": {"like_": "train"}, "state": {"type": {"any_": ["RUNNING"]}}}})
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=running.WAIT_SECONDS)[1]
    assert process.returncode == 130, errors
    assert f"using the Prefect server of `phasewise up` (process {up.process.pid}, since " in errors
    assert {run["name"].split()[0] for run in seen} == {"train"}
    steps = trained_steps(up)
    assert saved_steps(up)[-1] == steps
    assert f"kestrel: stopped after step {steps:,} of 1,000,000, which is saved" in errors
    assert errors.endswith("phasewise: stopped. The same command resumes.\n")
    assert "Traceback" not in errors


def suspend(up: running.Up, run: str) -> None:
    details = {"pause_reschedule": True, "pause_timeout": "2100-01-01T00:00:00Z"}
    running.ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "PAUSED", "name": "Suspended", "state_details": details}})


def at_work(up: running.Up, run: str) -> list[str]:
    return [child["name"] for child in running.subflows_of(up, run) if child["state"]["type"] in {"RUNNING", "PENDING", "CANCELLING"}]


@pytest.mark.long
def test_a_cancelled_run_has_saved_its_last_update_and_leaves_nothing_at_work(up: running.Up) -> None:
    training = running.start_run(up, "train-recipe/long", retrain=[])
    trains_on(up)
    assert len(trainers(up)) == 1
    running.ask(up, f"flow_runs/{training}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert running.final_state(up, training)["type"] == "CANCELLED"
    steps = trained_steps(up)
    assert saved_steps(up)[-1] == steps
    assert any(
        line.startswith(f"kestrel: stopped after step {steps:,} of 1,000,000, which is saved") for line in running.logs_of(up, training)
    )
    assert (at_work(up, training), trainers(up)) == ([], [])


@pytest.mark.long
def test_a_run_that_was_killed_is_closed_while_the_server_is_up(up: running.Up, recipes: Path) -> None:
    with phasewise(up, "run", recipes / "long.json") as process:
        trains_on(up)
        process.kill()
    begun = running.ask(up, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    assert {run["name"].split(" ")[0] for run in begun} == {"train"}
    assert len(begun) == 2
    for run in begun:
        state = running.final_state(up, run["id"])
        assert (state["type"], "it resumes from saved work" in state["message"]) == ("CRASHED", True)


@pytest.fixture(scope="module")
def training(up: running.Up) -> str:
    run = running.start_run(up, "train-recipe/long", retrain=[])
    trains_on(up)
    return run


def test_a_run_beside_what_is_up_is_refused_at_once_and_disturbs_nothing(up: running.Up, training: str, recipes: Path) -> None:
    before = running.state_of(up, training)
    with phasewise(up, "run", recipes / "long.json") as process:
        output, errors = process.communicate(timeout=running.WAIT_SECONDS)
    assert (process.returncode, output) == (2, "")
    assert errors.startswith("phasewise: the flow run 'long")
    assert f"is at work in {up.home}: wait for it, stop it, or choose another home with --home.\n" in errors
    assert running.state_of(up, training) == before
    trains_on(up)


def listening(root: int, what: str, *, but: int = 0) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    others = [psutil.Process(but), *psutil.Process(but).children(recursive=True)] if but else []
    for process in {psutil.Process(root), *psutil.Process(root).children(recursive=True)}.difference(others):
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            name = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name if words else ""
            for one in process.net_connections(kind="inet"):
                if one.status == psutil.CONN_LISTEN or (one.type == 2 and one.laddr and not one.raddr):
                    found.add((f"{what}: {name}", one.laddr.ip))
    return found


def test_everything_listens_on_loopback(up: running.Up, training: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = listening(up.process.pid, "up")
    monkeypatch.setenv("PHASEWISE_DASK_WORKERS", "2")
    with cluster() as client:
        client.submit(sum, [1, 2]).result()
        assert client.scheduler is not None
        assert str(client.scheduler.address).startswith("tls://")  # whoever reaches its port has it run what he sends
        data = listening(os.getpid(), "data", but=up.process.pid)
    assert data
    found |= data
    assert {what for what, _ in found} >= {"up: phasewise.flows.prefect.server_process", "up: phasewise.deployments.site"}
    assert {address for _, address in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_the_secrets_are_nowhere_but_in_their_files(up: running.Up, training: str) -> None:
    secrets = [up.auth, up.auth.partition(":")[2], (up.home / "prefect" / "page-token").read_text().strip()]
    secrets.append(base64.b64encode(up.auth.encode()).decode())
    own = {up.home / "prefect" / name for name in ("auth", "links", "page-token")}
    for path in own:
        assert path.stat().st_mode & 0o777 == 0o600, path
    for path in up.home.rglob("*"):
        if path.is_file() and path not in own:
            content = path.read_bytes()
            assert not [secret for secret in secrets if secret.encode() in content], path
    assert not [secret for secret in secrets if secret in up.text]
    every = psutil.Process(up.process.pid).children(recursive=True)
    assert not [words for words in (process.cmdline() for process in every) if any(secret in " ".join(words) for secret in secrets)]
    (trainer,) = running.processes(up, "phasewise.trainer")
    assert not set(AUTH_VARIABLES) & set(trainer.environ())
    assert up.auth not in trainer.environ().values()
    assert running.processes(up, RUN_MODULE)


@pytest.mark.long
def test_a_run_that_has_a_slot_waits_for_the_home_and_names_who_has_it(up: running.Up, training: str) -> None:
    deployment = running.ask(up, "deployments/name/train-phase/long · 1 kestrel")["id"]
    beside = running.ask(up, f"deployments/{deployment}/create_flow_run", {"work_queue_name": "default"})["id"]
    [said, *_] = running.wait_for(
        up, "its waiting", lambda: [line for line in running.logs_of(up, beside) if line.startswith("waiting for ")]
    )
    assert said.startswith(f"waiting for the flow run '{running.ask(up, f'flow_runs/{training}')['name']}' (process ")
    assert len(trainers(up)) == 1
    running.ask(up, f"flow_runs/{beside}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert running.final_state(up, beside)["type"] == "CANCELLED"
    assert running.state_of(up, training)["type"] == "RUNNING"


@pytest.mark.long
def test_a_suspended_run_stops_saved_and_resumes(up: running.Up, training: str) -> None:
    suspend(up, training)
    running.wait_for(up, "the end of its subflows", lambda: not at_work(up, training))
    steps = trained_steps(up)
    assert saved_steps(up)[-1] == steps
    assert running.state_of(up, training)["name"] == "Suspended"
    assert not [process for process in trainers(up) if process.is_running()]
    running.ask(up, f"flow_runs/{training}/resume", {})
    trains_on(up)
    lines = running.logs_of(up, training)
    assert f"kestrel: resuming from step {steps:,} of 1,000,000" in lines
    assert any(" loss " in line and "tokens/s" in line for line in lines if line.startswith("train kestrel: "))
    assert running.state_of(up, training)["type"] == "RUNNING"


def trainers(up: running.Up) -> list[psutil.Process]:
    return running.processes(up, "phasewise.trainer")


def test_ctrl_c_ends_everything_and_leaves_nothing(up: running.Up, training: str) -> None:
    trains_on(up)
    started = psutil.Process(up.process.pid).children(recursive=True)
    assert {os.getsid(process.pid) for process in started}.isdisjoint({up.process.pid})
    os.killpg(up.process.pid, signal.SIGINT)  # as the terminal does at Ctrl-C
    assert up.process.wait(running.WAIT_SECONDS) == 0
    assert not [process for process in started if process.is_running()]
    assert saved_steps(up)[-1] == trained_steps(up)
    lines = (run_folder(up) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))
