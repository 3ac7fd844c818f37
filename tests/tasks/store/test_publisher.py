import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.locks import held
from phasewise.tasks.store.content import ABSENT, Head, HeadObject, Objects, Piece, take_snapshot
from phasewise.tasks.store.publisher import Publisher, check_not_taken_over, keeper_of, keeping
from phasewise.tasks.training.hosts import take_back
from phasewise.trainer.base import storage
from phasewise.trainer.base.errors import ConfigError, StorageError, TakenOver
from phasewise.trainer.base.storage import as_path, file_system_of, remove_strays, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, find_damage, remove_checkpoint
from tests.stores.emulator import BUCKET, the_emulator
from tests.stores.fixtures import FaultyStore
from tests.tasks.store.machine import RUN_NAME, Machine

OFTEN = 1000
DIES_BEFORE_THE_HEAD = """
import os, sys
from pathlib import Path
from phasewise.tasks.store.content import HeadObject
from phasewise.tasks.store.publisher import Publisher
from tests.tasks.store.machine import Machine
from phasewise.trainer.base.storage import as_path
one = Machine(Path(sys.argv[1]), as_path(sys.argv[2]))
publisher = Publisher(one.kept, every_seconds=3600.0).__enter__()
one.train_to(10)
HeadObject.replace = lambda *_: os._exit(9)
publisher.publish()
"""
Build = Callable[[str], Machine]
ROOT = Path(__file__).parents[3]
DELETES = re.compile(r'\.rm_file\(|\.rm\(|"DELETE"|\.mv\(|\.delete_file\(')
PLACES = {"tasks/home.py": 1, "tasks/locks.py": 2, "tasks/store/content.py": 1, "tasks/training/hosts.py": 1, "trainer/base/storage.py": 2}
"""Where something on a store is deleted, and how often: probe, leases, content that no head names, heartbeats and meetings of hosts, strays
and an object that the store says is damaged. The tests below go through each but the last."""


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    faulty = request.getfixturevalue("faulty_store") if "faulty_store" in request.fixturenames else None
    store = faulty.root if faulty else request.getfixturevalue("gcs")
    return lambda name: Machine(tmp_path / name, store)


def test_another_machine_goes_on_with_what_was_committed(machine: Build):
    one, other = machine("one"), machine("other")
    one.commit(5)
    with other.publisher():
        assert other.files() == one.files()
        assert find_damage(other.run.checkpoint(5)) is None
        assert not other.run.heartbeat.exists()
        other.train_to(10)
    with one.publisher():
        assert one.files() == other.files()


def test_what_is_newer_here_is_kept_as_long_as_nobody_else_went_on(machine: Build):
    one = machine("one")
    one.commit(5)
    one.train_to(10)
    with one.publisher():
        assert one.run.checkpoint(10).exists()
    with machine("other").publisher():
        pass
    one.train_to(15, text=" of another line")
    with one.publisher():
        assert not one.run.checkpoint(15).exists()
        assert one.run.checkpoint(10).exists()


def test_what_no_head_names_is_deleted_and_what_one_names_stays(machine: Build):
    one, other = machine("one"), machine("other")
    with one.publisher() as publisher:
        one.train_to(5)
        publisher.publish()
        other.kept.look()  # who only looks gets no weights and takes nothing over
        before = one.objects()
        remove_checkpoint(one.run.checkpoint(5))
        one.train_to(10)
    assert other.run.metrics.exists()
    assert not other.run.checkpoints.exists()
    now = one.objects()
    assert before - now, "the weights of step 5"
    assert now == set(take_snapshot(one.kept.work, one.kept.folders)[1])


