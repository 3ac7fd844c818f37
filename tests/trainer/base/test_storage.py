import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from huggingface_hub.hf_api import RepoFile
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from experiments.survival.runs import tiny_recipe
from phasewise.flows.recipes import load_written
from phasewise.tasks.data.source import Pin, Source
from phasewise.trainer.base.errors import DataError, RecipeError
from phasewise.trainer.base.identity import NotAsWritten, content_digest, digest_of_bytes, digest_of_file, digest_of_json, read_sealed
from phasewise.trainer.base.storage import PUT_CHUNK_BYTES as CHUNK
from phasewise.trainer.base.storage import as_path, remove, remove_strays, without_secrets, write_atomically, write_json, writing
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore

SECRET = "hunter2"
CARRYING = [
    f"https://user:{SECRET}@host.org/data", f"https://{SECRET}@host.org/data", f"simplecache::https://user:{SECRET}@host.org/data",
    f"s3://key:{SECRET}@bucket/data", f"https://host.org/data?token={SECRET}", f"https://host.org/data?X-Amz-Signature={SECRET}&x=1",
    f"https://host.org/data?x=1&sig={SECRET}",
]  # fmt: skip

PLAIN = [
    "hf://datasets/owner/name@main/x", "gs://bucket/folder", "abfs://container@account/x", "sftp://user@host/x", "/data/a:b@c/d",
    "https://a.org/x?page=2", "https://host.org/data",
]  # fmt: skip


def test_a_secret_in_an_address_is_found_hidden_and_taken_into_no_recipe(tmp_path: Path):
    assert [without_secrets(url) for url in PLAIN] == PLAIN
    for url in CARRYING:
        assert SECRET not in without_secrets(f"read {url} twice")
        for refused in (
            lambda url=url: Source(url=url, include=("*",), format="jsonl"),
            lambda url=url: Source(url="gs://a", listing=url, include=("*",), format="jsonl"),
            lambda url=url: Pin(component="x", split="train", url=url, digest="0" * 64),
        ):
            with pytest.raises(ValidationError, match="must not carry a password or a token"):
                refused()
    sources = {"flan": {"url": CARRYING[0], "include": ["*"], "format": "jsonl"}}
    write_json(tmp_path / "r.json", tiny_recipe().model_dump(mode="json") | {"sources": sources})
    with pytest.raises(RecipeError, match="must not carry a password or a token") as refused_recipe:
        load_written(str(tmp_path / "r.json"))
    assert SECRET not in str(refused_recipe.value)


THREE: dict[str, Any] = {"where": "/upload/", "times": 3}
FAULTS = [(fault, THREE, size) for fault in ("refuse", "tear", "drop_reply") for size in (100, 300_000, CHUNK + 10)]
PART_LOST = ("drop_reply", {"where": "upload_id", "method": "POST"}, 2 * CHUNK)


@pytest.mark.parametrize(("fault", "how", "size"), [*FAULTS, PART_LOST])
def test_an_upload_that_fails_on_the_way_is_made_again(faulty_store: FaultyStore, fault: str, how: dict[str, Any], size: int):
    content = random.Random(size).randbytes(size)
    write_atomically(faulty_store.root / "file", b"old")
    getattr(faulty_store.faults, fault)(**how)
    write_atomically(faulty_store.root / "file", content)
    assert len(faulty_store.faults.happened) == how.get("times", 1)
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


def test_an_object_that_is_not_what_was_sent_is_removed_and_a_missing_bucket_is_reported_at_once(faulty_store: FaultyStore):
    the_emulator().storage.damage = lambda content: content[:-1]
    with pytest.raises(OSError, match="MD5 checksum failed"):
        write_atomically(faulty_store.root / "file", b"content")
    the_emulator().storage.damage = None
    assert not (faulty_store.root / "file").exists()
    with pytest.raises(FileNotFoundError):
        write_atomically("gs://no-such-bucket/file", b"content")
    assert len([request for request in faulty_store.faults.requests if "no-such-bucket" in request]) == 1


@pytest.mark.parametrize("fault", ["refuse", "drop_reply"])
def test_reading_goes_on_after_a_fault_and_silence_is_not_absence(faulty_store: FaultyStore, fault: str):
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
    if fault == "drop_reply":
        return
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


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_path_is_made_of_any_url_and_of_its_own_text():
    for url, text in {
        "a/b": "a/b", "/a/b": "/a/b", "file:///a%20b/c": "/a b/c", "gs://bucket/folder/": "gs://bucket/folder",
        "gcs://bucket/folder": "gs://bucket/folder", "memory://folder/x": "memory://folder/x",
        "hf://datasets/owner/name@main/x": "hf://datasets/owner/name@main/x",
    }.items():  # fmt: skip
        path = as_path(url)
        assert str(path) == text
        assert as_path(str(path)) == as_path(path) == path
        assert isinstance(path, Path) == ("://" not in text)
        assert pickle.loads(pickle.dumps(path)) == path
        assert (path / "deep" / "a b.bin").name == "a b.bin"
        assert str((path / "deep" / "a b.bin").parent) == f"{text}/deep"


