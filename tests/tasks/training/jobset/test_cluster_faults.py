"""A cluster that is slow, busy, forgets and cuts connections, launchers that are gone, and others that come: nothing is started twice."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training.follow import start_and_follow
from phasewise.tasks.training.jobset import cluster as module
from phasewise.tasks.training.jobset.cluster import Cluster, Conflict
from phasewise.tasks.training.jobset.launcher import JobSetLauncher, jobset_name, trouble_of
from phasewise.tasks.training.jobset.manifest import OWNER, ClusterSettings
from phasewise.tasks.training.protocol import Attempt, Life, log_of
from phasewise.trainer.base.errors import ConfigError, TrainingError
from tests.tasks.training.conftest import said_by
from tests.tasks.training.jobset.api_server import ApiServer, api_server
from tests.tasks.training.jobset.schema import problems_of

BareLife = Callable[..., Life]
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
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)
    settings = ClusterSettings(image="here", python=str(stand_in), stop_seconds=5)
    return JobSetLauncher(Cluster("default", host=served[1]), find_slice("v5p-16"), settings)


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def are_here(life: Life) -> bool:
    return len(list((life.folder / "roll-call").glob("*/*.json"))) >= 2


def created(server: ApiServer) -> int:
    return sum(method == "POST" for method, _ in server.asked)


def ends_with(attempt: Attempt, life: Life, code: int) -> None:
    (life.folder / "end-1").write_text(str(code))
    until(lambda: attempt.look() is not None)
    assert attempt.look() == code
    attempt.close()


def test_a_watch_that_is_lost_is_begun_again(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    life = bare_life()
    attempt = launcher.start(life)
    for _ in range(3):
        before = server.watches
        server.forget_events()  # 410 Gone
        until(lambda before=before: server.watches > before)
    ends_with(attempt, life, 3)
    assert not server.jobsets


@pytest.mark.parametrize("fault", ["503", "cut", "slow"])
def test_a_server_that_does_not_answer_is_asked_again(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, fault: str):
    life = bare_life()
    server.faults += ["", fault, fault]  # the first request asks what is there
    attempt = launcher.start(life)
    server.faults += [fault, fault, fault]
    ends_with(attempt, life, 3)
    assert len(server.pods) == 0
    assert "host 1" in log_of(life.folder, 0).read_text()


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
    until(lambda: begun._watched.found["metadata"]["annotations"][OWNER] == "the second")  # pyright: ignore
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
        start_and_follow(launcher, life, lambda rows: None, check)
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
