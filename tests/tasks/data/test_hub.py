"""Sources on the hub, and on S3 as moto serves it. Azure has no emulator in a Python package: there the missing package is held."""

import gzip
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.registry import _registry  # pyright: ignore[reportPrivateUsage]  # loaded file systems
from moto.server import ThreadedMotoServer

from phasewise.flows.cli.data import fetch
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import read_to_parts
from phasewise.tasks.data.listing import Listing, at_commit, expand, fingerprint
from phasewise.tasks.data.reading import Record, pieces_of, read_piece
from phasewise.tasks.data.source import HubTrouble, Source
from phasewise.tasks.evaluation.corpus_fit import Corpus
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, DataError
from tests.stores.hub import FakeHub
from tests.tasks.data.builds import bundles, write_documents

LINES = 1200
NAMES = tuple(f"data/part-{number}.jsonl" for number in range(5))
ALL = [f"document {line} of file {file}, as it was" for file in range(5) for line in range(LINES)]
FAULTS: dict[str, Callable[[FakeHub], None]] = {
    "nothing": lambda hub: None, "revision refused": lambda hub: hub.fails("refuse", "/api/datasets/owner/name(/revision/.*)?$", times=2),
    "tree refused": lambda hub: hub.fails("refuse", "/tree/", times=2, status=500),
    "second page refused": lambda hub: hub.fails("refuse", "cursor=", status=429, Retry_After="7"),
    "file refused": lambda hub: hub.fails("refuse", "/resolve/", times=9),
    "store refused": lambda hub: hub.fails("refuse", "/signed/", times=3, status=502),
    "cut in the middle": lambda hub: hub.fails("cut", "/signed/", times=3),
    "the whole file for a part": lambda hub: hub.fails("whole", "/signed/.*part-3", passes=2),
    "a byte short": lambda hub: hub.fails("short", "/signed/", times=2),
    "link ran out": lambda hub: hub.fails("expire", "/resolve/", times=3), "closed": lambda hub: hub.close(300),
}  # fmt: skip


def files(words: str = "as it was") -> dict[str, bytes]:
    texts = {name: [f"document {line} of file {number}, {words}" for line in range(LINES)] for number, name in enumerate(NAMES)}
    lines = {name: b"".join(json.dumps({"text": text}).encode() + b"\n" for text in found) for name, found in texts.items()}
    return {"README.md": b"about", **lines}


def source(*include: str, revision: str | None = None) -> Source:
    return Source(url="hf://datasets/owner/name", revision=revision, include=include or ("data/*.jsonl",), format="jsonl")


def texts(wanted: Source, listed: Listing | None = None) -> list[str]:
    fixed = at_commit(wanted)
    pieces = pieces_of(fixed, (listed or fingerprint(fixed)).files)
    found = [finding for piece in pieces for finding in read_piece(fixed, piece)]
    assert all(isinstance(finding, Record) for finding in found), found
    return [finding.text for finding in found if isinstance(finding, Record)]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize(("fault", "words"), [
    (("refuse", "/resolve/", 503), r"the hub is busy or out of reach \(503\)"),
    (("cut", "/signed/", 503), r"the hub is busy or out of reach \(Remote"),
    (("whole", "/signed/", 503), "bytes .* does not support byte ranges. Set HF_"),
    (("refuse", "/resolve/", 418), "the hub answers 418"),
])  # fmt: skip
def test_a_file_that_never_comes_is_named_with_its_commit(hub: FakeHub, fault: tuple[Any, str, int], words: str):
    commit = hub.commit(files())
    kind, path, status = fault
    hub.fails(kind, f"{path}.*part-2", times=10_000, status=status)
    with pytest.raises(HubTrouble, match=rf"^hf://datasets/owner/name@{commit}/data/part-2.jsonl: {words}"):
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


