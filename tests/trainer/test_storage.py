"""Whole files or nothing, and digests that depend on values alone."""

import hashlib
import json
import os
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.storage import digest_of_bytes, digest_of_file, digest_of_json, read_json, write_atomically, write_json


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("as_url", [False, True], ids=["path", "url"])
def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path: Path, as_url: bool):
    path = tmp_path / "deep" / "file.bin"
    write_atomically(path.as_uri() if as_url else path, b"new")
    assert path.read_bytes() == b"new"
    assert names_in(path.parent) == {"file.bin"}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    path = tmp_path / "file.bin"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == {"file.bin"}


def test_the_content_is_on_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, synced = tmp_path / "file.bin", []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((os.fstat(number).st_size, path.exists())))
    write_atomically(path, b"12345")
    assert synced == [(5, False)]


def test_an_object_store_gets_one_whole_object():
    write_atomically("memory://folder/file.json", b'{"a": 1}')
    assert read_json("memory://folder/file.json") == {"a": 1}
    assert [path.rsplit("/", 1)[1] for path in fsspec.filesystem("memory").ls("/folder", detail=False)] == ["file.json"]


def test_json_comes_back_as_it_was_and_reads_well(tmp_path: Path):
    value = {"text": "größer ≥", "numbers": [1, 2.5, None, True]}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    assert "größer ≥" in (tmp_path / "value.json").read_text("utf-8")


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


def test_the_digest_of_json_is_that_of_its_canonical_form():
    assert digest_of_json({"b": [1, 2.5], "a": "é"}) == hashlib.sha256('{"a":"é","b":[1,2.5]}'.encode()).hexdigest()
    assert digest_of_json([1, 2]) != digest_of_json([2, 1])


def test_a_file_s_digest_is_that_of_its_bytes(tmp_path: Path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert digest_of_file(tmp_path / "file") == digest_of_bytes(content) == hashlib.sha256(content).hexdigest()
