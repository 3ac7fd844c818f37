"""The emulator does what Google Cloud Storage does, and the faults do what they are called."""

import random
from typing import Any, cast

import pytest

from phasewise.trainer.base.storage import file_system_of, write_atomically
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore


def store_of(path: object) -> tuple[Any, str]:
    found = file_system_of(cast(Any, path))
    assert found is not None
    return found


def test_an_upload_that_may_only_create_changes_nothing(faulty_store: FaultyStore):
    file_system, name = store_of(faulty_store.root / "file")
    for size in (1, 300_000):
        file_system.pipe_file(f"{name}-{size}", b"1" * size, mode="create", chunksize=2**18)
        with pytest.raises(FileExistsError):
            file_system.pipe_file(f"{name}-{size}", b"2" * size, mode="create", chunksize=2**18)
        assert file_system.cat_file(f"{name}-{size}") == b"1" * size


def test_a_request_about_another_version_is_refused(faulty_store: FaultyStore):
    write_atomically(faulty_store.root / "file", b"1")
    old = the_emulator().describe(faulty_store.root / "file")["generation"]
    write_atomically(faulty_store.root / "file", b"2")
    file_system, name = store_of(faulty_store.root / "file")
    bucket, key = name.split("/", 1)
    for conditions in ({"ifGenerationMatch": old}, {"ifMetagenerationMatch": "7"}):
        with pytest.raises(FileExistsError):
            file_system.call("DELETE", "b/{}/o/{}", bucket, key, **conditions)
    assert (faulty_store.root / "file").read_bytes() == b"2"


def test_a_fault_comes_before_or_after_the_deed(faulty_store: FaultyStore):
    path = faulty_store.root / "file"
    for kind, deeds in (("refuse", 1), ("tear", 1), ("drop_reply", 2)):
        generations: set[str] = set()
        storage = the_emulator().storage
        storage.damage = lambda content, seen=generations: seen.add(str(len(seen))) or content
        getattr(faulty_store.faults, kind)(where="/upload/.*file$", method="POST")
        write_atomically(path, b"content")
        storage.damage = None
        assert len(generations) == deeds, kind
        assert faulty_store.faults.happened[-1][0] == kind


def test_a_lagging_listing_is_that_of_some_changes_ago(faulty_store: FaultyStore):
    def listed() -> list[str]:
        return sorted(path.name for path in faulty_store.root.iterdir())

    for name in ("a", "b"):
        write_atomically(faulty_store.root / name, b"1")
    (faulty_store.root / "a").unlink()
    write_atomically(faulty_store.root / "folder" / "c", b"1")
    histories: list[list[str]] = []
    for changes in range(4):
        faulty_store.faults.lag_listings(changes)
        histories.append(listed())
    assert histories == [["b", "folder"], ["b"], ["a", "b"], ["a"]]


def test_hundreds_of_ranges_come_at_once(faulty_store: FaultyStore):
    """With bounds as they are: an empty range is empty, one beyond the end is cut, a missing object is an error in its place."""
    content = random.Random(1).randbytes(100_000)
    write_atomically(faulty_store.root / "file", content)
    file_system, name = store_of(faulty_store.root / "file")
    starts = [*range(0, 100_000, 250)]
    found = file_system.cat_ranges([name] * len(starts), starts, [start + 100 for start in starts])
    assert found == [content[start : start + 100] for start in starts]
    empty, cut, missing = file_system.cat_ranges([name, name, f"{name}-missing"], [5, 99_999, 0], [5, 100_009, 1])
    assert (empty, cut) == (b"", content[-1:])
    assert isinstance(missing, FileNotFoundError)
