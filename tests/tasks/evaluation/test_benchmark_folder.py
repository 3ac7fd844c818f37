import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from phasewise.flows.recipes.benchmarks import MADE_BENCHMARKS
from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.made_benchmarks import benchmark_items, read_benchmark_folder, write_benchmarks
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import read_sealed, write_sealed

HeldOut = Mapping[str, Sequence[HeldOutDocument]]


@pytest.fixture
def copied(benchmarks: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(benchmarks, tmp_path / "copied"))


def test_the_same_documents_write_the_same_files_anywhere(benchmarks: Path, tmp_path: Path, held_out_texts: HeldOut) -> None:
    again = write_benchmarks(tmp_path / "again", held_out_texts)
    other = write_benchmarks(tmp_path / "other", {"code": held_out_texts["code"]})
    assert again == read_benchmark_folder(benchmarks)
    assert again.digest != other.digest
    for file in benchmarks.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
        assert str(tmp_path.parent).encode() not in file.read_bytes()


def test_every_item_is_named_for_the_leakage_search(benchmarks: Path, held_out_texts: HeldOut) -> None:
    manifest = read_benchmark_folder(benchmarks)
    items = benchmark_items(benchmarks)
    assert [(benchmark.name, benchmark.items) for benchmark in manifest.benchmarks] == [
        (name, sum(item.benchmark == name for item in items)) for name in ("word_order", "next_word")
    ]
    everything = "\n".join(document.text for documents in held_out_texts.values() for document in documents)
    assert all(item.text in everything for item in items)
    assert len({item.id for item in items}) == len(items)


def test_all_of_a_folder_have_its_digest(benchmarks: Path) -> None:
    """An evaluation of both is the one of before subsets could be named."""
    whole = read_benchmark_folder(benchmarks)
    assert whole.only(("next_word", "word_order")).digest == whole.digest
    assert [benchmark.name for benchmark in whole.only(("next_word",)).benchmarks] == ["next_word"]
    assert len({whole.digest, whole.only(("next_word",)).digest, whole.only(("word_order",)).digest}) == 3
    with pytest.raises(DataError, match="bananas are not made here"):
        whole.only(("bananas", "next_word"))


def test_the_names_that_a_recipe_can_name_are_those_that_are_made(benchmarks: Path) -> None:
    assert tuple(benchmark.name for benchmark in read_benchmark_folder(benchmarks).benchmarks) == MADE_BENCHMARKS


def test_a_folder_without_a_manifest_is_refused(copied: Path) -> None:
    (copied / "manifest.json").unlink()
    with pytest.raises(DataError, match="holds no benchmarks"):
        read_benchmark_folder(copied)


@pytest.mark.parametrize("name", ["word_order.jsonl", "next_word.yaml"])
def test_a_changed_or_missing_file_is_refused(name: str, copied: Path) -> None:
    (copied / name).write_bytes((copied / name).read_bytes() + b"\n")
    with pytest.raises(DataError, match=rf"{name} was changed after it was written: expected the digest \w+, found \w+"):
        benchmark_items(copied)
    (copied / name).unlink()
    with pytest.raises(DataError, match="found nothing"):
        read_benchmark_folder(copied)


@pytest.mark.parametrize("content", ["{", '{"format_version": 1}', "[]"])
def test_a_broken_manifest_is_refused(content: str, copied: Path) -> None:
    (copied / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="is not a manifest of benchmarks"):
        read_benchmark_folder(copied)


def test_another_format_version_is_refused(copied: Path) -> None:
    write_sealed(copied / "manifest.json", {**read_sealed(copied / "manifest.json"), "format_version": 99})
    with pytest.raises(DataError, match="format version 99"):
        read_benchmark_folder(copied)
