"""What goes wrong between hosts, their launcher and the store: nothing is named that is not there, who was shut out changes nothing."""

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phasewise.tasks.store.head import Head
from phasewise.tasks.store.objects import Objects
from phasewise.tasks.store.publisher import Kept, Publisher
from phasewise.tasks.training.hosts import program
from phasewise.tasks.training.hosts.gathering import Gathering
from phasewise.tasks.training.hosts.needs import Work
from phasewise.tasks.training.hosts.post import Post, Posts
from phasewise.tasks.training.jobset.endings import exit_code
from phasewise.trainer.base.errors import ConfigError, StorageError, TakenOver
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.checkpoints.files import find_damage, remove_checkpoint
from tests.stores.fixtures import FaultyStore
from tests.tasks.training.hosts.worlds import HOUR, PHASE, RUN_NAME, Launch

OFTEN = 1000


class Killed(BaseException):
    """As a process ends that is killed there."""


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("hosts", [1, 2])
def test_what_all_hosts_sent_is_named_and_is_whole_elsewhere(gcs: Path, tmp_path: Path, hosts: int):
    with Launch(tmp_path, gcs, hosts=hosts) as launch:
        launch.train_to(5)
        launch.send()
        assert launch.commit() == [5]
    other = Kept(tmp_path / "other", gcs, RUN_NAME)
    other.look(checkpoints=True)
    assert find_damage(other.work / "runs" / RUN_NAME / PHASE / "checkpoints" / "5") is None


@pytest.mark.parametrize(
    ("dies_at", "named"),
    [
        (None, [5]),
        ("before its share", [5]),
        ("after its share", [5]),
        ("after its post", [5, 10]),
    ],
)
def test_a_host_that_is_killed(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str | None, named: list[int]):
    """At each point of what it sends: a checkpoint is named when all of it is there, and before that the one before it."""
    with Launch(tmp_path, gcs) as launch:
        launch.train_to(5)
        launch.send()
        assert launch.commit() == [5]
        launch.train_to(10)
        write_json(launch.work(0).run.result, {"step": 10})
        launch.send(0)
        if dies_at == "before its share":
            monkeypatch.setattr(Objects, "send", die)
        if dies_at == "after its share":
            send = Objects.send
            monkeypatch.setattr(Objects, "send", lambda *arguments: (send(*arguments), die()))
        if dies_at == "after its post":
            launch.send(1)
        elif dies_at:
            with pytest.raises(Killed):
                launch.send(1)
            monkeypatch.undo()
        assert launch.commit() == named
        assert launch.run.result.exists() == (10 in named), "no result without its checkpoint"
        rows = launch.run.metrics.read_text().splitlines()
        assert json.loads(rows[-1])["step"] == 10, "rows come before their checkpoint"
    needed, there = launch.content()
    assert there == needed, "what no head needs is deleted when the launch ends"
    other = Kept(tmp_path / "other", gcs, RUN_NAME)
    other.look(checkpoints=True)
    assert find_damage(other.work / "runs" / RUN_NAME / PHASE / "checkpoints" / str(named[-1])) is None


def test_a_launcher_that_is_killed_before_it_commits_leaves_the_checkpoint_before(gcs: Path, tmp_path: Path):
    launch = Launch(tmp_path, gcs).__enter__()
    launch.train_to(5)
    launch.send()
    assert launch.commit() == [5]
    launch.train_to(10)
    launch.send()
    launch.gathering.gather()  # and nothing more of it
    with Launch(tmp_path / "another machine", gcs, name="launch-2") as second:
        assert second.committed() == [5]
        second.train_to(10)
        second.send()
        assert second.commit() == [5, 10]


def test_on_the_same_machine_a_list_without_its_files_counts_for_nothing(gcs: Path, tmp_path: Path):
    """The launcher was killed between bringing the list of a checkpoint here and committing it."""
    launch = Launch(tmp_path, gcs).__enter__()
    launch.train_to(5)
    launch.send()
    launch.commit()
    launch.train_to(10)
    write_json(launch.work(0).run.result, {"step": 10})
    launch.send()
    launch.gathering.gather()  # and nothing more of it
    assert launch.run.checkpoint(10).exists()
    with Publisher(launch.kept, every_seconds=HOUR):
        assert not launch.run.checkpoint(10).exists()
        assert not launch.run.result.exists()
        assert find_damage(launch.run.checkpoint(5)) is None, "what is committed is brought whole"


