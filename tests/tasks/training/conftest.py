"""Runs of a tiny model on the caches that all tests share, and what launchers are tried with."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phasewise.tasks.training.launchers import Attempt
from phasewise.trainer.base.identity import HOUSE, write_sealed
from phasewise.trainer.config import Execution, RunConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.metrics import OF_THE_CLOCK, Row, read_metrics
from tests.tasks.conftest import tiny_run

STEPS, SAVED_EVERY = 90, 30
PATIENCE_SECONDS = 120.0
BuildRun = Callable[..., RunConfig]
BareLife = Callable[..., Attempt]


@pytest.fixture(scope="module")
def trained_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs: they share the trainer's compilation cache."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def build_run(prepared: Any, trained_at: Path) -> BuildRun:
    def build(phase: str, **changes: object) -> RunConfig:
        caches = prepared.plan().folders("train")
        verdict = trained_at / f"verdict-of-{phase}.json"
        write_sealed(verdict, {"passes": True, "judged": {name: read_manifest(folder).digest for name, folder in caches.items()}})
        checkpoints = {"every_steps": SAVED_EVERY, "every_minutes": None, "keep_all": False}
        return tiny_run(phase, STEPS, caches, verdict, trained_at / phase, checkpoints=checkpoints, **changes)

    return build


def short(run: RunConfig, steps: int = 24) -> RunConfig:
    checkpoints = {"every_steps": 5, "every_minutes": None, "keep_all": False}
    return run.but(stop_step=steps, batch=[[0, 4]], checkpoints=checkpoints, learning_rate=[run.learning_rate[0].but(end_step=steps)])


def rows_of(run: RunConfig) -> list[Row]:
    rows = read_metrics(Path(run.output) / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in OF_THE_CLOCK} for row in rows]


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def called_as_python(folder: Path, module: str) -> Path:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={HOUSE.parent} exec {sys.executable} -m {module} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    return called_as_python(tmp_path, "tests.tasks.training.stand_in")


@pytest.fixture
def bare_life(tmp_path: Path) -> BareLife:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    fields = {"recipe": "tiny", "scale": "proxy", "phase": "bare", "digest": "d" * 64, "execution": Execution(), "until_step": None}

    def build(**changes: Any) -> Attempt:
        run: Any = SimpleNamespace(**fields, output=str(folder))
        return Attempt(run, folder / "run.json", **changes)

    return build


def pid_said_by(life: Attempt, number: int) -> int:
    calls = sorted((life.folder / "roll-call").glob(f"*/{number}.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(calls[-1].read_text())["pid"]


def are_here(life: Attempt) -> bool:
    return len(list((life.folder / "roll-call").glob("*/*.json"))) >= 2
