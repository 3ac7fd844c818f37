import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data import documents, verify
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import read_to_parts, split_of, split_texts, tally_of
from phasewise.tasks.data.findings import QUARANTINE_NAME, check_readable
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.data.verify import Difference, check_caches, verify_component
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes, write_sealed
from phasewise.trainer.base.storage import read_json, write_atomically, write_json
from phasewise.trainer.data.manifest import MANIFEST_NAME, read_manifest
from tests.tasks.conftest import write_lines
from tests.tasks.data.builds import bundles, edit_in_silence, write_documents

TEXTS = [f"Document number {number}\nof many." for number in range(60)]


@settings(max_examples=25, deadline=None)
@given(
    files=st.lists(st.lists(st.integers(0, 60), max_size=40), min_size=1, max_size=4),
    buckets=st.sampled_from([1, 3, 256]),
    max_part_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_it_keeps_what_a_set_would(tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], buckets: int, max_part_bytes: int):
    folder, always = tmp_path_factory.mktemp("texts"), list(range(100, 160))  # so that neither split is empty
    texts = [[f"Document {number}." for number in numbers] for numbers in [*files, always]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "DOCUMENTS_PER_BUCKET", 1)
        patch.setattr(documents, "MAX_BUCKETS", buckets)
        write_documents(component(folder / "in", *texts, max_bad_fraction=1.0), folder / "out", max_part_bytes)
    expected = list(dict.fromkeys(text for file in texts for text in file))
    assert list(splits(folder / "out")) == sorted(expected, key=lambda text: split_of(digest_of_bytes(text.encode())) == "held_out")


def component(folder: Path, *files: list[str], max_bad_fraction: float = 0.0) -> Source:
    for number, texts in enumerate(files):
        write_lines(folder / f"{number:02d}.jsonl", texts)
    return Source(url=folder.as_uri(), include=("*",), format="jsonl", max_bad_fraction=max_bad_fraction)


def splits(folder: Path) -> dict[str, str]:
    return {text: split for split in ("train", "held_out") for text in split_texts(folder, split)}


def test_another_document_moves_none_and_copies_are_dropped_and_counted(tmp_path: Path):
    write_documents(component(tmp_path / "a", TEXTS), tmp_path / "before")
    write_documents(component(tmp_path / "b", ["A new one.", *reversed(TEXTS), "And one more."]), tmp_path / "after")
    before, after = (splits(tmp_path / name) for name in ("before", "after"))
    assert (len(after), {text: after[text] for text in before}) == (len(before) + 2, before)
    copies = [TEXTS[3], TEXTS[5].replace("\n", "\r\n"), TEXTS[3]]
    manifest = write_documents(component(tmp_path / "a", TEXTS, [*copies, "  \n", ""]), tmp_path / "out")
    found = list(splits(tmp_path / "out").values())
    assert (manifest.train, manifest.held_out, len(found), manifest.copies) == (found.count("train"), found.count("held_out"), 60, (0, 3))
    assert (manifest.tally.left_out["empty text"], sorted(splits(tmp_path / "out"))) == (2, sorted(TEXTS))