def test_a_torn_upload_and_a_store_that_is_busy(faulty_store: FaultyStore, tmp_path: Path):
    with Launch(tmp_path, faulty_store.root) as launch:
        launch.train_to(5)
        faulty_store.faults.tear(where="objects", method="POST", times=2)
        faulty_store.faults.refuse(where="launches", method="POST", status=503, times=3)
        launch.send()
        assert {kind for kind, _ in faulty_store.faults.happened} == {"tear", "refuse"}
        assert launch.commit() == [5]


def test_a_store_that_is_away_for_long_gets_the_rest_later_and_a_host_that_ends_says_so(faulty_store: FaultyStore, tmp_path: Path):
    with Launch(tmp_path, faulty_store.root) as launch:
        launch.train_to(5)
        faulty_store.faults.refuse(where="objects", method="POST", times=OFTEN)
        with pytest.raises(StorageError, match="what host 1 wrote is not on gs://"):
            launch.senders[1].finish()
        faulty_store.faults.clear()
        assert launch.commit() == []
        launch.senders[1].finish()
        launch.send(0)
        assert launch.commit() == [5]


@pytest.mark.parametrize("is_away_after", [False, True])
def test_a_post_whose_answer_is_lost_is_this_hosts(faulty_store: FaultyStore, tmp_path: Path, is_away_after: bool):
    with Launch(tmp_path, faulty_store.root) as launch:
        faulty_store.faults.drop_reply(where="launches/launch-1/1", method="POST", times=1)
        if is_away_after:
            faulty_store.faults.refuse(where="launches/launch-1/1", method="POST", times=OFTEN)
            with suppress(Exception):  # stores have error types of their own
                launch.senders[1].post()
            assert [kind for kind, _ in faulty_store.faults.happened][:2] == ["drop_reply", "refuse"]
            faulty_store.faults.clear()
        launch.train_to(5)
        launch.send()
        assert launch.commit() == [5]


@pytest.mark.parametrize("sent", ["before the launcher looks", "after it has looked"])
def test_content_that_a_host_sends_again_is_not_deleted_with_the_checkpoint_that_had_it(
    gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str
):
    """The launcher looks what may go, and deletes: not what a host sends of a checkpoint that the launcher does not know yet."""
    with Launch(tmp_path, gcs) as launch:
        launch.train_to(5, same="as in all")
        launch.send()
        assert launch.commit() == [5]
        launch.train_to(10, same="as in all")
        for host in (0, 1):  # the trainers have deleted it
            remove_checkpoint(launch.work(host).run.checkpoint(5))
        versions = Objects.versions

        def seen_and_sent(objects: Objects, digests: set[str]) -> dict[str, str]:
            monkeypatch.setattr(Objects, "versions", versions)
            if sent == "before the launcher looks":
                launch.send()
            found = versions(objects, digests)
            assert len(found) == 4, "the list, both shares and what the first host says about it"
            if sent == "after it has looked":
                launch.send()
            return found

        monkeypatch.setattr(Objects, "versions", seen_and_sent)
        remove_checkpoint(launch.run.checkpoint(5))
        launch.publisher.publish()
        assert launch.committed() == []
        assert launch.commit() == [10]
    needed, there = launch.content()
    assert there == needed
    other = Kept(tmp_path / "other", gcs, RUN_NAME)
    other.look(checkpoints=True)
    assert find_damage(other.work / "runs" / RUN_NAME / PHASE / "checkpoints" / "10") is None


