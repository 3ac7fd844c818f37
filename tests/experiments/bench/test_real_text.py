"""The text that benchmarks run on."""

import gzip
from pathlib import Path

import orjson
import pytest

from experiments.bench.real_text import real_texts, write_json_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two texts, one of them three times, a text that is too short, and one that is not UTF-8."""
    (tmp_path / "a").mkdir()
    for name in ("one.py", "same.py", "a/same.py"):
        (tmp_path / name).write_text("x = 1\n" * 100)
    (tmp_path / "a" / "METADATA").write_text("Name: two\n" * 100)
    (tmp_path / "short.py").write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n" * 100)
    return tmp_path


def test_each_text_comes_once_until_there_is_no_other(folder: Path):
    assert sorted(real_texts(1600, folder)) == ["Name: two\n" * 100, "x = 1\n" * 100]


def test_more_than_there_is_comes_in_copies_that_differ(folder: Path):
    texts = list(real_texts(5000, folder))
    assert len(set(texts)) == len(texts) == 7
    assert {text.split("\n", 1)[1] for text in texts[2:]} == set(texts[:2])


def test_a_folder_without_text_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no Python file"):
        next(real_texts(1, tmp_path))


def test_json_lines_hold_the_asked_amount_over_all_files(tmp_path: Path):
    write_json_lines(tmp_path / "out", 4_000_000, num_files=4, packed=True)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["text-000.jsonl", "text-001.jsonl.gz", "text-002.jsonl", "text-003.jsonl.gz"]
    sizes = [_text_bytes(tmp_path / "out" / name) for name in names]
    assert 4_000_000 <= sum(sizes) < 4_200_000
    assert min(sizes) > 0


def _text_bytes(path: Path) -> int:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return sum(len(orjson.loads(line)["text"].encode()) for line in content.splitlines())
