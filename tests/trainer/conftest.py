"""A small world for the trainer: token caches written by hand, a tiny model, a run over them, and the trainer as a process."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import settings

from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Execution, ModelConfig, Optimizer, Rope, RunConfig
from phasewise.trainer.metrics import ALL_GROUPS, OF_THE_CLOCK, Row, read_metrics
from phasewise.trainer.step import TrainStep
from phasewise.trainer.step import build_train_step as build
from tests.compilation import compile_from_now_on
from tests.trainer.token_caches import BEGIN, END, write_passing_verdict, write_token_cache

Alike = tuple[str, str, str, jax.sharding.Mesh | None]
_built: dict[Alike, TrainStep] = {}


class Metric(NamedTuple):
    """A row of the table in `docs/reference/metrics.md`."""

    name: str
    unit: str
    what: str
    when: str


METRICS_PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
_ROWS = [line.strip("| ").split("|") for line in METRICS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
TABLE = [Metric(row[0].strip(" `"), *(cell.strip() for cell in (*row[1:], "")[:3])) for row in _ROWS]


def metric_of(name: str) -> Metric | None:
    words = {"GROUP": "|".join(ALL_GROUPS), "WEIGHT": "[a-z_]+", "LAYER": r"\d+", "EXPERT": r"\d+", "COMPONENT": ".+"}
    for metric in TABLE:
        parts = re.split("(GROUP|WEIGHT|LAYER|EXPERT|COMPONENT)", metric.name)
        if re.fullmatch("".join(f"({words[part]})" if part in words else re.escape(part) for part in parts), name):
            return metric
    return None


def build_train_step(
    model: ModelConfig, optimizer: Optimizer, execution: Execution | None = None, mesh: jax.sharding.Mesh | None = None
) -> TrainStep:
    """As `trainer.step` builds it. All that is built from is in the key."""
    execution = execution or Execution()
    key = (model.model_dump_json(), optimizer.model_dump_json(), execution.model_dump_json(), mesh)
    if key not in _built:
        _built[key] = build(model, optimizer, execution, mesh)
    return _built[key]


os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

VOCAB_SIZE = 256
SEQ_LEN = 32

settings.register_profile("trainer", derandomize=True, deadline=None, database=None)
settings.load_profile("trainer")

MakeRun = Callable[..., RunConfig]
StartTrainer = Callable[..., "subprocess.Popen[bytes]"]
WaitUntil = Callable[["subprocess.Popen[bytes]", Callable[[], bool]], None]
RowsOf = Callable[[RunConfig], list[Row]]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(home: Path) -> Iterator[None]:
    """What is compiled here runs for milliseconds: XLA's optimisations, which take seconds, are left out, and processes share the rest."""
    compile_from_now_on(quickly=True)
    changes = {"jax_compilation_cache_dir": str(home / "compilation-cache"), "jax_persistent_cache_min_compile_time_secs": 0.5}
    before = {name: jax.config.values[name] for name in changes}
    for name, value in changes.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def built_once() -> Iterator[None]:
    """For files that train many runs here: those that are alike share the compiled update."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("phasewise.trainer.loop", "tests.trainer.poisoned"):
            patch.setattr(f"{place}.build_train_step", build_train_step)
        yield


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    """Two layers, two query heads a kv head, float32."""
    return ModelConfig(
        vocab_size=VOCAB_SIZE, seq_len=SEQ_LEN, num_layers=2, d_model=32, d_ff=48, num_query_heads=4, num_kv_heads=2, head_dim=8,
        rope=Rope(theta=10_000.0, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.02, compute_dtype="float32", qk_norm=False,
        tied_head=False, sliding_window=None, float32_attention=False,
    )  # fmt: skip


def write_documents(seed: int, count: int) -> list[np.ndarray]:
    """Documents with begin and end tokens; each token is its predecessor plus a constant of the seed: something to learn."""
    rng = np.random.default_rng(seed)
    stride = int(rng.integers(1, 20))
    documents: list[np.ndarray] = []
    for length in rng.integers(5, 60, count):
        body = (int(rng.integers(2, VOCAB_SIZE)) + stride * np.arange(length)) % (VOCAB_SIZE - 2) + 2
        documents.append(np.array([BEGIN, *body, END], np.uint16))
    return documents


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three components of two shards each; rows lie across the boundary between them. Nobody writes to these."""
    home = tmp_path_factory.mktemp("tokens")
    return {
        name: write_token_cache(home / name, [write_documents(2 * seed, count), write_documents(2 * seed + 1, count // 2)])
        for seed, (name, count) in enumerate({"books": 60, "code": 40, "web": 30}.items())
    }


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs, so that they share the compilation cache beside them. Each test names its own run."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def make_run(home: Path, model: ModelConfig, caches: Mapping[str, Path]) -> MakeRun:
    """A run of 24 steps in which batch, mixture, z-loss and learning rate all change, with an EMA; its data are judged and pass.

    Its folder has its name, and where another file of tests has a run of that name, its own file's, too.
    """
    owners: dict[str, str] = {}

    def make(name: str, **changes: Any) -> RunConfig:
        file = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
        folder = home / (name if owners.setdefault(name, file) == file else f"{name} of {Path(file).stem}")
        values: dict[str, Any] = {
            "recipe": "tiny", "scale": "proxy", "phase": name, "start_step": 0, "stop_step": 24, "seed": 7, "model": model, "start": None,
            "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
            "learning_rate": [
                {"kind": "linear", "start_step": 0, "end_step": 6, "start": 0.0, "end": 3e-3},
                {"kind": "cosine", "start_step": 6, "end_step": 24, "start": 3e-3, "end": 3e-4},
            ],
            "stability": {
                "max_grad_norm": [[0, 1.0]], "z_loss": [[0, None], [16, 1e-4]], "ema_decay": [[0, 0.9]], "max_update_rms": [[0, None]],
                "max_update_norm": [[0, None]], "skip_step": [[0, None]],
            },
            "batch": [[0, 4], [10, 8]],
            "mixture": [[0, {"books": 60, "code": 40}], [14, {"books": 30, "code": 30, "web": 40}]],
            "order": {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True},
            "checkpoints": {"every_steps": 3, "every_minutes": None, "keep_all": False},
            "caches": {component: str(folder) for component, folder in caches.items()},
            "verdict": str(folder / "verdict.json"), "output": str(folder),
        }  # fmt: skip
        run = RunConfig.model_validate({**values, **changes})
        write_passing_verdict(run)
        return run

    return make


@pytest.fixture(scope="module")
def start_trainer() -> Iterator[StartTrainer]:
    """Starts `python -m phasewise.trainer RUN.json` as a process; whatever still runs at the end is killed. What it says
    goes to `trainer.log`.

    With `hang` it is one that hangs at a place of `tests.trainer.hanging`.
    """
    with ExitStack() as stack:

        def start(run: RunConfig, *arguments: str, stdin: int = subprocess.DEVNULL, hang: str = "") -> "subprocess.Popen[bytes]":
            path = Path(run.output) / "run.json"
            write_json(path, run.model_dump(mode="json"))
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
            program = ["tests.trainer.hanging", hang] if hang else ["phasewise.trainer"]
            command = [sys.executable, "-m", *program, str(path), *arguments]
            with open(path.with_name("trainer.log"), "wb") as log:
                process = subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, env=environment)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    """Waits for a condition that the process brings about; that it ends first fails the test."""

    def wait(process: "subprocess.Popen[bytes]", holds: Callable[[], bool]) -> None:
        while not holds():
            try:
                process.wait(0.001)
            except subprocess.TimeoutExpired:
                continue
            assert holds(), f"the trainer ended first, with {process.returncode}"

    return wait


@pytest.fixture(scope="session")
def rows_of() -> RowsOf:
    """The rows of a run's metrics without the wall times, which differ between two runs."""

    def rows(run: RunConfig) -> list[Row]:
        found = read_metrics(Path(run.output) / "metrics.jsonl")
        return [{name: value for name, value in row.items() if name not in OF_THE_CLOCK} for row in found]

    return rows
