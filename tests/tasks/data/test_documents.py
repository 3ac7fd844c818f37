"""From files to documents: what is read, what is dropped, what is held out, what is refused, what is gone on with."""

import json
from pathlib import Path

import pytest

from phasewise.tasks.data import documents, parts
from phasewise.tasks.data.documents import QUARANTINE_NAME, check_readable, read_documents_manifest, split_texts, tally_of
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.parts import HELD_OUT_ONE_IN, bundles_of, part_bytes, read_to_parts, split_of
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.manifest import MANIFEST_NAME, SourceFile
from tests.tasks.data.builds import bundles, write_documents

TEXTS = [f"Document number {number}\nof many." for number in range(60)]


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "id": 7}) + "\n" for text in texts).encode()


def component(folder: Path, *files: list[str], max_bad_fraction: float = 0.0) -> Source:
    folder.mkdir(exist_ok=True)
    for number, texts in enumerate(files):
        (folder / f"{number}.jsonl").write_bytes(lines(texts))
    return Source(url=folder.as_uri(), include=("*",), format="jsonl", max_bad_fraction=max_bad_fraction)


def splits(folder: Path) -> dict[str, str]:
    """Text → split, as written."""
    return {text: split for split in ("train", "held_out") for text in split_texts(folder, split)}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_split_is_the_digests_alone():
    digests = [digest_of_bytes(str(number).encode()) for number in range(8000)]
    held_out = sum(split_of(digest) == "held_out" for digest in digests)
    assert abs(held_out / len(digests) - 1 / HELD_OUT_ONE_IN) < 0.01
    assert split_of("00000010" + "f" * 56) == "held_out"
    assert split_of("00000011" + "0" * 56) == "train"


def test_another_document_moves_none(tmp_path: Path):
    write_documents(component(tmp_path / "a", TEXTS), tmp_path / "before")
    write_documents(component(tmp_path / "b", ["A new one.", *reversed(TEXTS), "And one more."]), tmp_path / "after")
    before = splits(tmp_path / "before")
    after = splits(tmp_path / "after")
    assert len(after) == len(before) + 2
    assert {text: after[text] for text in before} == before


def test_copies_are_dropped_and_counted_and_blanks_are_no_documents(tmp_path: Path):
    copies = [TEXTS[3], TEXTS[5].replace("\n", "\r\n"), TEXTS[3]]
    manifest = write_documents(component(tmp_path / "a", TEXTS, [*copies, "  \n", ""]), tmp_path / "out")
    assert manifest.train + manifest.held_out == 60
    assert manifest.copies == (0, 3)
    assert manifest.tally.left_out["empty text"] == 2
    assert sorted(splits(tmp_path / "out")) == sorted(TEXTS)


def test_documents_keep_the_order_of_files_and_lines(tmp_path: Path):
    write_documents(component(tmp_path / "a", TEXTS[:40], TEXTS[40:]), tmp_path / "out", max_part_bytes=300)
    assert list(split_texts(tmp_path / "out", "train")) == [t for t in TEXTS if split_of(digest_of_bytes(t.encode())) == "train"]
    assert len(read_documents_manifest(tmp_path / "out").parts) > 1


@pytest.mark.parametrize(("texts", "found"), [(["one"], "1 documents"), (["a", "b", "a", " "], "2 documents")])
def test_an_empty_split_is_refused(tmp_path: Path, texts: list[str], found: str):
    with pytest.raises(DataError, match=f"component web: {found} in 1 files leave .* held out; both need at least one"):
        write_documents(component(tmp_path / "a", texts), tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


def test_a_killed_build_goes_on_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed in the second piece: the first is not read again, and what the kill left is cleared away."""
    source = component(tmp_path / "a", TEXTS[:40], TEXTS[40:])
    write_documents(source, tmp_path / "whole")

    def killed(*_: object):
        raise KeyboardInterrupt

    first, second = bundles(source, fingerprint(source))
    read_to_parts(first, 1 << 20, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_model", killed)
        with pytest.raises(KeyboardInterrupt):
            read_to_parts(second, 1 << 20, tmp_path / "out")
    (tmp_path / "out" / ".part-00001-0000.parquet.abc").write_bytes(b"half")
    (tmp_path / "out" / "part-00001-0007.parquet").write_bytes(b"of another time")
    finished = (tmp_path / "out" / "bundle-00000.json").stat().st_mtime_ns
    write_documents(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert (tmp_path / "out" / "bundle-00000.json").stat().st_mtime_ns == finished


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: object):
        raise KeyboardInterrupt

    source = component(tmp_path / "a", TEXTS)
    with monkeypatch.context() as patch:
        patch.setattr(documents, "write_model", killed)
        with pytest.raises(KeyboardInterrupt):
            write_documents(source, tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()
    assert write_documents(source, tmp_path / "out") == read_documents_manifest(tmp_path / "out")


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


def test_a_link_that_leads_out_counts_as_a_bad_file(tmp_path: Path):
    (tmp_path / "secret.jsonl").write_bytes(lines(["secret"]))
    source = component(tmp_path / "a", TEXTS)
    (tmp_path / "a" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    manifest = write_documents(source, tmp_path / "out")
    assert manifest.tally.bad_fraction == 0.5
    assert "secret" not in splits(tmp_path / "out")


@pytest.mark.parametrize(("size", "expected"), [(0, 4 << 20), (64 << 30, 256 << 20), (640 << 20, 10 << 20)])
def test_parts_are_neither_too_many_nor_too_large(size: int, expected: int):
    assert part_bytes([SourceFile(name="a", size_bytes=size, digest="")]) == expected


@pytest.mark.parametrize("name", ["part-00000-0000.parquet", "copies.bin"])
def test_a_file_that_was_changed_is_refused(tmp_path: Path, name: str):
    write_documents(component(tmp_path / "a", TEXTS, TEXTS[:3]), tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"Delete .*/out and prepare the data again"):
        list(split_texts(tmp_path / "out", "train"))


@pytest.mark.parametrize("name", ["manifest.json", "bundle-00000.json"])
def test_a_record_that_does_not_read_is_refused_by_name(tmp_path: Path, name: str):
    source = component(tmp_path / "a", TEXTS)
    write_documents(source, tmp_path / "out")
    (tmp_path / "out" / name).write_text("{")
    with pytest.raises(DataError, match=rf"{name} does not read .*Delete .*/out and prepare the data again"):
        read_documents_manifest(tmp_path / "out") if name == "manifest.json" else write_documents(source, tmp_path / "out")


def test_small_files_are_read_together_and_large_ones_apart():
    def sized(*sizes: int) -> list[list[str]]:
        files = tuple(SourceFile(name=str(number), size_bytes=size, digest="") for number, size in enumerate(sizes))
        source = Source(url="/nowhere", include=("*",), format="parquet")
        return [[piece.name for piece in bundle.pieces] for bundle in bundles_of("web", source, files)]

    assert sized(*[1000] * 50) == [[str(number) for number in range(50)]]
    assert sized(5 << 20, 1000, 1000, 5 << 20, 3 << 20, 2 << 20) == [["0"], ["1", "2"], ["3"], ["4"], ["5"]]
