"""A cluster that is slow, busy, forgets and cuts connections, launchers that are gone, and others that come: nothing is started twice."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training import jobset, kubernetes_cluster
from phasewise.tasks.training.jobset import JobSetLauncher, exit_code, exit_statuses, jobset_name, reasons_of, trouble_of
from phasewise.tasks.training.jobset_manifest import OWNER, ClusterSettings
from phasewise.tasks.training.kubernetes_cluster import Cluster, Conflict
from phasewise.tasks.training.launchers import Attempt, Hosts
from phasewise.tasks.training.monitor import start_and_monitor
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from tests.tasks.training.api_server import ApiServer, api_server
from tests.tasks.training.conftest import said_by
from tests.tasks.training.schema import problems_of

KILLED, TERMINATED, ABORTED = 137, 143, 134


def pod(host: int, code: int | None, at: int = 0, *, deleted_at: int | None = None, disrupted: bool = False, slices: int = 2) -> Any:
    """One that ended in that second; `deleted_at` is when it was deleted, with 30 seconds to save."""
    annotations = {
        "jobset.sigs.k8s.io/job-index": str(host // slices),
        "batch.kubernetes.io/job-completion-index": str(host % slices),
        "phasewise/hosts": str(slices),
    }
    metadata: dict[str, Any] = {"name": f"pod-{host}", "annotations": annotations}
    if deleted_at is not None:
        metadata |= {"deletionTimestamp": f"2026-01-01T00:01:{deleted_at:02}Z", "deletionGracePeriodSeconds": 60}
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{at:02}+00:00"}}
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}] if disrupted else []
    return {"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": [{"state": state}]}}


def named(*pods: Any) -> tuple[list[int], int | None]:
    """Hosts and code of the reason."""
    reasons = reasons_of(exit_statuses(pods))
    return [one.host for one in reasons], reasons[0].code if reasons else None


def test_of_two_that_were_killed_the_first_is_named():
    """The others have their time to save, and are killed when it is over."""
    assert named(pod(0, KILLED, 40), pod(1, KILLED, 10)) == ([1], -9)
    assert named(pod(0, KILLED, 10), pod(1, KILLED, 40)) == ([0], -9)


def test_who_was_ended_because_of_the_others_is_not_the_reason():
    assert named(pod(0, KILLED, 40, deleted_at=10), pod(1, 5, 10)) == ([1], 5), "it was deaf, and nobody asked it before"
    assert named(pod(0, 75, 12, deleted_at=10), pod(1, 5, 10)) == ([1], 5)
    assert named(pod(0, TERMINATED, 11, deleted_at=10), pod(1, ABORTED, 9)) == ([1], -6)


def test_one_that_ended_before_it_was_deleted_has_its_say():
    """When a JobSet is deleted, so are the pods that have ended."""
    assert named(pod(0, ABORTED, 12, deleted_at=20), pod(1, KILLED, 10, deleted_at=20)) == ([1], -9)


def test_one_whose_node_is_taken_away_is_the_reason():
    assert named(pod(0, 5, 12), pod(1, KILLED, 40, deleted_at=10, disrupted=True)) == ([1], -9)


def test_in_the_same_second_a_kill_was_before_what_the_cluster_sends():
    assert named(pod(0, TERMINATED, 10, deleted_at=10), pod(1, KILLED, 10)) == ([1], -9)


def test_who_ended_alike_in_the_same_second_is_named_together():
    assert named(pod(0, KILLED, 10), pod(1, KILLED, 10), pod(2, ABORTED, 10)) == ([0, 1], -9)


def test_what_starting_again_does_not_cure_counts_before_all():
    assert named(pod(0, KILLED, 10), pod(1, 7, 12)) == ([1], 7)
    assert named(pod(0, 75, 10), pod(1, 9, 10)) == ([1], 9), "it is saved"


def test_where_all_are_done_or_none_has_ended_nobody_is_the_reason():
    assert named(pod(0, 0, 10), pod(1, 0, 11)) == ([], None)
    assert named(pod(0, None), pod(1, None)) == ([], None)
    assert named(pod(0, None), pod(1, KILLED, 3)) == ([1], -9)


def test_where_a_cluster_says_no_times_those_that_ended_alike_are_named_together():
    pods = [pod(0, KILLED, 40), pod(1, KILLED, 10), pod(2, ABORTED, 3)]
    for one in pods:
        del one["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    assert named(*pods) == ([0, 1], -9)


def test_hosts_are_counted_over_slices():
    assert [one.host for one in exit_statuses([pod(3, 5), pod(0, 5)])] == [0, 3]


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


def test_a_launcher_that_comes_after_one_that_died_follows_its_jobset(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    first, second = bare_life(owner="the first"), bare_life(owner="the second")
    begun = launcher.start(first)
    until(lambda: are_here(first))
    pid = said_by(first, 0)["pid"]
    attempt = launcher.start(second)
    assert created(server) == 1
    [found] = server.jobsets.values()
    assert found["metadata"]["annotations"][OWNER] == "the second"
    with pytest.raises(TrainingError, match=r"was taken over by another launcher \(the second\)"):
        begun.look()
    begun.stop()
    begun.close()
    assert server.jobsets, "it touches nothing that is not its own any more"
    assert said_by(second, 0)["pid"] == pid
    ends_with(attempt, second, 3)


def test_of_two_that_take_over_at_once_one_is_refused(
    launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, monkeypatch: pytest.MonkeyPatch
):
    life = bare_life(owner="the first")
    attempt = launcher.start(life)
    replace = server.replace

    def late(name: str, changed: Any) -> Any:
        server.touch(name)  # the other one is quicker
        return replace(name, changed)

    monkeypatch.setattr(server, "replace", late)
    with pytest.raises(TrainingError, match="is being taken over by another launcher"):
        launcher.start(bare_life(owner="the third"))
    ends_with(attempt, life, 3)


def test_a_jobset_that_does_something_else_is_replaced(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    first, second = bare_life(), bare_life()
    launcher.start(first)
    until(lambda: are_here(first))
    second.run.digest = "e" * 64  # pyright: ignore[reportAttributeAccessIssue]
    attempt = launcher.start(second)
    assert created(server) == 2
    assert len(server.jobsets) == 1
    ends_with(attempt, second, 3)


def test_a_jobset_that_somebody_deletes_counts_as_lost(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    life = bare_life()
    attempt = launcher.start(life)
    until(lambda: are_here(life))
    server.delete(jobset_name(life.folder))
    until(lambda: attempt.look() is not None)
    assert attempt.look() in (5, 75)
    attempt.close()


def test_a_launcher_that_wakes_up_leaves_a_later_jobset_of_the_same_name(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    """On a store another launcher deletes the JobSet and makes its own. It has the name of the run's folder, as the first one had."""
    first, second = bare_life(owner="the first"), bare_life(owner="the second")
    old = launcher.start(first)
    name = jobset_name(first.folder)
    server.delete(name)
    until(lambda: not server.jobsets)
    second.run.digest = "e" * 64  # pyright: ignore[reportAttributeAccessIssue]
    new = launcher.start(second)
    until(lambda: old.look() is not None)
    before = dict(server.jobsets)
    old.stop()
    old.kill()
    old.close()
    assert server.jobsets == before
    assert server.pods[name].codes == [None, None]
    ends_with(new, second, 3)


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


def test_a_manifest_that_the_server_refuses_is_said(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    server.validate = lambda manifest: ["spec.x: Invalid value"]
    with pytest.raises(ConfigError, match=r"422 .*spec\.x: Invalid value"):
        launcher.start(bare_life())


def test_another_disk_has_another_name(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = jobset_name(tmp_path / "a")
    assert first == jobset_name(tmp_path / "a") != jobset_name(tmp_path / "b")


def test_an_object_that_is_there_is_a_conflict(launcher: JobSetLauncher, served: tuple[ApiServer, str], bare_life: BareLife):
    life = bare_life()
    attempt = launcher.start(life)
    [found] = served[0].jobsets.values()
    with pytest.raises(Conflict):
        Cluster("default", host=served[1]).create(found)
    ends_with(attempt, life, 3)


def test_why_pods_do_not_start():
    waiting = {"metadata": {"name": "a"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}
    creating = {"metadata": {"name": "b"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}}
    full = {"metadata": {"name": "c"}, "status": {"conditions": [{"reason": "Unschedulable", "message": "no nodes"}]}}
    assert trouble_of([waiting, creating, full]) == "a does not start (ImagePullBackOff); c does not start (Unschedulable: no nodes)"
    assert trouble_of([creating]) == ""
