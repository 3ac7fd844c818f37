import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.leakage_recall.views import olmes
from phasewise.tasks.validation.scan_pieces import Scanned, scan_pieces, select
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.limits import LeakageLimits
from tests.tasks.conftest import write_prose

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)


@pytest.fixture
def planted(word_problems: list[BenchmarkItem], tmp_path: Path) -> Path:
    """Prose, in which every seventh line is an item; and a file beside it that holds one as text."""
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


def test_documents_are_numbered_through_their_file(
    planted: Path, index: Path, word_problems: list[BenchmarkItem], monkeypatch: pytest.MonkeyPatch
):
    whole = scan_pieces(select([str(planted)]).pieces, index, LIMITS)
    assert found(whole) == expected(word_problems)
    assert whole.scans[None].documents == 141
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 10_000)
    pieces = select([str(planted)]).pieces
    assert len(pieces) > 5
    assert found(scan_pieces(pieces, index, LIMITS)) == expected(word_problems)


@pytest.mark.usefixtures("on_scheduler")
def test_workers_find_the_same(planted: Path, index: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECE_BYTES", 10_000)
    monkeypatch.setattr("phasewise.tasks.validation.scan_pieces.PIECES_AT_ONCE", 3)
    pieces = select([str(planted)]).pieces
    alone = scan_pieces(pieces, index, LIMITS, workers=1)
    assert scan_pieces(pieces, index, LIMITS, workers=2) == alone
    turned = scan_pieces(select([str(planted / "train.jsonl"), str(planted / "notes.txt")]).pieces, index, LIMITS)
    assert turned.scans[None] == alone.scans[None]


def test_spans_and_excerpts_are_of_the_documents_text(planted: Path, index: Path, word_problems: list[BenchmarkItem]):
    scan = scan_pieces(select([str(planted / "notes.txt")]).pieces, index, LIMITS).scans[None]
    text = (planted / "notes.txt").read_bytes()
    (hit,) = [hit for hit in scan.hits if hit.part == "question"]
    assert text[hit.start : hit.end].decode() in word_problems[30].question
    assert hit.end - hit.start > 0.8 * len(word_problems[30].question.encode())
    assert scan.bytes == len(text)


def test_each_cache_is_a_scan_of_its_own(prepared: Any, index: Path):
    plan = prepared.plan()
    folders = [plan.components[name].train.folder for name in ("code", "web")]
    scanned = scan_pieces(select(map(str, folders)).pieces, index, LIMITS)
    assert set(scanned.scans) == set(folders)
    assert all(scan.documents > 50 and not scan.hits for scan in scanned.scans.values())


def test_what_was_not_read_is_reported(planted: Path, index: Path):
    (planted / "image.png").write_bytes(b"\x89PNG\0")
    scanned = scan_pieces(select([str(planted)]).pieces, index, LIMITS)
    assert [(Path(one.file).name, one.is_fault) for one in scanned.unread] == [("image.png", False)]
    assert scanned.scans[None].documents == 141