def test_a_result_is_never_there_without_its_checkpoint(tmp_path: Path):
    one = Machine(tmp_path, tmp_path)
    one.train_to(5)
    (one.run.checkpoint(5) / DIGESTS_NAME).unlink()
    write_atomically(one.run.checkpoints / "7.orbax-checkpoint-tmp-1" / "x", b"")
    assert [name.rpartition("/")[2] for name in take_snapshot(tmp_path, one.kept.folders)[0]] == ["metrics.jsonl"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_damage_on_the_store_is_named_and_nothing_of_it_is_used(machine: Build, is_gone: bool):
    one, other = machine("one"), machine("other")

    def spoil(digest: str) -> None:
        place = one.kept.objects.folder / digest
        place.unlink() if is_gone else write_atomically(place, b"other bytes")

    with one.publisher() as publisher:
        one.train_to(5)
        publisher.publish()
        one.train_to(10)
    sources = take_snapshot(one.kept.work, one.kept.folders)[1]
    (weights,) = (digest for digest, source in sources.items() if str(source).endswith("10/state/weights"))
    spoil(weights)
    with other.publisher():  # its checkpoint is left out, and the one before is there
        assert find_damage(other.run.checkpoint(5)) is None
        assert not other.run.checkpoint(10).exists()
    (piece,) = one.kept.head.read()[0].files["runs/tiny-proxy/kestrel/metrics.jsonl"]
    spoil(piece.sha256)
    with pytest.raises(StorageError, match=f"{piece.sha256} .*(has other bytes|is not there)"), machine("third").publisher():
        pass


def test_a_checkpoint_that_is_deleted_while_it_is_sent_is_left_out(machine: Build, monkeypatch: pytest.MonkeyPatch):
    one, other, send = machine("one"), machine("other"), Objects.send

    def delete_and_send(objects: Objects, sources: Any) -> None:
        monkeypatch.setattr(Objects, "send", send)
        remove_checkpoint(one.run.checkpoint(5))
        send(objects, sources)

    with one.publisher() as publisher:
        one.train_to(5)
        one.train_to(10)
        monkeypatch.setattr(Objects, "send", delete_and_send)
        assert publisher.publish()
    other.kept.look(weights_below="")
    assert other.files() == one.files()


def test_a_home_that_was_uploaded_as_it_lay_is_gone_on_with_until_something_is_committed(gcs: Path, machine: Build):
    local, one, other = machine("local"), machine("one"), machine("other")
    local.train_to(5)
    for path in [path for path in local.kept.work.rglob("*") if path.is_file()]:
        write_atomically(gcs.joinpath(*path.relative_to(local.kept.work).parts), path.read_bytes())
    assert (other.kept.look(), other.run.metrics.read_bytes()) == (1, local.run.metrics.read_bytes())
    with one.publisher():
        assert one.files() == local.files()
        assert find_damage(one.run.checkpoint(5)) is None
        assert not one.run.heartbeat.exists()
        one.train_to(10)
    write_atomically(gcs.joinpath(*local.run.metrics.relative_to(local.kept.work).parts), b"")
    with other.publisher():
        assert other.files() == one.files()


@pytest.mark.parametrize("name", ["one", "other"])
def test_a_head_that_somebody_deleted_is_no_new_home(machine: Build, name: str):
    one = machine("one")
    one.commit(5)
    before, objects = one.files(), the_emulator().storage.objects[BUCKET]
    del objects[next(found for found in objects if "head.json" in found)]
    who = machine(name)
    with pytest.raises(StorageError, match=r"head\.json is missing, and its content exists: restore the deleted version"):
        who.kept.look()
    with pytest.raises(StorageError, match="is missing"), who.publisher():
        pass
    assert one.files() == before


@pytest.mark.parametrize("where", ["objects", "head.json"])
def test_a_store_that_is_away_for_long_keeps_what_it_had_and_gets_the_rest_later(faulty_store: FaultyStore, machine: Build, where: str):
    one, other = machine("one"), machine("other")
    with one.publisher() as publisher:
        one.train_to(5)
        publisher.publish()
        before = one.kept.head.read()
        one.train_to(10)
        faulty_store.faults.refuse(where=where, method="POST", times=OFTEN)
        with pytest.raises(StorageError, match="is not yet committed to gs://"):
            publisher.publish()
        faulty_store.faults.clear()
        assert one.kept.head.read() == before
        publisher.check()  # whoever was away is not shut out
    faulty_store.faults.lag = OFTEN  # a listing that lags decides nothing
    faulty_store.faults.requests.clear()
    other.kept.look(weights_below="")
    assert other.files() == one.files()
    assert not [one for one in faulty_store.faults.requests if one.startswith("GET") and "/o?" in one and "prefix" in one]


def test_who_was_taken_over_writes_nothing_more(machine: Build):
    old, new, third = machine("old"), machine("new"), machine("third")
    publisher = old.publisher().__enter__()
    old.train_to(5)
    publisher.publish()
    new.commit(10)
    head = new.kept.head.read()
    old.train_to(7, text=" of the old one")
    with pytest.raises(TakenOver, match="is not committed"):
        publisher.publish()
    with pytest.raises(TakenOver):
        publisher.check()
    objects = set(the_emulator().storage.objects[BUCKET])
    old.train_to(8)
    with pytest.raises(TakenOver):
        publisher.__exit__(None)
    assert (new.kept.head.read(), set(the_emulator().storage.objects[BUCKET])) == (head, objects)
    third.kept.look(weights_below="")
    assert third.files() == new.files()


def test_who_is_taken_over_between_content_and_head_commits_nothing(machine: Build, monkeypatch: pytest.MonkeyPatch):
    old, new, third, send = machine("old"), machine("new"), machine("third"), Objects.send
    publisher = old.publisher().__enter__()
    old.train_to(5)
    publisher.publish()

    def send_and_be_taken_over(*arguments: Any) -> None:
        monkeypatch.setattr(Objects, "send", send)
        send(*arguments)
        new.commit(10)

    monkeypatch.setattr(Objects, "send", send_and_be_taken_over)
    old.train_to(7)
    for _ in range(2):
        with pytest.raises(TakenOver):
            publisher.publish()
    third.kept.look(weights_below="")
    assert third.files() == new.files()


def test_a_delete_that_comes_late_spares_what_was_sent_again(machine: Build):
    one = machine("one")
    one.commit(5)
    objects = one.kept.objects
    digests = {piece.sha256 for pieces in one.kept.head.read()[0].files.values() for piece in pieces}
    again = next(iter(digests))
    versions = objects.versions(digests)
    (objects.folder / again).write_bytes(objects.content([Piece(sha256=again, size_bytes=0)]))
    objects.delete(versions)
    assert objects.versions(digests).keys() == {again}


def test_killed_between_the_files_of_a_checkpoint_and_the_commit(gcs: Path, machine: Build):
    one, other = machine("one"), machine("other")
    one.commit(5)
    before = one.files()
    killed = subprocess.run([sys.executable, "-c", DIES_BEFORE_THE_HEAD, str(one.kept.work), str(gcs)], timeout=60)
    assert killed.returncode == 9
    with other.publisher():
        assert other.files() == before
        assert find_damage(other.run.checkpoint(5)) is None


def test_within_another_it_changes_nothing_and_who_lost_the_work_is_stopped_and_hears_it(machine: Build, monkeypatch: pytest.MonkeyPatch):
    kept = machine("one").kept
    with keeping(kept):
        with keeping(kept):
            pass
        assert kept.head.read()[0].number == 1
        check_not_taken_over()
    with keeping(kept):
        assert kept.head.read()[0].number == 2
    monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.05")
    one, other = machine("one"), machine("other")

    def follow() -> None:
        with keeping(one.kept):
            other.commit(5)
            one.train_to(7)
            while True:  # as the launcher of a trainer does
                check_not_taken_over()

    with pytest.raises(TakenOver, match="another's"):
        follow()
    check_not_taken_over()  # it keeps nothing any more


def test_a_home_on_a_store_is_worked_on_here_and_a_local_one_in_its_place(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    local = Home.open(str(tmp_path / "local"))
    assert local.work == local.root
    with local.kept(RUN_NAME):
        local.look(RUN_NAME)
    assert list(local.root.iterdir()) == []
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path))
    home, looked = Home.at(str(gcs)), Home.at(str(gcs), reads_only=True)
    places = (home.run(RUN_NAME, "kestrel"), home.verdict(RUN_NAME, "kestrel", "data"), home.report(RUN_NAME))
    assert all(place.is_relative_to(tmp_path) for place in places)
    assert not looked.run(RUN_NAME, "kestrel").is_relative_to(home.work)  # who looks disturbs nobody who works
    with home.held("a flow"), home.kept(RUN_NAME), home.held("its subflow"), home.kept(RUN_NAME):
        places[1].parent.mkdir(parents=True)
        places[1].write_text("{}")
    looked.look(RUN_NAME)
    assert looked.verdict(RUN_NAME, "kestrel", "data").read_text() == "{}"


