"""What goes wrong between us and a store ends in another try or in an error, never in half an object or without a word."""

import random
from pathlib import Path

import pytest

from phasewise.trainer.base.identity import content_digest, digest_of_bytes, digest_of_file
from phasewise.trainer.base.storage import PUT_CHUNK_BYTES, remove, remove_strays, write_atomically
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("size", [100, 300_000, PUT_CHUNK_BYTES + 10])
@pytest.mark.parametrize("fault", ["refuse", "tear", "drop_reply"])
def test_an_upload_that_fails_on_the_way_is_made_again(faulty_store: FaultyStore, fault: str, size: int):
    content = random.Random(size).randbytes(size)
    write_atomically(faulty_store.root / "file", b"old")
    getattr(faulty_store.faults, fault)(where="/upload/", times=3)
    write_atomically(faulty_store.root / "file", content)
    assert len(faulty_store.faults.happened) == 3
    assert (faulty_store.root / "file").read_bytes() == content


def test_an_upload_of_which_a_part_s_answer_is_lost_is_made_again_from_the_start(faulty_store: FaultyStore):
    """The part comes twice, and the upload cannot go on."""
    content = random.Random(1).randbytes(2 * PUT_CHUNK_BYTES)
    faulty_store.faults.drop_reply(where="upload_id", method="POST")
    write_atomically(faulty_store.root / "file", content)
    assert faulty_store.faults.happened
    assert (faulty_store.root / "file").read_bytes() == content


@pytest.mark.parametrize("fault", ["refuse", "tear"])
def test_an_upload_that_never_comes_through_is_an_error_and_the_old_object_stays(faulty_store: FaultyStore, fault: str):
    write_atomically(faulty_store.root / "file", b"old")
    getattr(faulty_store.faults, fault)(where="/upload/", times=100)
    for name in ("file", "new"):
        with pytest.raises(OSError, match=f"{name}: the store did not take the file, also when asked again"):
            write_atomically(faulty_store.root / name, b"new")
    faulty_store.faults.clear()
    assert (faulty_store.root / "file").read_bytes() == b"old"
    assert names_in(faulty_store.root) == {"file"}


def test_an_object_that_is_not_what_was_sent_is_removed(faulty_store: FaultyStore):
    the_emulator().storage.damage = lambda content: content[:-1]
    with pytest.raises(OSError, match="MD5 checksum failed"):
        write_atomically(faulty_store.root / "file", b"content")
    the_emulator().storage.damage = None
    assert not (faulty_store.root / "file").exists()


def test_a_missing_bucket_is_reported_at_once(faulty_store: FaultyStore):
    with pytest.raises(FileNotFoundError):
        write_atomically("gs://no-such-bucket/file", b"content")
    assert len([request for request in faulty_store.faults.requests if "no-such-bucket" in request]) == 1


@pytest.mark.parametrize("fault", ["refuse", "drop_reply"])
def test_reading_goes_on_after_a_fault(faulty_store: FaultyStore, fault: str):
    path = faulty_store.root / "file"
    write_atomically(path, b"content")
    for read, found in (
        (path.read_bytes, b"content"),
        (lambda: content_digest(path)[0], 7),
        (lambda: digest_of_file(path), digest_of_bytes(b"content")),
        (path.exists, True),
        ((faulty_store.root / "missing").exists, False),
    ):
        getattr(faulty_store.faults, fault)(times=2, method="GET")
        assert read() == found
        assert not faulty_store.faults.waiting


def test_a_store_that_does_not_answer_is_not_one_without_the_file(faulty_store: FaultyStore):
    write_atomically(faulty_store.root / "file", b"content")
    faulty_store.faults.refuse(times=100)
    with pytest.raises(Exception, match="503"):
        (faulty_store.root / "file").exists()


def test_a_listing_that_lags_does_no_harm(faulty_store: FaultyStore):
    for name in ("old", "gone"):
        write_atomically(faulty_store.root / name, b"x")
    remove(faulty_store.root / "gone")
    write_atomically(faulty_store.root / "new", b"new")
    faulty_store.faults.lag = 2
    assert names_in(faulty_store.root) == {"old", "gone"}
    assert (faulty_store.root / "new").exists()
    assert (faulty_store.root / "new").read_bytes() == b"new"
    remove_strays(faulty_store.root, keep={"new"})
    faulty_store.faults.lag = 0
    assert names_in(faulty_store.root) == {"new"}
