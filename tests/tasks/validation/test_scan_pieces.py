import gzip
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from experiments.leakage_recall.views import olmes
from phasewise.tasks.validation.scan_files import FilePiece, Unread
from phasewise.tasks.validation.scan_pieces import KEPT, CachePiece, PieceScan, Scanned, scan_piece, scan_pieces, select
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Scan, scan_documents
from phasewise.validations.limits import LeakageLimits
from tests.tasks.conftest import write_prose

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)


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
def test_files_folders_and_globs_and_excluded_files_are_reported_with_their_glob():
    assert names("data/train.jsonl") == ["data/train.jsonl"]
    assert names("data") == ["data/read me.md", "data/train.jsonl", "data/sub/test.json"]
    assert names("data/*.jsonl", "**/*.txt") == ["data/train.jsonl", "other.txt"]
    assert names("data", "data/train.jsonl", "other.txt", "other.txt") == [*names("data"), "other.txt"]
    assert select([str(Path("data").resolve())]).names == ("read me.md", "train.jsonl", "sub/test.json")
    selection = select(["data", "other.txt"], exclude=("*.jsonl", "sub/*"))
    assert [piece.name for piece in selection.pieces if isinstance(piece, FilePiece)] == ["data/read me.md", "other.txt"]
    excluded = {unread.file: unread.excluded_by for unread in selection.unread if unread.excluded_by}
    assert (excluded, selection.names) == ({"data/train.jsonl": "*.jsonl", "data/sub/test.json": "sub/*"}, ("read me.md", "other.txt"))


@pytest.mark.parametrize("path", ["nowhere", "data/*.csv", "empty"])
def test_a_path_that_names_nothing_is_wrong_usage(files: Path, path: str):
    (files / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no files and no token cache"):
        select(["other.txt", path])


def test_large_files_of_lines_are_cut_into_ranges_by_their_first_bytes(files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 4)
    pieces = select(["data/train.jsonl", "data/sub/test.json"]).pieces
    assert [(piece.start, piece.stop) for piece in pieces if isinstance(piece, FilePiece)] == [(0, 4), (4, 8), (8, 12), (12, 16), (0, None)]
    (files / "data" / "train.jsonl").write_text("")
    assert len(select(["data/train.jsonl"]).pieces) == 1
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 10)
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


def test_hidden_files_are_reported_and_links_are_followed_once(files: Path):
    hidden = [unread for unread in select(["data"]).unread if not unread.is_fault]
    reason = "hidden: name it to have it scanned"
    assert hidden == [Unread("data/.git", reason, is_fault=False), Unread("data/sub/.hidden", reason, is_fault=False)]
    assert names("data/sub/.hidden") == ["data/sub/.hidden"]
    (files / "linked").mkdir()
    (files / "linked" / "here.txt").write_text("x")
    (files / "data" / "to").symlink_to(files / "linked")
    (files / "linked" / "round").symlink_to(files / "data")
    assert "data/to/here.txt" in names("data")
    assert len(names("data")) == len(set(names("data"))) == 4


def test_a_folder_that_may_not_be_listed_fails_by_name(files: Path, monkeypatch: pytest.MonkeyPatch):
    whole = os.scandir

    def listed(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return whole(path)

    monkeypatch.setattr("os.scandir", listed)
    (unread,) = [unread for unread in select(["data"]).unread if unread.is_fault]
    assert unread == Unread("data/sub", "this folder cannot be listed: Permission denied", is_fault=True)


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


@pytest.fixture
def planted(word_problems: list[BenchmarkItem], tmp_path: Path) -> Path:
    lines = [write_prose(number, 5) for number in range(140)]
    for number, item in enumerate(word_problems[:20]):
        lines[7 * number] = olmes(item, Random(0))
    (tmp_path / "data").mkdir()
    rows = (json.dumps({"id": f"row {number}", "text": text}) + "\n" for number, text in enumerate(lines))
    (tmp_path / "data" / "train.jsonl").write_text("".join(rows))
    (tmp_path / "data" / "notes.txt").write_text(f"As they say: {word_problems[30].question}")
    return tmp_path / "data"


def found(scanned: Scanned) -> set[tuple[str, int, str, str]]:
    return {(Path(hit.file).name, hit.document, hit.id, hit.item) for scan in scanned.scans.values() for hit in scan.hits}


def expected(items: list[BenchmarkItem]) -> set[tuple[str, int, str, str]]:
    in_lines = {("train.jsonl", 7 * number, f"row {7 * number}", item.id) for number, item in enumerate(items[:20])}
    return in_lines | {("notes.txt", 0, "#0", items[30].id)}


def test_documents_are_numbered_through_their_file(planted: Path, index: Path, word_problems: Any, monkeypatch: pytest.MonkeyPatch):
    whole = scan_pieces(select([str(planted)]).pieces, index, LIMITS)
    assert (found(whole), whole.scans[None].documents) == (expected(word_problems), 141)
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 10_000)
    pieces = select([str(planted)]).pieces
    assert len(pieces) > 5
    assert found(scan_pieces(pieces, index, LIMITS)) == expected(word_problems)


