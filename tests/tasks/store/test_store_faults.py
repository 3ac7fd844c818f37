"""The store's fault table: nothing is lost, nothing is done twice, and who was shut out changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from phasewise.tasks.store.content import Objects
from phasewise.tasks.store.publisher import Publisher
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.checkpoints.files import find_damage
from tests.stores.emulator import BUCKET, the_emulator
from tests.stores.fixtures import FaultyStore
from tests.tasks.store.worlds import machine

HOUR = 3600.0
OFTEN = 1000
DIES_BEFORE_THE_HEAD = """
import os, sys
from pathlib import Path
from phasewise.tasks.store.head import HeadObject
from phasewise.tasks.store.publisher import Publisher
from tests.tasks.store.worlds import machine
from phasewise.trainer.base.storage import as_path
one = machine(Path(sys.argv[1]), as_path(sys.argv[2]))
publisher = Publisher(one.kept, every_seconds=3600.0).__enter__()
one.train_to(10)
HeadObject.replace = lambda *_: os._exit(9)
publisher.publish()
"""


@pytest.mark.parametrize("where", ["objects", "head.json"])
def test_a_store_that_is_away_for_long_keeps_what_it_had_and_gets_the_rest_later(faulty_store: FaultyStore, tmp_path: Path, where: str):
    one = machine(tmp_path / "one", faulty_store.root)
    with Publisher(one.kept, every_seconds=HOUR) as publisher:
        one.train_to(5)
        publisher.publish()
        before = one.kept.head.read()
        one.train_to(10)
        faulty_store.faults.refuse(where=where, method="POST", times=OFTEN)
        with pytest.raises(StorageError, match="is not kept on gs://"):
            publisher.publish()
        faulty_store.faults.clear()
        assert one.kept.head.read() == before
        publisher.check()  # whoever was away is not shut out
    other = machine(tmp_path / "other", faulty_store.root)
    other.kept.look(checkpoints=True)
    assert other.files() == one.files()


def test_a_listing_that_lags_decides_nothing(faulty_store: FaultyStore, tmp_path: Path):
    one, other = machine(tmp_path / "one", faulty_store.root), machine(tmp_path / "other", faulty_store.root)
    faulty_store.faults.lag_listings(OFTEN)
    with Publisher(one.kept, every_seconds=HOUR):
        faulty_store.faults.requests.clear()  # where nothing was ever committed, uploaded files are looked for
        one.train_to(5)
    with Publisher(other.kept, every_seconds=HOUR):
        assert other.files() == one.files()
    listed = [request for request in faulty_store.faults.requests if "/o?" in request and "GET" in request and "prefix" in request]
    assert not listed


def test_who_was_taken_over_writes_nothing_more(gcs: Path, tmp_path: Path):
    old, new = machine(tmp_path / "old", gcs), machine(tmp_path / "new", gcs)
    publisher = Publisher(old.kept, every_seconds=HOUR).__enter__()
    old.train_to(5)
    publisher.publish()
    with Publisher(new.kept, every_seconds=HOUR):
        new.train_to(10)
    head = new.kept.head.read()
    old.train_to(7, text=" of the old one")
    with pytest.raises(TakenOver, match="the other one goes on"):
        publisher.publish()
    with pytest.raises(TakenOver):
        publisher.check()
    objects = set(the_emulator().storage.objects[BUCKET])
    old.train_to(8)
    with pytest.raises(TakenOver):
        publisher.__exit__(None)
    assert new.kept.head.read() == head
    assert set(the_emulator().storage.objects[BUCKET]) == objects
    third = machine(tmp_path / "third", gcs)
    third.kept.look(checkpoints=True)
    assert third.files() == new.files()


def test_who_is_taken_over_between_content_and_head_commits_nothing(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old, new = machine(tmp_path / "old", gcs), machine(tmp_path / "new", gcs)
    with Publisher(old.kept, every_seconds=HOUR) as publisher:
        old.train_to(5)
        publisher.publish()
        send = Objects.send

        def send_and_be_taken_over(*arguments: object) -> None:
            monkeypatch.setattr(Objects, "send", send)
            send(*arguments)  # pyright: ignore[reportArgumentType]
            with Publisher(new.kept, every_seconds=HOUR):
                new.train_to(10)

        monkeypatch.setattr(Objects, "send", send_and_be_taken_over)
        old.train_to(7)
        with pytest.raises(TakenOver):
            publisher.publish()
        with pytest.raises(TakenOver):  # so does the end, which a test is not to see
            publisher.publish()
        monkeypatch.setattr(publisher, "publish", lambda: True)
    third = machine(tmp_path / "third", gcs)
    third.kept.look(checkpoints=True)
    assert third.files() == new.files()


def test_a_delete_that_comes_late_spares_what_was_sent_again(gcs: Path, tmp_path: Path):
    one = machine(tmp_path / "one", gcs)
    with Publisher(one.kept, every_seconds=HOUR):
        one.train_to(5)
    objects = one.kept.objects
    digests = {piece.sha256 for pieces in one.kept.head.read()[0].files.values() for piece in pieces}
    versions = objects.versions(digests)
    kept = objects.content(next(iter(digests)))
    (objects.folder / next(iter(digests))).write_bytes(kept)
    objects.delete(versions)
    assert objects.versions(digests).keys() == {next(iter(digests))}


def test_killed_between_the_files_of_a_checkpoint_and_the_commit(gcs: Path, tmp_path: Path):
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)
    with Publisher(one.kept, every_seconds=HOUR):
        one.train_to(5)
    before = one.files()
    killed = subprocess.run([sys.executable, "-c", DIES_BEFORE_THE_HEAD, str(one.kept.work), str(gcs)], timeout=60)
    assert killed.returncode == 9
    with Publisher(other.kept, every_seconds=HOUR):
        assert other.files() == before
        assert find_damage(other.run.checkpoint(5)) is None
        other.train_to(10)
    with Publisher(machine(tmp_path / "third", gcs).kept, every_seconds=HOUR):
        pass
