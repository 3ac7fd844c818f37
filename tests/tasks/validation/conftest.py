"""Made word problems as a benchmark on disk, and their index."""

import json
from pathlib import Path

import pytest

from experiments.leakage_recall.made_items import made_items
from phasewise.tasks.validation.scan_pieces import index_of_folder
from phasewise.validations.evidence.leakage.items import BenchmarkItem

BENCHMARK = "made-math"


@pytest.fixture(scope="session")
def word_problems() -> list[BenchmarkItem]:
    return [item for item in made_items(60, seed=4) if item.benchmark == BENCHMARK]


@pytest.fixture(scope="session")
def benchmarks(word_problems: list[BenchmarkItem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    rows = ({"id": item.id, "question": item.question, "answer": item.solutions[0]} for item in word_problems)
    (folder / BENCHMARK).mkdir()
    (folder / BENCHMARK / "test.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def index(benchmarks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_of_folder(str(benchmarks), tmp_path_factory.mktemp("indexes"))
