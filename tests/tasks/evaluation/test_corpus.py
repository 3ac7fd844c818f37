"""A folder of text as subsets: what is read, what is counted, and what is refused. Nothing may change a value unseen."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phasewise.tasks.evaluation.corpus_fit import Corpus, Document, SubsetText
from phasewise.trainer.base.errors import ConfigError, DataError

TEXTS = ["one little text\n", "and another — with a dash\n"]


def lines_of(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({key: text}) + "\n" for text in texts).encode()


def read(folder: Path, text_key: str = "text") -> tuple[list[Document], dict[str, SubsetText]]:
    corpus = Corpus(folder, text_key=text_key)
    return list(corpus.documents()), corpus.subsets


def one(folder: Path) -> SubsetText:
    [subset] = read(folder)[1].values()
    return subset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A subset of each format, and a folder as one."""
    root = tmp_path / "corpus"
    (root / "books" / "old").mkdir(parents=True)
    (root / "plain.txt").write_text(TEXTS[0])
    (root / "notes.md").write_text(TEXTS[1])
    (root / "rows.jsonl").write_bytes(lines_of(TEXTS))
    (root / "packed.jsonl.gz").write_bytes(gzip.compress(lines_of(TEXTS)))
    pq.write_table(pa.table({"text": TEXTS}), root / "table.parquet")
    (root / "books" / "a.txt").write_text("a book\n")
    (root / "books" / "old" / "b.jsonl").write_bytes(lines_of(["another book\n"]))
    return root


def test_each_file_and_each_folder_is_a_subset(folder: Path) -> None:
    documents, subsets = read(folder)
    texts = {name: [document.text for document in documents if document.subset == name] for name in subsets}
    assert texts == {
        "books": ["a book\n", "another book\n"],
        "notes.md": [TEXTS[1]],
        "packed.jsonl.gz": TEXTS,
        "plain.txt": [TEXTS[0]],
        "rows.jsonl": TEXTS,
        "table.parquet": TEXTS,
    }
    assert {name: (found.files, found.documents) for name, found in subsets.items()}["books"] == (2, 2)
    assert all(found.text_bytes == sum(len(text.encode()) for text in texts[name]) for name, found in subsets.items())
    assert subsets["rows.jsonl"].text_digest == subsets["table.parquet"].text_digest != subsets["notes.md"].text_digest
    assert {name: found.copies for name, found in subsets.items()} == {
        "books": 0, "notes.md": 0, "packed.jsonl.gz": 1, "plain.txt": 1, "rows.jsonl": 2, "table.parquet": 2
    }  # fmt: skip


def test_one_file_is_a_subset(folder: Path) -> None:
    assert one(folder / "plain.txt").documents == 1


def test_another_key_is_looked_for_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines_of(TEXTS, "body"))
    with pytest.raises(DataError, match=r"a\.jsonl, byte 0: missing key .*--text-key names another"):
        read(tmp_path)
    assert [document.text for document in read(tmp_path, "body")[0]] == TEXTS


def test_a_file_that_is_added_changed_or_copied_is_seen(tmp_path: Path) -> None:
    subset = tmp_path / "corpus" / "subset"
    subset.mkdir(parents=True)
    (subset / "a.txt").write_text("some text")
    before = one(subset.parent)
    (subset / "b.txt").write_text("some text")
    copied = one(subset.parent)
    assert (copied.files, copied.documents, copied.copies, copied.text_bytes) == (2, 2, 1, 18)
    assert copied.text_digest != before.text_digest
    (subset / "b.txt").write_text("same text")
    assert one(subset.parent).copies == 0
    assert len({before.text_digest, copied.text_digest, one(subset.parent).text_digest}) == 3
    (subset / "b.txt").rename(subset / "0.txt")
    renamed = one(subset.parent)
    (subset / "0.txt").rename(subset / "b.txt")
    assert renamed.text_digest == one(subset.parent).text_digest, "names and order change no text"


@pytest.mark.parametrize(
    ("content", "normalized"),
    [
        (b"caf\xc3\xa9\nbar\n", 0),
        (b"\xef\xbb\xbfcaf\xc3\xa9\nbar\n", 0),  # the reader takes a byte order mark for a signature
        (b"caf\xc3\xa9\r\nbar\r\n", 1),
        (b"cafe\xcc\x81\nbar\n", 1),
    ],
    ids=["plain", "byte order mark", "line ends of Windows", "decomposed"],
)
def test_one_text_is_one_text_however_it_is_written(tmp_path: Path, content: bytes, normalized: int) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    [document], subsets = read(tmp_path)
    found = subsets["a.txt"]
    assert (document.text, found.text_bytes, found.normalized) == ("café\nbar\n", 10, normalized)


def test_empty_documents_are_counted_and_not_measured(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines_of(["", "some text", " \n\t"]))
    found = one(tmp_path)
    assert (found.documents, found.empty_documents, found.text_bytes) == (1, 2, 9)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"caf\xe9 au lait", r"a\.txt, file: not UTF-8"),
        ("a.txt", b"", r"every subset must have text, found none in .*a\.txt \(1 empty"),
        ("a.txt", "wide".encode("utf-16"), r"a\.txt, file: other format .*UTF-16"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "broken\n', r"a\.jsonl, byte 17: broken JSON"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": 3}\n', r"a\.jsonl, byte 17: wrong type"),
        ("a.jsonl", b'{"text": "half \\ud800"}\n', r"a\.jsonl, byte 0: half a surrogate pair"),
        ("a.json", b'[\n {"text": "a list"}\n]\n', r"a\.json, file: other format .*one JSON array"),
        ("a.parquet", b"PAR1 and no table", r"a\.parquet, file: "),
        ("a.jsonl.gz", gzip.compress(lines_of(TEXTS))[:-12], r"a\.jsonl\.gz, file: truncated"),
        ("a.txt", b" \n", r"every subset must have text, found none in .*a\.txt \(1 empty"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / "0.txt").write_text("a text that can be read")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        read(tmp_path)


def test_a_file_of_an_ending_that_no_reader_takes_is_refused_before_anything_is_read(folder: Path) -> None:
    (folder / "books" / "c.pdf").write_bytes(b"%PDF-1.7")
    (folder / "LICENCE").write_text("text, but who knows")
    with pytest.raises(DataError, match=r"must end in \.txt.*found LICENCE, books/c\.pdf"):
        Corpus(folder)


def test_links_that_lead_nowhere_or_out_of_the_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "gone.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"gone\.txt \(broken link\)"):
        Corpus(folder)
    (tmp_path / "gone.txt").write_text("elsewhere")
    with pytest.raises(DataError, match=r"gone\.txt \(outside the root\)"):
        Corpus(folder)


def test_hidden_files_are_counted_and_not_read(folder: Path) -> None:
    (folder / ".notes.txt").write_text("hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("hidden")
    assert Corpus(folder).hidden == 2
    assert ".notes.txt" not in Corpus(folder).subsets


def test_no_folder_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none at"):
        Corpus(tmp_path / "nowhere")
    with pytest.raises(DataError, match="must hold a file"):
        Corpus(tmp_path)