@pytest.mark.usefixtures("on_scheduler")
def test_workers_find_the_same_and_only_a_scan_by_workers_removes_kept_pieces(planted: Path, index: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 10_000)
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECES_AT_ONCE", 3)
    pieces = select([str(planted)]).pieces
    scan_piece(pieces[0], index, LIMITS, keeps=True)
    alone = scan_pieces(pieces, index, LIMITS, workers=1)
    assert index.with_suffix(KEPT).exists()
    assert scan_pieces(pieces, index, LIMITS, workers=2) == alone
    assert not index.with_suffix(KEPT).exists()
    turned = scan_pieces(select([str(planted / "train.jsonl"), str(planted / "notes.txt")]).pieces, index, LIMITS)
    assert turned.scans[None] == alone.scans[None]


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is scanned, and not read from a kept result."""
    found: list[object] = []

    def watched(documents: Any, *more: Any) -> Scan:
        found.append(documents)
        return scan_documents(documents, *more)

    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.scan_documents", watched)
    return found


def test_an_interrupted_scan_goes_on(planted: Path, index: Path, scanned: list[object], monkeypatch: pytest.MonkeyPatch):
    def scan_some(limits: LeakageLimits = LIMITS) -> tuple[list[PieceScan], int]:
        before = len(scanned)
        return [scan_piece(piece, index, limits, keeps=True) for piece in pieces[:3]], len(scanned) - before

    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 10_000)
    file = planted / "train.jsonl"
    pieces = select([str(file)]).pieces
    first, count = scan_some()  # interrupted here
    assert (count, scan_some()) == (3, (first, 0))
    assert scan_some(LIMITS.but(min_score=0.5))[1] == 3
    times = os.stat(file).st_atime_ns, os.stat(file).st_mtime_ns
    file.write_bytes(file.read_bytes().replace(b"row 7", b"Row 7", 1))
    os.utime(file, ns=times)  # equal size and time
    changed, count = scan_some()
    assert (changed == first, count) == (False, 3)
    for kept in index.with_suffix(KEPT).iterdir():
        kept.write_text(kept.read_text().replace('"documents"', '"document"'))
    assert scan_some() == (changed, 3)
    file.unlink()
    with pytest.raises(DataError, match=r"train\.jsonl"):
        scan_some()


def test_spans_are_of_the_documents_text_and_what_is_unread_is_reported(planted: Path, index: Path, word_problems: list[BenchmarkItem]):
    scan = scan_pieces(select([str(planted / "notes.txt")]).pieces, index, LIMITS).scans[None]
    text = (planted / "notes.txt").read_bytes()
    (hit,) = [hit for hit in scan.hits if hit.part == "question"]
    assert text[hit.start : hit.end].decode() in word_problems[30].question
    assert hit.end - hit.start > 0.8 * len(word_problems[30].question.encode())
    assert scan.bytes == len(text)
    (planted / "image.png").write_bytes(b"\x89PNG\0")
    scanned = scan_pieces(select([str(planted)]).pieces, index, LIMITS)
    assert ([(Path(one.file).name, one.is_fault) for one in scanned.unread], scanned.scans[None].documents) == ([("image.png", False)], 141)


def test_each_cache_is_a_scan_of_its_own(prepared: Any, index: Path):
    plan = prepared.plan()
    folders = [plan.components[name].train.folder for name in ("code", "web")]
    scanned = scan_pieces(select(map(str, folders)).pieces, index, LIMITS)
    assert set(scanned.scans) == set(folders)
    assert all(scan.documents > 50 and not scan.hits for scan in scanned.scans.values())


def test_a_kept_scan_of_a_cache_is_not_used_for_another_tokenizer(prepared: Any, index: Path, scanned: list[object], tmp_path: Path):
    plan = prepared.plan()
    tokenizer = Path(shutil.copy(plan.tokenizer, tmp_path))
    (piece, *_) = select([str(plan.components["code"].train.folder)], tokenizer=tokenizer).pieces
    first = scan_piece(piece, index, LIMITS, keeps=True)
    assert (scan_piece(piece, index, LIMITS, keeps=True), len(scanned)) == (first, 1)
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    assert (scan_piece(piece, index, LIMITS, keeps=True), len(scanned)) == (first, 2)
