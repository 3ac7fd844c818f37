"""A data set of the hub is read to its last byte, or refused by file, revision and what to do: each fault of the hub that we know."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.hub import PATIENCE_SECONDS
from phasewise.tasks.data.listing import at_commit, fingerprint
from phasewise.tasks.data.parts import read_to_parts
from phasewise.tasks.data.plan import plan_data
from phasewise.tasks.data.reading import Record, pieces_of, read_piece
from phasewise.tasks.data.source import HubTrouble, Source
from phasewise.tasks.home import Home
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


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ("/api/datasets/owner/name(/revision/.*)?$", 503, r"datasets/owner/name.*busy or out of reach \(503\).*Run again later"),
        ("/tree/", 429, r"datasets/owner/name@[0-9a-f]{40}.*busy or out of reach \(429\).*Run again later"),
        ("/api/datasets/owner/name(/revision/.*)?$", 403, r"datasets/owner/name.*answers 403.*accept its terms, or set HF_TOKEN"),
    ],
)
def test_a_listing_that_never_comes_is_one_refusal(hub: FakeHub, where: str, status: int, words: str):
    hub.commit(files())
    hub.fails("refuse", where, times=10_000, status=status)
    with pytest.raises(DataError, match=words):
        fingerprint(at_commit(source()))
    assert sum(hub.slept) >= (PATIENCE_SECONDS if status != 403 else 0)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda hub: hub.fails("refuse", "/resolve/.*part-2", times=10_000), r"part-2.jsonl: the hub is busy or out of reach \(503\)"),
        (lambda hub: hub.fails("cut", "/signed/.*part-2", times=10_000), r"part-2.jsonl: the hub is busy or out of reach \(Remote"),
        (lambda hub: hub.fails("whole", "/signed/.*part-2", times=10_000), r"part-2.jsonl: bytes .* does not give parts of files. Set HF_"),
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


def test_a_link_that_always_runs_out_ends(hub: FakeHub):
    hub.commit(files())
    hub.fails("expire", "/resolve/", times=10_000)
    with pytest.raises(DataError, match=r"part-0\.jsonl cannot be read"):
        texts(source())


@pytest.mark.parametrize(("revision", "words"), [("nowhere", "nowhere"), ("abcdef0123", "abcdef0123")])
def test_no_such_revision(hub: FakeHub, revision: str, words: str):
    hub.commit(files())
    with pytest.raises(DataError, match=rf"owner/name@{words}.*(no such|not found)"):
        at_commit(source(revision=revision))


def test_a_gated_data_set_asks_for_a_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub.commit(files())
    hub.token = "hf_right"
    with pytest.raises(DataError, match=r"owner/name.*HF_TOKEN|owner/name.*authenticated"):
        fingerprint(at_commit(source()))
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert texts(source()) == ALL


def test_busy_is_not_gone(hub: FakeHub):
    """A file that is asked for by its name is not missing because the hub is busy."""
    hub.commit(files())
    by_name = at_commit(source("data/part-1.jsonl"))
    hub.fails("refuse", "/tree/", times=10_000)
    with pytest.raises(DataError, match="busy or out of reach"):
        fingerprint(by_name)


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


@pytest.mark.parametrize("by", ["branch", "tag", "short", "full", "default"])
def test_the_commit_is_in_the_manifest(hub: FakeHub, by: str, tmp_path: Path):
    commit = hub.commit(files(), branch="v1" if by == "tag" else "main")
    revision = {"branch": "main", "tag": "v1", "short": commit[:7], "full": commit, "default": None}[by]
    wanted = source(revision=revision)
    manifest = write_documents(at_commit(wanted), tmp_path)
    assert manifest.source["revision"] == commit
    plan = plan_data({"web": wanted}, Home.open(str(tmp_path / "home")), vocab_size=500)
    assert plan.components["web"].source.revision == commit
    assert plan.components["web"].revision == revision
    assert {piece.url.split("/")[4] for bundle in plan.components["web"].bundles for piece in bundle.pieces} == {f"name@{commit}"}


def test_a_listing_reads_no_file(hub: FakeHub):
    """The hub vouches for the digests. Five files in pages of three: each page is asked for once."""
    hub.commit(files())
    known = KnownDigests()
    assert [file.name for file in fingerprint(at_commit(source()), known).files] == list(NAMES)
    assert known.bytes_read == 0
    assert hub.asked("/resolve/|/signed/") == 0
    assert hub.asked("cursor=") == len({path for path in hub.requests if "cursor=" in path}) > 0


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


def test_a_process_finds_the_hub_by_its_environment(hub: FakeHub):
    """As a worker does: nothing of this process is patched there."""
    commit = hub.commit(files())
    program = "import sys, json; from tests.tasks.data.test_hub import source, texts; json.dump(texts(source()), sys.stdout)"
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("HF_HUB_OFFLINE", None)  # tests that evaluate in this process leave it
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(result.stdout) == ALL
    assert hub.asked(f"/resolve/{commit}/") == len(NAMES)