def test_a_host_of_an_old_launch_that_wakes_up_is_refused_by_the_store(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = Launch(tmp_path, gcs).__enter__()
    old.train_to(5)
    old.send()
    assert old.commit() == [5]
    with Launch(tmp_path / "new", gcs, name="launch-2") as new:
        head = new.kept.head.read()
        for host in (0, 1):
            for _ in range(2):
                with pytest.raises(TakenOver, match="the launch launch-2 has it"):
                    old.senders[host].post()
            assert old.senders[host].lost
        monkeypatch.setattr(old.senders[1], "check_launch", lambda: None)  # it has looked just before
        old.train_to(7)
        with pytest.raises(TakenOver, match=r"host 1 of the launch launch-1 is refused by gs://.*: the launch is over"):
            old.senders[1].send_checkpoints()
        write_json(old.run.result, {})
        with pytest.raises(TakenOver):
            old.publisher.publish()
        assert new.kept.head.read() == head
        new.train_to(10)
        new.send()
        assert new.commit() == [5, 10]


@pytest.mark.parametrize("launch_now", ["launch-2", ""])
def test_a_host_that_comes_too_late_begins_nothing(
    gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], launch_now: str
):
    for name, value in {"PHASEWISE_LAUNCH": "launch-1", "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path))
    monkeypatch.setattr(program, "end_with_parent", lambda *_: None)
    monkeypatch.setattr(program, "Stop", lambda: None)
    with Publisher(Kept(tmp_path / "launcher", gcs, RUN_NAME), every_seconds=HOUR) as publisher:
        publisher.launch(launch_now)
        assert program.main([str(gcs), RUN_NAME, PHASE, "/launcher"]) == TakenOver.exit_code
    assert "it begins nothing" in capsys.readouterr().err
    assert not (gcs / "runs" / RUN_NAME / "launches").exists()


def test_what_goes_while_a_host_brings_it_is_brought_again(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The launcher commits while hosts wait for one another, and deletes what no head names any more."""
    heads: list[str] = []

    def bring(work: Work, head: Head) -> str:
        heads.append(head.commit)
        if len(heads) == 1:
            write_json(launch.run.events, {})
            launch.publisher.publish()
        if len(heads) == 1 or damaged:
            raise StorageError("is not there")
        return "the run"

    monkeypatch.setattr(Work, "bring", bring)
    place = program.Place("launch-1", 0, 1, ["a"])
    with Launch(tmp_path, gcs, hosts=1) as launch:
        for damaged in (False, True):
            heads.clear()
            with pytest.raises(StorageError) if damaged else nullcontext():
                found: Any = program._brought(launch.work(0), place)  # pyright: ignore[reportPrivateUsage]
                assert found == "the run"
            write_json(launch.run.events, {"again": 1})
        launch.publisher.launch("")
        heads.clear()
        with pytest.raises(TakenOver, match="it begins nothing"):
            program._brought(launch.work(0), place)  # pyright: ignore[reportPrivateUsage]


def test_the_first_process_of_a_container_says_by_its_code_which_signal_ended_its_trainer(monkeypatch: pytest.MonkeyPatch):
    """The system does not let it end by a signal of its own."""
    monkeypatch.setattr(program.os, "kill", lambda *_: None)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    for code, shown in ((-9, 137), (-6, 134), (75, 75), (0, 0)):
        with pytest.raises(SystemExit) as ended:
            program.end_as(code)
        assert ended.value.code == shown
        assert exit_code({"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": shown}}}]}}) == code


def test_of_two_programs_that_are_one_host_the_second_is_refused(gcs: Path):
    posts = Posts.of(gcs, RUN_NAME, "launch-1")
    posts.put(Post(launch="launch-1", host=1))
    with pytest.raises(TakenOver, match="another program is this host"):
        posts.put(Post(launch="launch-1", host=1))


def test_a_host_that_does_not_come_is_named(gcs: Path):
    posts = Posts.of(gcs, RUN_NAME, "launch-1")
    posts.put(Post(launch="launch-1", host=0))
    place = program.Place("launch-1", 0, 2, ["a", "b"])
    with pytest.raises(program.HostMissing, match=r"found 1 after \d+ s: host 1 \(b\) did not come to gs://"):
        program._wait_for(posts, place, "here", None, limit_seconds=0.1)  # pyright: ignore[reportPrivateUsage]


def test_a_phase_that_rolls_back_is_refused_before_anything_is_committed(gcs: Path, tmp_path: Path):
    launch = Launch(tmp_path, gcs)
    rolls_back: Any = SimpleNamespace(phase=PHASE, recovery="roll back")
    with Publisher(launch.kept, every_seconds=HOUR) as publisher:
        before = launch.kept.head.read()
        with pytest.raises(ConfigError, match="rolls back where its loss jumps"):
            Gathering(publisher, launch.name, launch.run.path, 2).begin(rolls_back)
        assert launch.kept.head.read() == before
