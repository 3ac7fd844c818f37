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
from phasewise.trainer.metrics import Row, of_the_clock, read_metrics

STEPS, SAVED_EVERY = 90, 30
PATIENCE_SECONDS = 120.0
MODEL = {
    "vocab_size": 420, "seq_len": 32, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_query_heads": 2, "num_kv_heads": 1, "head_dim": 8,
    "rope": {"theta": 10_000, "scaling": None}, "rms_norm_epsilon": 1e-5, "initializer_std": 0.02, "compute_dtype": "float32",
    "qk_norm": False, "tied_head": False, "sliding_window": None, "float32_attention": False,
}  # fmt: skip
BuildRun = Callable[..., RunConfig]
BareLife = Callable[..., Attempt]


@pytest.fixture(scope="module")
def trained_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs: they share the trainer's compilation cache."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def build_run(prepared: Any, trained_at: Path) -> BuildRun:
    """A run of a phase of that name on judged data; `peak` is its learning rate."""

    def build(phase: str, *, peak: float = 1e-2) -> RunConfig:
        caches = prepared.plan().folders("train")
        verdict = trained_at / f"verdict-of-{phase}.json"
        write_sealed(verdict, {"passes": True, "judged": {name: read_manifest(folder).digest for name, folder in caches.items()}})
        return RunConfig.model_validate(
            {
                "recipe": "tiny", "scale": "proxy", "phase": phase, "start_step": 0, "stop_step": STEPS, "seed": 0, "model": MODEL,
                "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05},
                "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": STEPS, "start": peak, "end": peak}],
                "stability": {
                    "max_grad_norm": [[0, None if peak > 1 else 1.0]], "z_loss": [[0, None]],
                    "ema_decay": [[0, None]], "max_update_rms": [[0, None]], "max_update_norm": [[0, None]], "skip_step": [[0, None]],
                },
                "batch": [[0, 2]], "mixture": [[0, {"code": 50, "law": 25, "web": 25}]],
                "order": {"seed": 0, "permutation": "linear", "block_sequences": 8},
                "checkpoints": {"every_steps": SAVED_EVERY, "every_minutes": None, "keep_all": False}, "start": None,
                "caches": {name: str(folder) for name, folder in caches.items()},
                "verdict": str(verdict), "output": str(trained_at / phase),
            }
        )  # fmt: skip

    return build


def short(run: RunConfig, steps: int = 24) -> RunConfig:
    """With batches of four, and a checkpoint after every five updates."""
    checkpoints = {"every_steps": 5, "every_minutes": None, "keep_all": False}
    return run.but(stop_step=steps, batch=[[0, 4]], checkpoints=checkpoints, learning_rate=[run.learning_rate[0].but(end_step=steps)])


def rows_of(run: RunConfig) -> list[Row]:
    rows = read_metrics(Path(run.output) / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not of_the_clock(name)} for row in rows]


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def called_as_python(folder: Path, module: str) -> Path:
    """A program that is called as `python` is, and starts a module of the tests with all arguments."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={HOUSE.parent} exec {sys.executable} -m {module} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """What is called as `python` is, and starts the stand-in for the trainer."""
    return called_as_python(tmp_path, "tests.tasks.training.stand_in")


@pytest.fixture
def bare_life(tmp_path: Path) -> BareLife:
    """An attempt of a run that nobody trains: what launchers read of it."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    fields = {"recipe": "tiny", "scale": "proxy", "phase": "bare", "digest": "d" * 64, "execution": Execution(), "until_step": None}

    def build(**changes: Any) -> Attempt:
        run: Any = SimpleNamespace(**fields, output=str(folder))
        return Attempt(run, folder / "run.json", **changes)

    return build


def pid_said_by(life: Attempt, number: int) -> int:
    """The process of a stand-in, in the newest attempt."""
    calls = sorted((life.folder / "roll-call").glob(f"*/{number}.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(calls[-1].read_text())["pid"]


def are_here(life: Attempt) -> bool:
    """Whether both stand-ins are at work."""
    return len(list((life.folder / "roll-call").glob("*/*.json"))) >= 2
