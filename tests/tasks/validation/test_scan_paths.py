import gzip
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from phasewise.tasks.validation import scan_pieces
from phasewise.tasks.validation.scan_files import FilePiece, Unread
from phasewise.tasks.validation.scan_pieces import CachePiece, select
from phasewise.trainer.base.errors import ConfigError, DataError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("data/train.jsonl", "data/sub/test.json", "data/.git/config", "data/sub/.hidden", "data/read me.md", "other.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*paths: str, **options: Any) -> list[str]:
    return [piece.name for piece in select(paths, **options).pieces if isinstance(piece, FilePiece)]


@pytest.mark.usefixtures("files")
def test_files_folders_and_globs():
    assert names("data/train.jsonl") == ["data/train.jsonl"]
    assert names("data") == ["data/read me.md", "data/train.jsonl", "data/sub/test.json"]
    assert names("data/*.jsonl", "**/*.txt") == ["data/train.jsonl", "other.txt"]
    assert names("data", "data/train.jsonl", "other.txt", "other.txt") == [*names("data"), "other.txt"]
    assert select([str(Path("data").resolve())]).names == ("read me.md", "train.jsonl", "sub/test.json")


@pytest.mark.parametrize("path", ["nowhere", "data/*.csv", "empty"])
def test_a_path_that_names_nothing_is_wrong_usage(files: Path, path: str):
    (files / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no files and no token cache"):
        select(["other.txt", path])


def test_links_are_followed_once(files: Path):
    (files / "linked").mkdir()
    (files / "linked" / "here.txt").write_text("x")
    (files / "data" / "to").symlink_to(files / "linked")
    (files / "linked" / "round").symlink_to(files / "data")
    assert "data/to/here.txt" in names("data")
    assert len(names("data")) == len(set(names("data"))) == 4


def test_large_files_of_lines_are_cut_into_ranges_by_their_first_bytes(files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scan_pieces, "PIECE_BYTES", 4)
    pieces = select(["data/train.jsonl", "data/sub/test.json"]).pieces
    assert [(piece.start, piece.stop) for piece in pieces if isinstance(piece, FilePiece)] == [(0, 4), (4, 8), (8, 12), (12, 16), (0, None)]
    (files / "data" / "train.jsonl").write_text("")
    assert len(select(["data/train.jsonl"]).pieces) == 1
    monkeypatch.setattr(scan_pieces, "PIECE_BYTES", 10)
    lines = b'{"text": "a"}\n' * 3
    image = b"\x89PNG\r\n" + bytes(50)
    contents = {"b10b": lines, "a.jsonl": gzip.compress(lines), "b.jsonl": image, "c.md": b"- a\n" * 9, "d.json": lines}
    (files / "large").mkdir()
    for name, content in contents.items():
        (files / "large" / name).write_bytes(content)
    counts = {name: sum(one == f"large/{name}" for one in names("large")) for name in contents}
    assert counts == {"b10b": 5, "a.jsonl": 1, "b.jsonl": 1, "c.md": 1, "d.json": 5}


def test_what_is_no_file_is_reported_and_never_opened(files: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(files / "data" / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("data/socket")
    (files / "data" / "nowhere.jsonl").symlink_to(files / "gone")
    (files / "data" / "folder.jsonl").mkdir()
    (files / "data" / "folder.jsonl" / "a").write_text("x")
    selection = select(["data"])
    assert "data/folder.jsonl/a" in [piece.name for piece in selection.pieces if isinstance(piece, FilePiece)]
    faults = {unread.file: unread.reason for unread in selection.unread if unread.is_fault}
    special = "a pipe, a socket or a device, and no file"
    assert faults == {"data/pipe.jsonl": special, "data/socket": special, "data/nowhere.jsonl": "a link that leads nowhere"}
    assert [unread.file for unread in select(["data/pipe.jsonl"]).unread] == ["data/pipe.jsonl"]


def test_hidden_files_are_reported(files: Path):
    hidden = [unread for unread in select(["data"]).unread if not unread.is_fault]
    reason = "hidden: name it to have it scanned"
    assert hidden == [Unread("data/.git", reason, is_fault=False), Unread("data/sub/.hidden", reason, is_fault=False)]
    assert names("data/sub/.hidden") == ["data/sub/.hidden"]


def test_a_folder_that_may_not_be_listed_fails_by_name(files: Path, monkeypatch: pytest.MonkeyPatch):
    whole = os.scandir

    def listed(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return whole(path)

    monkeypatch.setattr("os.scandir", listed)
    (unread,) = [unread for unread in select(["data"]).unread if unread.is_fault]
    assert unread == Unread("data/sub", "this folder cannot be listed: Permission denied", is_fault=True)


@pytest.mark.usefixtures("files")
def test_excluded_files_are_reported_with_their_glob():
    selection = select(["data", "other.txt"], exclude=("*.jsonl", "sub/*"))
    assert [piece.name for piece in selection.pieces if isinstance(piece, FilePiece)] == ["data/read me.md", "other.txt"]
    excluded = {unread.file: unread.excluded_by for unread in selection.unread if unread.excluded_by}
    assert excluded == {"data/train.jsonl": "*.jsonl", "data/sub/test.json": "sub/*"}
    assert selection.names == ("read me.md", "other.txt")


def test_urls_are_listed_by_their_store():
    store: Any = fsspec.filesystem("memory")
    for name in ("a.jsonl", "sub/b.txt", ".hidden/c.txt"):
        store.pipe_file(f"/listed-urls/{name}", b"x")
    try:
        assert names("memory://listed-urls") == ["memory:///listed-urls/a.jsonl", "memory:///listed-urls/sub/b.txt"]
        assert names("memory://listed-urls/*.jsonl") == ["memory:///listed-urls/a.jsonl"]
        assert names("memory://listed-urls/sub/b.txt") == ["memory:///listed-urls/sub/b.txt"]
        with pytest.raises(ConfigError, match="has no files"):
            select(["memory://listed-urls/c.txt"])
    finally:
        store.rm("/listed-urls", recursive=True)


def test_a_home_has_caches_and_their_tokenizer(prepared: Any, tmp_path: Path):
    plan = prepared.plan()
    folder = plan.components["web"].train.folder
    selection = select([str(folder)])
    assert {(piece.folder, piece.tokenizer) for piece in selection.pieces if isinstance(piece, CachePiece)} == {(folder, plan.tokenizer)}
    assert selection.names == ("part-0.jsonl", "part-1.jsonl")
    tokens = select([str(prepared.home.root / "tokens")]).pieces
    caches = {piece.folder for piece in tokens if isinstance(piece, CachePiece)}
    assert caches == {*plan.folders("train").values(), *plan.folders("held_out").values()}
    assert len([piece for piece in tokens if isinstance(piece, CachePiece)]) == len(tokens)

    shutil.copytree(folder, tmp_path / "a" / "b" / "alone")
    with pytest.raises(DataError, match=r"made with the tokenizer .*--tokenizer"):
        select([str(tmp_path / "a" / "b" / "alone")])
    both_ways: tuple[dict[str, Any], ...] = ({"tokenizer": plan.tokenizer}, {"homes": (prepared.home.root,)})
    for options in both_ways:
        (piece, *_) = select([str(tmp_path / "a" / "b" / "alone")], **options).pieces
        assert isinstance(piece, CachePiece)
        assert piece.tokenizer == plan.tokenizer