def test_what_another_writes_is_seen_although_the_folder_was_listed_before(gcs: Path):
    write_atomically(gcs / "first", b"1")
    assert names_in(gcs) == {"first"}
    program = "import sys; from phasewise.trainer.base.storage import write_atomically; write_atomically(sys.argv[1], b'22')"
    subprocess.run([sys.executable, "-c", program, f"{gcs}/second"], check=True, timeout=60)
    assert names_in(gcs) == {"first", "second"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, synced = tmp_path / "file.bin", []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: synced.append((os.fstat(number).st_size, path.exists())))
        write_atomically(path, b"old")
    assert synced == [(3, False)], "the content is on disk before it takes the name"

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, fail)
            with pytest.raises(OSError, match="no space left"):
                write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert names_in(tmp_path) == {"file.bin"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), children, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_the_digest_of_json_survives_writing_reading_and_another_order(value: object):
    def turned(value: object) -> object:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    digest = digest_of_json(value)
    assert digest_of_json(json.loads(json.dumps(value, indent=3))) == digest
    assert digest_of_json(turned(value)) == digest
    assert digest_of_json({"b": [1, 2.5], "a": "é"}) == hashlib.sha256('{"a":"é","b":[1,2.5]}'.encode()).hexdigest()


@pytest.mark.parametrize(
    "content",
    [b"", b"line\r", b"a\n--==0==--\nb", b"a\r\nb\rc\x0b\x0c\x1c\x85d\n\n", random.Random(1).randbytes(CHUNK + 300_001) + b"\r"],
    ids=["empty", "ends in a carriage return", "holds gcsfs's separator", "all line ends", "large"],
)
def test_bytes_come_back_as_they_were(store: Path, content: bytes):
    path = store / "deep" / "a file.bin"
    write_atomically(path, content)
    assert path.read_bytes() == content
    assert digest_of_file(path) == digest_of_file(str(path)) == digest_of_bytes(content)
    assert content_digest(path)[0] == path.stat().st_size == len(content)
    assert names_in(path.parent) == {"a file.bin"}


def test_a_file_written_piece_by_piece_appears_whole_at_the_end_or_not_at_all(store: Path):
    path = store / "file.bin"
    write_atomically(path, b"old")
    with writing(path) as file:
        for number in range(5):
            file.write(bytes([number]) * 1000)
            file.flush()
            assert path.read_bytes() == b"old"
    content = b"".join(bytes([number]) * 1000 for number in range(5))
    assert path.read_bytes() == content

    def write_half(path: Path, error: type[BaseException]) -> None:
        with writing(path) as file:
            file.write(b"half")
            raise error

    for name in ("file.bin", "new"):
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error):
                write_half(store / name, error)
    assert names_in(store) == {"file.bin"}
    assert path.read_bytes() == content


def test_a_killed_writer_leaves_no_file_under_the_name_and_none_on_the_way_to_a_store(store: Path, tmp_path: Path):
    program = """if True:
        import sys, time
        from phasewise.trainer.base.storage import writing
        with writing(sys.argv[1]) as file:
            file.write(b"half" * 10_000)
            file.flush()
            print("written", flush=True)
            sys.stdin.read()
    """
    staging = tmp_path / "staging"
    staging.mkdir()
    command = [sys.executable, "-c", program, str(store / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(staging)}) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
    assert not (store / "file").exists()
    assert names_in(staging) == set()
    remove_strays(store, keep=())
    assert not store.exists() or names_in(store) == set()


def test_what_the_store_vouches_for_is_not_read(faulty_store: FaultyStore):
    path = faulty_store.root / "file"
    write_atomically(path, b"123456789")
    faulty_store.faults.requests.clear()
    assert content_digest(path) == (9, f"md5:{hashlib.md5(b'123456789').hexdigest()}")
    the_emulator().describe(path)["md5Hash"] = None  # as of a composed object
    assert content_digest(path) == (9, "crc32c:e3069283")  # the check value of this CRC
    assert not [request for request in faulty_store.faults.requests if "alt=media" in request]


def test_hugging_face_vouches_for_its_files(monkeypatch: pytest.MonkeyPatch):
    large = {"oid": "ab12", "lfs": {"oid": "cd34", "size": 9, "pointerSize": 1}}
    for described, digest in (({"oid": "ab12"}, "git:ab12"), (large, "sha256:cd34")):
        file = RepoFile(path="x.json", size=9, **described)
        info = {"name": "x.json", "size": file.size, "type": "file", "blob_id": file.blob_id, "lfs": file.lfs}
        monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, info=info: info)
        assert content_digest("memory://x.json") == (9, digest)


def test_a_file_that_nobody_vouches_for_is_read(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    times, first = (path.stat().st_atime_ns, path.stat().st_mtime_ns), content_digest(path)
    path.write_bytes(b"two")
    os.utime(path, ns=times)
    assert first == (3, f"sha256:{digest_of_bytes(b'one')}")
    assert content_digest(path) == content_digest(path.as_uri()) == (3, f"sha256:{digest_of_bytes(b'two')}")


def test_strays_are_removed_and_nothing_else(store: Path):
    for name in ("keep.bin", "stray.bin", ".keep.bin.0123", "folder/other.bin"):
        write_atomically(store / name, b"x")
    remove_strays(store, keep={"keep.bin", "gone.bin"})
    assert names_in(store) == {"keep.bin", "folder"}
    assert names_in(store / "folder") == {"other.bin"}
    remove_strays(store / "missing", keep=())
    remove(store / "keep.bin")
    remove(store / "keep.bin")
    assert names_in(store) == {"folder"}


def test_a_pipe_or_a_device_in_place_of_a_file_is_refused_and_not_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "device"):
        with pytest.raises(NotAsWritten, match="expected a file, found a pipe, a socket or a device"):
            read_sealed(path)
        with pytest.raises(DataError, match="expected a file, found a pipe, a socket or a device"):
            digest_of_file(path)
