"""The corpus, what an undisturbed build makes of it, and processes that end with their test."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.survival.data.corpus import write_corpus
from experiments.survival.data.kill_matrix import build_undisturbed
from experiments.survival.data.processes import Processes, processes


@dataclass(frozen=True)
class Undisturbed:
    home: Path
    contents: dict[str, str]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    found = build_undisturbed(folder, corpus)
    return Undisturbed(folder / "home", found)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path / "processes") as found:
        yield found