def test_a_moving_branch_is_read_at_its_commit_and_a_build_that_goes_on_asks_only_for_the_rest(hub: FakeHub, tmp_path: Path):
    first = hub.commit(files())
    fixed = at_commit(source(revision="main"))
    listed = fingerprint(fixed)
    second = hub.commit(files(words="as it is now"))
    assert first != second
    assert (texts(fixed, listed), fingerprint(fixed), at_commit(source(revision="main")).revision) == (ALL, listed, second)
    hub.commit(files())
    fixed = at_commit(source())
    for bundle in bundles(fixed, fingerprint(fixed))[:2]:
        read_to_parts(bundle, 1 << 20, tmp_path)
    hub.requests.clear()
    manifest = write_documents(fixed, tmp_path)
    assert (manifest.train + manifest.held_out, hub.asked("/resolve/.*part-[01]")) == (len(ALL), 0)
    assert all(hub.asked(f"/resolve/.*part-{number}") > 0 for number in (2, 3, 4))


def test_a_public_text_is_fetched_whole_or_not_at_all(hub: FakeHub, tmp_path: Path):
    hub.repository = "datasets/allenai/paloma"
    line = json.dumps({"text": "a text "}).encode() + b"\n"
    wanted = {f"{subset}/val/val_00000000.jsonl.gz": gzip.compress(line) for subset in ("c4_en", "gab")}
    hub.commit({**wanted, "gab/test/test_00000000.jsonl.gz": b"", "README.md": b"about"}, branch="65cd6fc")
    hub.fails("refuse", "/resolve/", times=99, status=404)
    with pytest.raises(DataError, match="paloma: the download of hf://datasets/allenai/paloma@65cd6fc failed"):
        fetch("paloma", str(tmp_path / "paloma"))
    assert list(tmp_path.iterdir()) == []
    hub.faults.clear()
    found = fetch("paloma", str(tmp_path / "paloma"))
    assert (found["files"], found["subsets"]) == (2, ["c4_en", "gab"])
    assert [(document.subset, document.text) for document in Corpus(tmp_path / "paloma").documents()] == [
        ("c4_en", "a text "),
        ("gab", "a text "),
    ]
    for name, folder, message in (("palom", "x", "did you mean paloma"), ("paloma", "paloma", "expected no file and no folder")):
        with pytest.raises(ConfigError, match=message):
            fetch(name, str(tmp_path / folder))


TEXTS = [f"document {number}, as it was in the beginning" for number in range(60)]
SOURCE = Source(url="s3://bucket/text", include=("**/*.jsonl*",), exclude=("held/*",), format="jsonl")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    store.mkdir("bucket")
    yield store
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def test_documents_on_s3_are_those_of_a_folder_and_an_edit_of_equal_length_is_noticed(bucket: fsspec.AbstractFileSystem, tmp_path: Path):
    files = {"a.jsonl": lines(TEXTS[:30]), "deep/b.jsonl.gz": gzip.compress(lines(TEXTS[30:])), "held/c.jsonl": lines(TEXTS)}
    for name, content in files.items():
        bucket.pipe_file(f"bucket/text/{name}", content)
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    here = SOURCE.but(url=str(tmp_path / "text"))
    assert fingerprint(SOURCE) == fingerprint(here)
    assert write_documents(SOURCE, tmp_path / "s3").parts == write_documents(here, tmp_path / "here").parts
    known = KnownDigests(Home.open(str(tmp_path / "home")))
    before = fingerprint(SOURCE, known)
    bucket.pipe_file("bucket/text/a.jsonl", files["a.jsonl"].replace(b"beginning", b"beginninf"))
    after = fingerprint(SOURCE, known)
    assert [old.digest == new.digest for old, new in zip(before.files, after.files, strict=True)] == [False, True]


@pytest.mark.parametrize(
    ("url", "package", "said"),
    [
        ("s3://bucket/text", "s3fs", r"s3://bucket/text: the package that reads s3:// is not installed: pip install 'phasewise\[s3\]'"),
        ("az://box/text", "adlfs", r"az://box/text: the package that reads az:// is not installed: pip install 'phasewise\[azure\]'"),
        (
            "nix://box/text",
            None,
            r"nix://box/text: expected a folder, gs://, s3://, az://, hf:// or another protocol of fsspec, found nix://",
        ),
    ],
)
def test_a_store_without_its_package_is_refused_before_it_is_listed(
    url: str, package: str | None, said: str, monkeypatch: pytest.MonkeyPatch
):
    if package:
        monkeypatch.setitem(sys.modules, package, None)
        for protocol in ("s3", "az"):
            monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(ConfigError, match=said):
        expand(SOURCE.but(url=url))