@pytest.mark.parametrize(("texts", "found"), [(["one"], "1 documents"), (["a", "b", "a", " "], "2 documents")])
def test_an_empty_split_is_refused(tmp_path: Path, texts: list[str], found: str):
    with pytest.raises(DataError, match=f"component web: {found} in 1 files leave .* held out; both need at least one"):
        write_documents(component(tmp_path / "a", texts), tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


def test_a_killed_build_goes_on_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = component(tmp_path / "a", TEXTS[:40], TEXTS[40:])
    write_documents(source, tmp_path / "whole")
    first, second = bundles(source, fingerprint(source))
    read_to_parts(first, 1 << 20, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(documents, "write_model", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            read_to_parts(second, 1 << 20, tmp_path / "out")
    (tmp_path / "out" / ".part-00001-0000.parquet.abc").write_bytes(b"half")
    (tmp_path / "out" / "part-00001-0007.parquet").write_bytes(b"of another time")
    finished = (tmp_path / "out" / "bundle-00000.json").stat().st_mtime_ns
    write_documents(source, tmp_path / "out")
    found, whole = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("out", "whole"))
    assert (found, (tmp_path / "out" / "bundle-00000.json").stat().st_mtime_ns) == (whole, finished)


def test_too_much_that_cannot_be_read_is_refused_with_the_counts(tmp_path: Path):
    source = component(tmp_path / "a", TEXTS, max_bad_fraction=0.04)
    (tmp_path / "a" / "bad.jsonl").write_bytes(b'{"text": "cut\n{"content": 3}\n\xff\xfe\n')
    listing = fingerprint(source)
    records = [read_to_parts(bundle, 1 << 20, tmp_path / "out") for bundle in bundles(source, listing)]
    tally = tally_of(records, listing)
    assert tally.bad_fraction == pytest.approx(3 / 63)
    with pytest.raises(DataError) as refusal:
        check_readable("web", source, tally, tmp_path / "out")
    for word in ("web", "broken JSON", "not UTF-8", "missing key", "bad.jsonl", QUARANTINE_NAME, "max_bad_fraction"):
        assert word in str(refusal.value)
    check_readable("web", source.model_copy(update={"max_bad_fraction": 0.05}), tally, tmp_path / "out")


@pytest.mark.parametrize("name", ["part-00000-0000.parquet", "copies.bin"])
def test_a_file_that_was_changed_is_refused(tmp_path: Path, name: str):
    write_documents(component(tmp_path / "a", TEXTS, TEXTS[:3]), tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"Delete .*/out and prepare the data again"):
        list(split_texts(tmp_path / "out", "train"))


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
    known = KnownDigests(home, reads_all=reads_all)
    digest = known.content(path).digest
    known.keep()
    return digest, known.bytes_read


@pytest.mark.parametrize("change", ["touch", "edit", "edit and set the time back", "replace"])
def test_what_changed_in_any_way_is_read_again(home: Home, file: Path, change: str):
    content = b"before" if change == "touch" else b"edited"
    one_command = KnownDigests(home)
    one_command.content(file)
    one_command.keep()
    before = file.stat()
    if change == "replace":
        file.with_name("other").write_bytes(content)
        shutil.copystat(file, file.with_name("other"))
        file.with_name("other").replace(file)
    elif change == "touch":
        os.utime(file)
    else:
        file.write_bytes(content)
    if "time" in change:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (one_command.content(file), digest_and_bytes_read(home, file)) == ((6, sha256(content)), (sha256(content), 6))
    assert digest_and_bytes_read(home, file) == (sha256(content), 0)


def test_wrong_memory_is_believed_until_everything_is_read_and_edits_within_a_tick_of_the_clock_are_seen(home: Home, file: Path):
    digest_and_bytes_read(home, file)
    files = read_json(home.digests)["files"]
    files[str(file)][2] = sha256(b"edited")
    write_sealed(home.digests, {"version": 2, "files": files})
    assert digest_and_bytes_read(home, file) == (sha256(b"edited"), 0)
    assert digest_and_bytes_read(home, file, reads_all=True) == (sha256(b"before"), 6)
    assert digest_and_bytes_read(home, file) == (sha256(b"before"), 0)
    for number in range(20):
        for content in (b"%06d" % number, b"%06d" % (number + 1)):
            file.write_bytes(content)
            assert digest_and_bytes_read(home, file) == (sha256(content), 6)


def test_threads_that_ask_for_one_file_read_it_once(file: Path):
    file.write_bytes(b"x" * 10_000_000)
    known, together = KnownDigests(), threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: (together.wait(), known.content(file).digest)[1], range(8))
        assert set(found) == {sha256(b"x" * 10_000_000)}
    assert known.bytes_read == 10_000_000


def test_a_store_vouches_for_a_source_and_a_file_of_the_home_keeps_its_digest(gcs: Path, home: Home):
    at_store = Home.open(str(gcs))
    source, beside = at_store.sources / "a.jsonl", gcs.parent / f"{gcs.name}-beside.jsonl"
    for path in (source, beside):
        write_atomically(path, b"before")
    assert digest_and_bytes_read(home, str(source)) == (f"md5:{hashlib.md5(b'before').hexdigest()}", 0)
    assert digest_and_bytes_read(at_store, str(beside))[0].startswith("md5:")
    assert [digest_and_bytes_read(at_store, str(source)) for _ in range(2)] == [(sha256(b"before"), 6), (sha256(b"before"), 0)]
    write_atomically(source, b"edited")
    assert digest_and_bytes_read(at_store, str(source)) == (sha256(b"edited"), 6)
    beside.unlink()


NAMES = ("code", "law", "web")
SETTINGS = {
    "file no longer selected: part-1.jsonl (expected left out by *.jsonl without part-1*, found in the cache": {"exclude": ("part-1*",)},
    "text_key changed: caches of web (expected content, found text": {"text_key": "content"},
}
CODE: dict[str, tuple[str, Any]] = {
    "reader code changed: caches of web (expected documents-9": ("read_by", lambda _: "documents-9"),
    "encoder code changed: caches of web (expected end-only-1": ("ENCODER", "end-only-1"),
}
"""Bison's preprocessing was set to drop a file, and the cache still held it; a pin must not excuse such a change either."""
BREAKS = (
    *SETTINGS, *CODE, "content changed: part-1.jsonl", "pin: content changed: part-1.jsonl", "file removed: part-1.jsonl",
    "file turned away: part-2.jsonl (expected a file under the source's root, found outside the root): take it away",
    "tokenizer edited: TOKENIZER (expected the file that was written", "shard damaged: CACHE/shard-00000.bin",
    "manifest edited: CACHE/manifest.json", "half-built cache: CACHE (expected manifest.json, found ", "train cache not built: CACHE",
    "pinned cache changed: CACHE (expected dddddddddddddddd", "pinned cache missing: /nowhere/web", "too much is unreadable: ",
    "pinned to another cache: HELD_OUT (expected train cache of web, found held_out cache of web): correct the pin",
)  # fmt: skip


@dataclass
class Case:
    world: Any
    settings: dict[str, Any] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()

    def plan(self) -> DataPlan:
        sources = {name: self.world.source(name, **(self.settings if name == "web" else {})) for name in NAMES}
        return plan_data(sources, self.world.home, vocab_size=420, pins=self.pins)

    def differences(self, name: str = "web") -> list[Difference]:
        return verify_component(name, self.plan(), self.world.home)

    @property
    def file(self) -> Path:
        return self.world.sources / "web" / "part-1.jsonl"

    @property
    def cache(self) -> Path:
        return self.plan().components["web"].train.folder

    def pin(self) -> "Case":
        digest = read_manifest(self.cache).digest
        self.pins = (Pin(component="web", split="train", url=str(self.cache), digest=digest),)
        return self


@pytest.fixture
def case(prepared: Any, tmp_path: Path) -> Case:
    for part in ("tokens", "documents", "tokenizers"):
        shutil.copytree(prepared.home.root / part, tmp_path / part)
    shutil.copytree(prepared.sources, tmp_path / "sources")
    return Case(type(prepared)(Home(tmp_path), tmp_path / "sources"))


def break_cache(case: Case, expected: str, patch: pytest.MonkeyPatch) -> None:
    web, cache, tokenizer = case.plan().components["web"], case.cache, case.plan().tokenizer
    shard, manifest, built = cache / "shard-00000.bin", cache / MANIFEST_NAME, web.documents.folder / MANIFEST_NAME
    outside = case.world.sources.parent / "outside.jsonl"
    content, tally = shard.read_bytes(), read_json(built)
    breaks: dict[str, Callable[[], object]] = {
        "pin: content": lambda: edit_in_silence(case.pin().file), "content": lambda: edit_in_silence(case.file),
        "file removed": case.file.unlink, "half-built": manifest.unlink, "train cache": lambda: shutil.rmtree(cache),
        "file turned away": lambda: case.file.with_name("part-2.jsonl").symlink_to(write_lines(outside, ["more"])),
        "tokenizer": lambda: tokenizer.write_text(tokenizer.read_text() + " "),
        "shard": lambda: shard.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:]),
        "manifest": lambda: write_json(manifest, {**read_json(manifest), "documents": 7}),
        # built when half of it could be bad; the recipe has become stricter since
        "too much": lambda: write_sealed(built, {**tally, "tally": {**tally["tally"], "bad_documents": {"broken JSON": 5}}}),
    }  # fmt: skip
    if expected in SETTINGS:
        case.settings = SETTINGS[expected]
    elif expected in CODE:
        patch.setattr(verify, *CODE[expected])
    elif found := [change for start, change in breaks.items() if expected.startswith(start)]:
        found[0]()
    else:
        held_out = web.held_out.folder
        url, digest = (held_out, read_manifest(held_out).digest) if "HELD_OUT" in expected else (cache, "d" * 64)
        case.pins = (Pin(component="web", split="train", url="/nowhere/web" if "/nowhere" in expected else str(url), digest=digest),)