def test_of_two_who_replace_the_head_the_second_is_refused(faulty_store: FaultyStore):
    with pytest.raises(ConfigError, match=r"found memory://.*gs:// alone"):
        HeadObject(as_path("memory://bucket/head.json")).read()
    place = HeadObject(faulty_store.root / "head.json")
    assert place.read() == (Head(), ABSENT)
    first, second = Head().taken(), Head().taken()
    faulty_store.faults.drop_reply(method="POST", where="head.json")
    generation = place.replace(first, ABSENT)
    assert faulty_store.faults.happened, "a lost answer is no refusal"
    with pytest.raises(TakenOver, match="another's"):
        place.replace(second, ABSENT)
    assert place.read() == (first, generation)
    place.replace(second, generation)
    with pytest.raises(TakenOver):
        place.replace(first.followed({}), generation)
    assert place.read()[0] == second
    write_atomically(faulty_store.root / "head.json", b'{"files"')
    with pytest.raises(StorageError, match="found a damaged object"):
        place.read()


@pytest.fixture
def forbidding(faulty_store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    monkeypatch.setattr(storage, "_warned", set())
    faulty_store.faults.refuse(method="DELETE", status=403, times=10**9)
    return faulty_store


def test_every_place_that_deletes_on_a_store_is_known_here():
    found = {
        str(path.relative_to(ROOT)): len(hits)
        for package in ("trainer", "tasks", "validations", "flows", "deployments")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (hits := DELETES.findall(path.read_text()))
    }
    assert found == PLACES, "deletion is clean-up: go through it within trainer.base.storage.cleaning_up, and name it here"


def test_a_run_works_where_nothing_can_be_deleted(forbidding: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    caplog.set_level(logging.INFO, "phasewise")

    def work(step: int, scratch: str) -> Machine:
        monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path / scratch))
        home = Home.open(str(forbidding.root))
        one = Machine(home.work, forbidding.root)
        with home.held("a run"), home.kept(RUN_NAME):
            if step not in [int(path.name) for path in one.run.checkpoints.glob("*")]:
                one.train_to(step)
                assert cast(Publisher, keeper_of(one.run.path)).publish()
                remove_checkpoint(one.run.checkpoint(step - 1))
            write_atomically(forbidding.root / "documents" / "stray", b"1")
            remove_strays(forbidding.root / "documents", ())
            keeper = cast(Publisher, keeper_of(one.run.path))
            keeper.publish()
            take_back(keeper, one.run, needs_weights=False)
        return one

    write_atomically(forbidding.root / "runs" / RUN_NAME / "launches" / "gone" / "0", b"{}")
    work(4, "one")
    first, second = work(5, "one"), work(5, "another")
    assert second.files() == first.files()
    assert find_damage(second.run.checkpoint(5)) is None
    assert not second.run.checkpoint(4).exists()
    assert len(first.objects()) > len(second.files())  # the weights of step 4 are still there
    (line,) = [record.getMessage() for record in caplog.records if "warning" in record.getMessage()]
    assert re.fullmatch(r"warning: gs://phasewise-tests does not let files be deleted \(Forbidden: .*\): those that .* stay there\.", line)
    refused = " ".join(request for kind, request in forbidding.faults.happened if kind == "refuse")
    for deleted in (".probe-", "/lock", "/objects/", "/stray", "/launches/gone/0"):
        assert deleted in refused, deleted


def test_a_lease_that_cannot_be_deleted_is_given_back_and_found_dead(forbidding: FaultyStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_LEASE_SECONDS", "60")
    lock = forbidding.root / "lock"
    began = time.monotonic()
    for _ in range(3):
        with held(lock, wait=False):
            pass
    assert time.monotonic() - began < 30  # nobody waits for a lease of 60 s
    with held(lock, wait=False) as still_held:
        file_system, name = cast(tuple[Any, str], file_system_of(lock))
        before = the_emulator().describe(lock)["metageneration"]
        file_system.call("PATCH", "b/{}/o/{}", *name.split("/", 1), json={"metadata": {"beat": "1", "lease_seconds": "1", "free": "no"}})
        assert the_emulator().describe(lock)["metageneration"] != before
        assert still_held()
    monkeypatch.setenv("PHASEWISE_LEASE_SECONDS", "1")
    with held(lock, wait=False), pytest.raises(ConfigError, match="another run is at work"), held(lock, wait=False):
        pass
