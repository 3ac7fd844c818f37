"""What is read again and what is not: each way in which a file can change, or can look as if it had."""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_atomically


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sources" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"before")
    return path


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def digest_and_bytes_read(home: Home | None, path: str | Path, *, reads_all: bool = False) -> tuple[str, int]:
    """As a command of its own."""
    known = KnownDigests(home, reads_all=reads_all)
    digest = known.content(path).digest
    known.keep()
    return digest, known.bytes_read


def test_a_second_command_reads_nothing(home: Home, file: Path):
    assert digest_and_bytes_read(home, file) == (sha256(b"before"), 6)
    assert digest_and_bytes_read(home, file) == (sha256(b"before"), 0)
    assert digest_and_bytes_read(home, file, reads_all=True) == (sha256(b"before"), 6)


def touch(path: Path) -> None:
    os.utime(path)


def edit(path: Path) -> None:
    path.write_bytes(b"edited")


def edit_and_set_the_time_back(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"edited")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"edited")
    shutil.copystat(path, other)
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "content"), [(touch, b"before"), (edit, b"edited"), (edit_and_set_the_time_back, b"edited"), (replace, b"edited")]
)
def test_what_changed_in_any_way_is_read_again(home: Home, file: Path, change: Callable[[Path], None], content: bytes):
    one_command = KnownDigests(home)
    one_command.content(file)
    one_command.keep()
    change(file)
    assert one_command.content(file) == (6, sha256(content))
    assert digest_and_bytes_read(home, file) == (sha256(content), 6)
    assert digest_and_bytes_read(home, file) == (sha256(content), 0)


def test_edits_within_a_tick_of_the_clock_are_seen(home: Home, file: Path):
    """Most of these edits have the time of the one before: the file is read when that time is over."""
    for number in range(20):
        content = b"%06d" % number
        file.write_bytes(content)
        assert digest_and_bytes_read(home, file) == (sha256(content), 6)
        file.write_bytes(b"%06d" % (number + 1))
        assert digest_and_bytes_read(home, file) == (sha256(b"%06d" % (number + 1)), 6)


def test_memory_that_is_wrong_is_believed_until_everything_is_read(home: Home, file: Path):
    """A disk that changed bytes without a word: the file looks as it did."""
    digest_and_bytes_read(home, file)
    files = read_json(home.digests)["files"]
    files[str(file)][2] = sha256(b"edited")
    write_sealed(home.digests, {"version": 2, "files": files})
    assert digest_and_bytes_read(home, file) == (sha256(b"edited"), 0)
    assert digest_and_bytes_read(home, file, reads_all=True) == (sha256(b"before"), 6)
    assert digest_and_bytes_read(home, file) == (sha256(b"before"), 0)


def test_threads_that_ask_for_one_file_read_it_once(file: Path):
    file.write_bytes(b"x" * 10_000_000)
    known = KnownDigests()
    together = threading.Barrier(8)

    def ask(_number: int) -> str:
        together.wait()
        return known.content(file).digest

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {sha256(b"x" * 10_000_000)}
    assert known.bytes_read == 10_000_000


def test_a_store_vouches_for_a_source_and_a_file_of_the_home_keeps_its_digest(gcs: Path, home: Home):
    """The home of a store keeps what was read of its own files there."""
    at_store = Home.open(str(gcs))
    for path in (at_store.sources / "a.jsonl", gcs.parent / f"{gcs.name}-beside.jsonl"):
        write_atomically(path, b"before")
    assert digest_and_bytes_read(home, str(at_store.sources / "a.jsonl")) == (f"md5:{hashlib.md5(b'before').hexdigest()}", 0)
    assert digest_and_bytes_read(at_store, str(gcs.parent / f"{gcs.name}-beside.jsonl"))[0].startswith("md5:")
    assert digest_and_bytes_read(at_store, str(at_store.sources / "a.jsonl")) == (sha256(b"before"), 6)
    assert digest_and_bytes_read(at_store, str(at_store.sources / "a.jsonl")) == (sha256(b"before"), 0)
    write_atomically(at_store.sources / "a.jsonl", b"edited")
    assert digest_and_bytes_read(at_store, str(at_store.sources / "a.jsonl")) == (sha256(b"edited"), 6)
    (gcs.parent / f"{gcs.name}-beside.jsonl").unlink()
