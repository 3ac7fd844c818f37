"""A cluster that is slow, busy and cuts connections, launchers that are gone, and others that come: nothing is started twice."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training import jobset, kubernetes_cluster
from phasewise.tasks.training.jobset import JobSetLauncher, exit_code, jobset_name, reasons_of, trouble_of
from phasewise.tasks.training.jobset_manifest import ClusterSettings
from phasewise.tasks.training.kubernetes_cluster import Cluster
from phasewise.tasks.training.launchers import Attempt, Hosts
from phasewise.tasks.training.monitor import start_and_monitor
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from tests.tasks.training.api_server import ApiServer, api_server
from tests.tasks.training.schema import problems_of

KILLED, TERMINATED, ABORTED = 137, 143, 134


def pod(host: int, code: int | None, at: int | None = 0, *, slices: int = 2) -> Any:
    """A pod that ended in that second; None is that the cluster does not say when."""
    annotations = {
        "jobset.sigs.k8s.io/job-index": str(host // slices),
        "batch.kubernetes.io/job-completion-index": str(host % slices),
        "phasewise/hosts": str(slices),
    }
    ended = {"exitCode": code, **({} if at is None else {"finishedAt": f"2026-01-01T00:00:{at:02}Z"})}
    state = {"running": {}} if code is None else {"terminated": ended}
    return {"metadata": {"name": f"pod-{host}", "annotations": annotations}, "status": {"containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("pods", "hosts", "code"),
    [
        ([pod(0, KILLED, 40), pod(1, KILLED, 10)], [1], -9),  # the others have their time to save, and are killed when it is over
        ([pod(0, 75, 12), pod(1, KILLED, 10)], [1], -9),
        ([pod(0, TERMINATED, 10), pod(1, KILLED, 10)], [1], -9),
        ([pod(0, KILLED, 10), pod(1, KILLED, 10), pod(2, ABORTED, 10)], [0, 1], -9),
        ([pod(0, KILLED, None), pod(1, KILLED, None), pod(2, ABORTED, None)], [0, 1], -9),
        ([pod(0, KILLED, 10), pod(1, 7, 12)], [1], 7),  # starting again does not cure it
        ([pod(0, 75, 10), pod(1, 9, 10)], [1], 9),  # it is saved
        ([pod(0, 0, 10), pod(3, 5, 11)], [3], 5),
        ([pod(0, 0, 10), pod(1, 0, 11)], [], None),
        ([pod(0, None), pod(1, None)], [], None),
    ],
)
def test_the_pod_that_was_the_reason_is_named(pods: list[Any], hosts: list[int], code: int | None):
    reasons = reasons_of(pods)
    assert ([one.host for one in reasons], reasons[0].code if reasons else None) == (hosts, code)


@pytest.mark.parametrize(("said", "code"), [(0, 0), (75, 75), (137, -9), (143, -15), (255, 255)])
def test_the_code_of_a_container(said: int, code: int):
    assert exit_code({"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": said}}}]}}) == code
    assert exit_code({"status": {}}) is None


BareLife = Callable[..., Attempt]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ApiServer, str]]:
    with api_server(tmp_path, problems_of) as found:
        yield found


@pytest.fixture
def server(served: tuple[ApiServer, str]) -> ApiServer:
    return served[0]


@pytest.fixture
def launcher(served: tuple[ApiServer, str], stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> JobSetLauncher:
    monkeypatch.setattr(kubernetes_cluster, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(jobset, "PODS_SECONDS", 0.02)
    settings = ClusterSettings(image="here", python=str(stand_in), stop_seconds=5)
    return JobSetLauncher(Cluster("default", host=served[1]), find_slice("v5p-16"), settings)


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def are_here(life: Attempt) -> bool:
    return len(list((life.folder / "roll-call").glob("*/*.json"))) >= 2


def created(server: ApiServer) -> int:
    return sum(method == "POST" for method, _ in server.asked)


def ends_with(attempt: Hosts, life: Attempt, code: int) -> None:
    (life.folder / "end-1").write_text(str(code))
    until(lambda: attempt.look() is not None)
    assert attempt.look() == code
    attempt.close()


@pytest.mark.parametrize("fault", ["503", "cut", "slow"])
def test_a_server_that_does_not_answer_is_asked_again(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, fault: str):
    life = bare_life()
    server.faults += ["", fault, fault]  # the first request asks what is there
    attempt = launcher.start(life)
    server.faults += [fault, fault, fault]
    ends_with(attempt, life, 3)
    assert len(server.pods) == 0
    assert "host 1" in RunFolder(life.folder).log(0).read_text()


def test_a_request_that_was_carried_out_and_not_answered_makes_no_second_one(
    launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, monkeypatch: pytest.MonkeyPatch
):
    life = bare_life()
    create = server.create

    def unanswered(manifest: Any) -> Any:
        create(manifest)
        monkeypatch.setattr(server, "create", create)
        server.faults.append("503")
        raise ConnectionAbortedError

    monkeypatch.setattr(server, "create", unanswered)
    attempt = launcher.start(life)
    assert len(server.jobsets) == 1
    ends_with(attempt, life, 3)


def test_a_launcher_that_comes_after_one_that_died_replaces_its_jobset(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    """One that was only away touches nothing of the second."""
    first, second = bare_life(owner="the first"), bare_life(owner="the second")
    begun = launcher.start(first)
    until(lambda: are_here(first))
    hosts = launcher.start(second)
    assert created(server) == 2
    before = dict(server.jobsets)
    with pytest.raises(TrainingError, match="was replaced by another launcher"):
        until(lambda: begun.look() is not None)
    begun.stop()
    begun.close()
    assert server.jobsets == before
    assert server.pods[jobset_name(first.folder)].codes == [None, None]
    ends_with(hosts, second, 3)


def test_a_jobset_that_somebody_deletes_counts_as_lost(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    life = bare_life()
    attempt = launcher.start(life)
    until(lambda: are_here(life))
    server.delete(jobset_name(life.folder))
    until(lambda: attempt.look() is not None)
    assert attempt.look() in (5, 75)
    attempt.close()


def test_hosts_that_do_not_hear_are_ended(
    launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PHASEWISE_STOP_SECONDS", "0.3")
    life = bare_life()
    for number in (0, 1):
        (life.folder / f"end-{number}").write_text("deaf")

    def check() -> None:
        if are_here(life):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_and_monitor(launcher, life, lambda rows: None, check)
    assert not server.jobsets
    assert not server.pods


def test_why_pods_do_not_start():
    waiting = {"metadata": {"name": "a"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}
    creating = {"metadata": {"name": "b"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}}
    full = {"metadata": {"name": "c"}, "status": {"conditions": [{"reason": "Unschedulable", "message": "no nodes"}]}}
    assert trouble_of([waiting, creating, full]) == "a does not start (ImagePullBackOff); c does not start (Unschedulable: no nodes)"
    assert trouble_of([creating]) == ""


def test_a_pods_log_that_is_cut_is_read_again_and_each_line_is_written_once(
    launcher: JobSetLauncher, served: tuple[ApiServer, str], bare_life: BareLife, tmp_path: Path
):
    life = bare_life()
    hosts = launcher.start(life)
    until(lambda: are_here(life))
    name = min(served[0].pods[jobset_name(life.folder)].logs)
    served[0].log_faults += ["400", "30", "503", "words"]
    log = kubernetes_cluster.PodLog(Cluster("default", host=served[1]), name, "trainer", tmp_path / "log")
    until(lambda: not served[0].log_faults)
    until(lambda: "the log is" in (tmp_path / "log").read_text())
    ends_with(hosts, life, 3)
    log.end()
    log.join(time.monotonic() + PATIENCE_SECONDS)
    found = (tmp_path / "log").read_text()
    assert [found.count(words) for words in (f"log of {name}:", "the log is", "could not be read")] == [1, 1, 0]