@pytest.mark.parametrize("expected", BREAKS)
def test_each_difference_is_named(case: Case, monkeypatch: pytest.MonkeyPatch, expected: str):
    assert case.differences() == []
    places = {"CACHE": case.cache, "TOKENIZER": case.plan().tokenizer, "HELD_OUT": case.plan().components["web"].held_out.folder}
    break_cache(case, expected, monkeypatch)
    expected = expected.removeprefix("pin: ")
    for name, place in places.items():
        expected = expected.replace(name, str(place))
    found = [str(difference) for difference in case.differences()]
    assert any(line.startswith(expected) for line in found), found
    assert len(found) == len(set(found))
    with pytest.raises(DataError, match="the token caches are not what is configured: ") as refusal:
        check_caches(NAMES, case.plan(), case.world.home)
    assert expected in str(refusal.value)


def test_a_pin_that_holds_passes_and_a_change_is_one_line_for_each_thing_that_changed(case: Case):
    assert case.pin().differences() == []
    case.pins = ()
    edit_in_silence(case.file)
    assert [difference.what for difference in case.differences()] == ["content changed", "tokenizer changed"]


def test_what_was_never_built_is_named(world: Any):
    found = verify_component("web", world.plan(), world.home)
    assert [(one.what, one.found) for one in found] == [("train cache not built", "nothing"), ("held_out cache not built", "nothing")]


def test_bytes_that_change_in_silence_are_found_where_everything_is_read(case: Case):
    plan, home = case.plan(), case.world.home
    sources = {name: case.world.source(name) for name in NAMES}
    before = read_json(home.digests)["files"]
    edit_in_silence(case.file)
    case.plan()
    now = read_json(home.digests)["files"]
    (edited,) = [path for path in now if path.endswith("web/part-1.jsonl")]
    silent = {**now, edited: [now[edited][0], *before[edited][1:]]}
    write_sealed(home.digests, {"version": 2, "files": silent})
    assert (case.plan(), case.differences()) == (plan, [])
    everything = plan_data(sources, home, vocab_size=420, digests=KnownDigests(home, reads_all=True))
    assert "content changed: part-1.jsonl" in str(verify_component("web", everything, home)[0])
    assert "content changed: part-1.jsonl" in str(case.differences()[0])
