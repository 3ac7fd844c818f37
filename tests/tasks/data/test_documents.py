"""From files to documents: what is read, what is dropped, what is held out, what is refused."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.data import documents
from tasks.data.documents import HELD_OUT_ONE_IN, normalize, read_documents, read_texts, split_of, write_documents
from tasks.data.source import Source, fingerprint
from trainer.data.manifest import MANIFEST_NAME, SourceFile
from trainer.errors import DataError
from trainer.storage import digest_of_bytes, read_json

TEXTS = ["One line.", 'Two lines\nand a "quote".', "Grüße, 日本語, 🌳"]


def source(folder: Path, file_format: str = "jsonl", text_key: str = "text") -> Source:
    return Source.model_validate(
        {"url": folder.as_uri(), "include": ("*",), "exclude": (), "format": file_format, "text_key": text_key}
    )  # fmt: skip


def lines(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({key: text, "id": 7}) + "\n" for text in texts).encode()


def component(folder: Path, texts: list[str], name: str = "a.jsonl") -> tuple[Source, tuple[SourceFile, ...]]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(lines(texts))
    return source(folder), fingerprint(source(folder))


def write(folder: Path, texts: list[str], out: Path) -> dict[str, str]:
    """Document → split, as written."""
    write_documents("web", *component(folder, texts), out)
    return {str(id): split for split in ("train", "held_out") for id in read_documents(out, split)["id"].to_pylist()}


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.json.xz", lzma.compress)])
def test_json_lines_are_read_by_name(tmp_path: Path, name: str, pack):  # pyright: ignore[reportMissingParameterType]  # bytes → bytes
    (tmp_path / name).write_bytes(pack(lines(TEXTS, key="content")))
    assert list(read_texts(source(tmp_path, text_key="content"), (tmp_path / name).as_uri())) == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl.zstd"])
def test_zstandard_is_read_by_name(tmp_path: Path, name: str):
    import zstandard

    (tmp_path / name).write_bytes(zstandard.compress(lines(TEXTS)))
    assert list(read_texts(source(tmp_path), (tmp_path / name).as_uri())) == TEXTS


def test_parquet_is_read_in_order(tmp_path: Path):
    texts = [f"Document {number}." for number in range(3000)]
    pq.write_table(pa.table({"content": texts, "id": range(3000)}), tmp_path / "a.parquet", row_group_size=1000)
    assert list(read_texts(source(tmp_path, "parquet", "content"), (tmp_path / "a.parquet").as_uri())) == texts


def test_empty_lines_are_no_documents(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b"\n" + lines(["x"]) + b"   \n" + lines(["y"]).rstrip())
    assert list(read_texts(source(tmp_path), (tmp_path / "a.jsonl").as_uri())) == ["x", "y"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"text": "cut', "expected a JSON object with a field 'text'"),
        (b'{"content": "x"}', "expected a JSON object with a field 'text'"),
        (b'["text"]', "expected a JSON object with a field 'text'"),
        (b"3", "expected a JSON object with a field 'text'"),
        (b'{"text": 3}', "must be a text, found int"),
        (b'{"text": null}', "must be a text, found NoneType"),
        (b'{"text": ["x"]}', "must be a text, found list"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, found: str):
    (tmp_path / "a.jsonl").write_bytes(lines(["x"]) + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=found) as refusal:
        list(read_texts(source(tmp_path), (tmp_path / "a.jsonl").as_uri()))
    assert f"{(tmp_path / 'a.jsonl').as_uri()}, line 3" in str(refusal.value)


@given(st.text())
def test_normalized_text_is_normal(text: str):
    assert normalize(normalize(text)) == normalize(text)
    assert "\r" not in normalize(text)


def test_forms_of_one_text_are_one():
    assert normalize("cafe\u0301\r\nx\ry") == "café\nx\ny"


def test_the_split_is_the_digests_alone():
    digests = [digest_of_bytes(str(number).encode()) for number in range(8000)]
    held_out = sum(split_of(digest) == "held_out" for digest in digests)
    assert abs(held_out / len(digests) - 1 / HELD_OUT_ONE_IN) < 0.01
    assert split_of("00000010" + "f" * 56) == "held_out"
    assert split_of("00000011" + "0" * 56) == "train"


def test_another_document_moves_none(tmp_path: Path):
    texts = [f"Document number {number} of many." for number in range(120)]
    before = write(tmp_path / "a", texts, tmp_path / "before")
    after = write(tmp_path / "b", ["A new one at the start.", *reversed(texts), "And one at the end."], tmp_path / "after")
    assert len(after) == len(before) + 2
    assert {id: after[id] for id in before} == before


def test_copies_are_dropped_and_counted_and_blanks_are_no_documents(tmp_path: Path):
    texts = [f"Document number {number}\nof many." for number in range(60)]
    copies = [texts[3], texts[5].replace("\n", "\r\n"), texts[3]]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.jsonl").write_bytes(lines([*copies, "  \n", ""]))
    manifest = write_documents("web", *component(tmp_path / "b", texts), tmp_path / "out")
    rows = [row for split in ("train", "held_out") for row in read_documents(tmp_path / "out", split).to_pylist()]
    assert (manifest.train + manifest.held_out, manifest.copies) == (60, 3)
    assert sorted(row["text"] for row in rows) == sorted(texts)
    assert all(row["id"] == digest_of_bytes(row["text"].encode()) and row["source_file"].endswith("a.jsonl") for row in rows)


def test_documents_keep_the_order_of_files_and_lines(tmp_path: Path):
    texts = [f"Document number {number}." for number in range(60)]
    write(tmp_path / "a", texts, tmp_path / "out")
    train = read_documents(tmp_path / "out", "train")["text"].to_pylist()
    assert train == [text for text in texts if split_of(digest_of_bytes(text.encode())) == "train"]


@pytest.mark.parametrize(("texts", "found"), [([], "0 documents"), (["one"], "1 documents"), (["a", "b", "a", " "], "2 documents")])
def test_an_empty_split_is_refused(tmp_path: Path, texts: list[str], found: str):
    with pytest.raises(DataError, match=f"component web: {found} in 1 files leave .* held out; both need at least one"):
        write(tmp_path / "a", texts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: object):
        raise KeyboardInterrupt

    wanted, files = component(tmp_path / "a", [f"Document number {number}." for number in range(60)])
    with monkeypatch.context() as patch:
        patch.setattr(documents, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            write_documents("web", wanted, files, tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()
    manifest = write_documents("web", wanted, files, tmp_path / "out")
    assert read_json(tmp_path / "out" / MANIFEST_NAME) == manifest.model_dump(mode="json")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {MANIFEST_NAME, "documents.parquet"}


@pytest.mark.parametrize(
    "content",
    [b'{"text": "caf\xe9"}\n', b'{"text": "half of a pair: \\ud83c"}\n', gzip.compress(b'{"text": "x"}\n')],
    ids=["Latin-1", "lone surrogate", "gzip without its name"],
)
def test_what_is_no_utf8_is_refused_by_name(tmp_path: Path, content: bytes):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jsonl"):
        write_documents("web", source(tmp_path), fingerprint(source(tmp_path)), tmp_path / "out")


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array(["x", None]), None], ids=["numbers", "a null", "no such column"])
def test_parquet_without_texts_is_refused_by_name(tmp_path: Path, column: pa.Array | None):
    folder = tmp_path / "a"
    folder.mkdir()
    pq.write_table(pa.table({"other": [1, 2]} if column is None else {"text": column}), folder / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet"):
        write_documents("web", source(folder, "parquet"), fingerprint(source(folder, "parquet")), tmp_path / "out")
