"""A data set of the hub is read to its last byte, or refused by file, revision and what to do: each fault of the hub that we know."""

import json
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

from phasewise.tasks.data.documents import read_to_parts
from phasewise.tasks.data.listing import at_commit, fingerprint
from phasewise.tasks.data.reading import Record, pieces_of, read_piece
from phasewise.tasks.data.source import HubTrouble, Source
from phasewise.trainer.base.errors import DataError
from tests.stores.hub import FakeHub
from tests.tasks.data.builds import bundles, write_documents

LINES = 1200
NAMES = tuple(f"data/part-{number}.jsonl" for number in range(5))


def text(file: int, line: int, words: str = "as it was") -> str:
    return f"document {line} of file {file}, {words}"


def content(file: int, lines: int = LINES, words: str = "as it was") -> bytes:
    return b"".join(json.dumps({"text": text(file, line, words)}).encode() + b"\n" for line in range(lines))


def files(words: str = "as it was") -> dict[str, bytes]:
    return {"README.md": b"about", **{name: content(number, words=words) for number, name in enumerate(NAMES)}}


def source(*include: str, revision: str | None = None) -> Source:
    return Source(url="hf://datasets/owner/name", revision=revision, include=include or ("data/*.jsonl",), format="jsonl")


def texts(wanted: Source) -> list[str]:
    """Everything that the source gives: listed, then read file by file."""
    fixed = at_commit(wanted)
    pieces = pieces_of(fixed, fingerprint(fixed).files)
    found = [finding for piece in pieces for finding in read_piece(fixed, piece)]
    assert all(isinstance(finding, Record) for finding in found), found
    return [finding.text for finding in found if isinstance(finding, Record)]


ALL = [text(file, line) for file in range(5) for line in range(LINES)]
FAULTS: dict[str, Callable[[FakeHub], None]] = {
    "nothing": lambda hub: None,
    "revision refused": lambda hub: hub.fails("refuse", "/api/datasets/owner/name(/revision/.*)?$", times=2),
    "tree refused": lambda hub: hub.fails("refuse", "/tree/", times=2, status=500),
    "second page refused": lambda hub: hub.fails("refuse", "cursor=", status=429, Retry_After="7"),
    "file refused": lambda hub: hub.fails("refuse", "/resolve/", times=9),
    "store refused": lambda hub: hub.fails("refuse", "/signed/", times=3, status=502),
    "cut in the middle": lambda hub: hub.fails("cut", "/signed/", times=3),
    "the whole file for a part": lambda hub: hub.fails("whole", "/signed/.*part-3", passes=2),
    "a byte short": lambda hub: hub.fails("short", "/signed/", times=2),
    "link ran out": lambda hub: hub.fails("expire", "/resolve/", times=3),
    "closed": lambda hub: hub.close(300),
}


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read in several parts, each with a link of its own."""
    monkeypatch.setattr("phasewise.tasks.data.streams.BLOCK_BYTES", 5000)
    monkeypatch.setattr("phasewise.tasks.data.streams.BUFFER_BYTES", 5000)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_leaves_no_trace(hub: FakeHub, fault: str):
    hub.commit(files())
    FAULTS[fault](hub)
    assert texts(source()) == ALL
    assert hub.asked("/signed/.*part-0") > 2
    assert all(waiting.times == 0 for waiting in hub.faults), "the fault never came"


def test_a_retry_after_is_obeyed(hub: FakeHub):
    """While the hub is closed it is asked once, and never again before the time that it named."""
    hub.commit(files())
    hub.close(120)
    at_commit(source())
    assert hub.impatient == 1
    assert sum(hub.slept) >= 120
    hub.slept.clear()
    hub.fails("refuse", "/tree/", times=9, status=429, Retry_After=formatdate(time.time() + 300, usegmt=True))
    texts(source())
    assert max(hub.slept) == pytest.approx(300, abs=30), "huggingface_hub passes over a date, asks five times, and then we wait"
    hub.slept.clear()
    hub.fails("refuse", "/api/datasets/owner/name(/revision/.*)?$", status=429, RateLimit='"api";r=0;t=77')
    at_commit(source())
    assert sum(hub.slept) >= 77
    hub.close(90)
    texts(source())
    assert hub.impatient == 2


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda hub: hub.fails("refuse", "/resolve/.*part-2", times=10_000), r"part-2.jsonl: the hub is busy or out of reach \(503\)"),
        (lambda hub: hub.fails("cut", "/signed/.*part-2", times=10_000), r"part-2.jsonl: the hub is busy or out of reach \(Remote"),
        (lambda hub: hub.fails("whole", "/signed/.*part-2", times=10_000), r"part-2.jsonl: bytes .* does not support byte ranges. Set HF_"),
        (lambda hub: hub.fails("refuse", "/resolve/.*part-2", times=10_000, status=418), r"part-2.jsonl: the hub answers 418"),
    ],
)
def test_a_file_that_never_comes_is_named_with_its_commit(hub: FakeHub, fault: Callable[[FakeHub], None], words: str):
    """Dask asks again for what may pass; so it is no refusal yet."""
    commit = hub.commit(files())
    fault(hub)
    with pytest.raises(HubTrouble, match=rf"^hf://datasets/owner/name@{commit}/data/{words}"):
        texts(source())


@pytest.mark.parametrize(
    ("status", "words"), [(404, "is gone"), (401, "cannot be read .*set HF_TOKEN"), (403, "cannot be read .*set HF_TOKEN")]
)
def test_what_will_not_pass_is_refused_at_once(hub: FakeHub, status: int, words: str):
    commit = hub.commit(files())
    hub.fails("refuse", "/resolve/.*part-4", times=10_000, status=status)
    with pytest.raises(DataError, match=rf"{commit}/data/part-4\.jsonl .*{words}"):
        texts(source())
    assert hub.slept == []


def test_a_moving_branch_is_read_at_the_commit_that_was_listed(hub: FakeHub):
    first = hub.commit(files())
    fixed = at_commit(source(revision="main"))
    listed = fingerprint(fixed)
    second = hub.commit(files(words="as it is now"))
    assert first != second
    found = [finding for piece in pieces_of(fixed, listed.files) for finding in read_piece(fixed, piece)]
    assert [finding.text for finding in found if isinstance(finding, Record)] == ALL
    assert fingerprint(fixed) == listed
    assert at_commit(source(revision="main")).revision == second


def test_a_build_that_goes_on_asks_for_nothing_that_is_finished(hub: FakeHub, tmp_path: Path):
    hub.commit(files())
    fixed = at_commit(source())
    for bundle in bundles(fixed, fingerprint(fixed))[:2]:
        read_to_parts(bundle, 1 << 20, tmp_path)
    hub.requests.clear()
    manifest = write_documents(fixed, tmp_path)
    assert manifest.train + manifest.held_out == len(ALL)
    assert hub.asked("/resolve/.*part-[01]") == 0
    assert all(hub.asked(f"/resolve/.*part-{number}") > 0 for number in (2, 3, 4))
