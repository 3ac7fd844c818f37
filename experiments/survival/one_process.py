"""A tiny phase in one process: the real launcher and trainer, faults at file operations, and checks of the result."""

import contextlib
import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import phasewise.trainer.loop
import phasewise.trainer.run
from experiments.survival.file_faults import Faults, Killed, installed
from phasewise.tasks.training import attempts
from phasewise.tasks.training.launchers import Attempt
from phasewise.trainer.base.run_folder import METRICS_NAME, RunFolder
from phasewise.trainer.base.storage import is_locked, read_json
from phasewise.trainer.checkpoints.files import find_damage
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.metrics import OF_THE_CLOCK, Row, read_metrics
from phasewise.trainer.process import watchdog
from phasewise.trainer.run import main
from phasewise.trainer.sharding import run_mesh
from phasewise.trainer.skipped_steps import SkippedSteps, Window
from phasewise.trainer.step import build_train_step, init_state, params_digest
from tests.trainer.poisoned import poison
from tests.trainer.token_caches import write_passing_verdict, write_token_cache

STOP_STEP, SAVE_EVERY, POISON = 8, 2, 4
VARIANTS = ("plain", "another mixture", "rolls back")
PASSED_OVER = {"rolls back": SkippedSteps((Window(4, 5),))}
MESHES = (1, 2)
SECOND_MESH = {"replica": 1, "fsdp": 2, "tensor": 1, "expert": 1}
RECOVERY = {"action": "roll_back", "max_loss": None, "checkpoints_back": 1, "steps_more": 0, "max_times": 2}
TOLERANCE = 1e-3
MODEL = {
    "vocab_size": 64, "seq_len": 8, "num_layers": 1, "d_model": 8, "d_ff": 8, "num_query_heads": 2, "num_kv_heads": 1, "head_dim": 4,
    "rope": {"theta": 10_000, "scaling": None}, "rms_norm_epsilon": 1e-5, "initializer_std": 0.02, "compute_dtype": "float32",
    "qk_norm": False, "tied_head": False, "sliding_window": None, "float32_attention": False,
}  # fmt: skip


class Cancelled(BaseException):
    """A cancelled flow run."""


class World:
    """The folder of a run and its caches."""

    def __init__(self, root: Path, caches: dict[str, Path], originals: dict[str, Path] | None = None) -> None:
        self.root, self.caches = root, caches
        self.originals = originals or caches
        self.folder = root / "run"
        self.faults = Faults(self.folder)
        self.whole_dies = True

    def run(self, variant: str, mesh: int) -> RunConfig:
        shares = {"a": 50, "b": 50} if variant != "another mixture" else {"a": 25, "b": 75}
        off: Any = [[0, None]]
        return RunConfig.model_validate(
            {
                "recipe": "tiny", "scale": "proxy", "phase": "phase", "start_step": 0, "stop_step": STOP_STEP, "seed": 1, "model": MODEL,
                "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05},
                "learning_rate": [{"kind": "linear", "start_step": 0, "end_step": STOP_STEP, "start": 1e-2, "end": 1e-3}],
                "stability": {
                    "max_grad_norm": [[0, 1.0]], "z_loss": off, "ema_decay": [[0, 0.9]], "max_update_rms": off, "max_update_norm": off,
                    "skip_step": off,
                },
                "batch": [[0, 2], [6, 4]], "mixture": [[0, shares]],
                "order": {"seed": 3, "permutation": "feistel", "block_sequences": 4, "cut_blocks": True},
                "checkpoints": {"every_steps": SAVE_EVERY, "every_minutes": None, "keep_all": False},
                "recovery": RECOVERY if variant == "rolls back" else None,
                "start": None, "caches": {name: str(folder) for name, folder in self.caches.items()},
                "cache_digests": {name: name for name in self.caches},
                "verdict": str(self.root / "verdict.json"), "output": str(self.folder),
                "execution": {"mesh": SECOND_MESH} if mesh == 2 else {},
            }
        )  # fmt: skip

    def judge(self) -> None:
        """A verdict that passes."""
        write_passing_verdict(self.run("plain", 1))

    def launch(self, variant: str, mesh: int) -> dict[str, Any]:
        """The launcher, whose trainers live in this process."""
        run = self.run(variant, mesh)
        said = io.StringIO()

        def words(*_: Any) -> str | None:
            lines = [line for line in said.getvalue().splitlines() if line.startswith("trainer: ")]
            return lines[-1].removeprefix("trainer: ") if lines else None

        def attempt(_launcher: Any, one: Attempt, _on_rows: Any, check: Callable[[], None]) -> int:
            try:
                with contextlib.redirect_stderr(said):
                    code = main([str(one.run_file)])
            except Killed:
                if self.whole_dies:
                    raise
                self.faults.disarm()
                return -signal.SIGKILL
            check()
            return code

        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(attempts, "start_and_monitor", attempt)
            patch.setattr(attempts, "last_words", words)  # the messages are in `said`, not in a log
            patch.setattr(attempts, "BACKOFF_SECONDS", 0.0)
            patch.setattr(phasewise.trainer.run, "heartbeat", lambda *_, **__: nullcontext())
            patch.setattr(phasewise.trainer.loop, "build_train_step", lambda *_: step_of(self, variant, mesh))
            return attempts.launch_trainer(run, lambda rows: None, self.check)

    def check(self) -> None:
        """The launcher's check, which runs here after every attempt."""

    def is_held(self) -> bool:
        """Whether a trainer holds the folder."""
        return is_locked(self.folder / watchdog.LOCK_NAME)

    def second(self, *, is_first_alive: bool) -> int:
        """Run a second trainer in the folder while the first trainer runs."""
        with pytest.MonkeyPatch.context() as patch:
            beats = iter(range(10**9))
            patch.setattr(watchdog, "signature", lambda _: (next(beats), 0) if is_first_alive else (0, 0))
            patch.setattr(watchdog, "SILENT_SECONDS", 60.0 if is_first_alive else -1.0)
            patch.setattr(watchdog, "LOOK_SECONDS", 0.0)
            return main([str(self.folder / "run.json")])


@cache
def _compiled(world_caches: tuple[tuple[str, str], ...], variant: str, mesh: int) -> Any:
    """Compile the step once for every world."""
    world = World(Path("/nowhere"), {name: Path(folder) for name, folder in world_caches})
    run = world.run(variant, mesh)
    build = poison(run, (POISON,)) if variant == "rolls back" else build_train_step
    return build(run.model, run.optimizer, run.execution, run_mesh(run))


def step_of(world: World, variant: str, mesh: int) -> Any:
    """The train step of a variant on a mesh."""
    return _compiled(tuple((name, str(folder)) for name, folder in world.originals.items()), variant, mesh)


class Expected:
    """Results of an undisturbed run. On one device a plain loop must give the same weights."""

    def __init__(self, root: Path, caches: dict[str, Path]) -> None:
        self._root, self._caches = root, caches
        self._found: dict[tuple[str, int], dict[str, Any]] = {}

    def of(self, variant: str, mesh: int) -> dict[str, Any]:
        """Digest of the weights, and the rows."""
        key = (variant, mesh)
        if key not in self._found:
            world = World(self._root / f"{variant} {mesh}", self._caches)
            world.judge()
            result = world.launch(variant, mesh)
            self._found[key] = {"params_digest": result["params_digest"], "rows": rows_of(world.folder)}
            if mesh == 1:
                assert result["params_digest"] == plain_loop(world.run(variant, 1), variant)
        return self._found[key]


def plain_loop(run: RunConfig, variant: str) -> str:
    """The weights, without the trainer's loop, recorder and checkpoints."""
    state, step, loader = init_state(run), build_train_step(run.model, run.optimizer, run.execution), Loader(run)
    for update in range(run.stop_step):
        if update not in PASSED_OVER.get(variant, SkippedSteps()):
            batch = loader.batch(update)
            state, _ = step(state, batch.tokens, batch.segment_ids, scheduled_at(run, update))
    return params_digest(state.params)


def rows_of(folder: Path) -> list[Row]:
    """The rows without the clock's values."""
    return [{name: value for name, value in row.items() if name not in OF_THE_CLOCK} for row in read_metrics(folder / METRICS_NAME)]


def check_result(world: World, variant: str, meshes: set[int], result: dict[str, Any], expected: Expected) -> None:
    """Check a finished run: equal bits on one mesh, equal batches on two meshes, every step once."""
    run, rows = world.run(variant, 1), rows_of(world.folder)
    wanted = expected.of(variant, min(meshes))
    assert [row["step"] for row in rows] == [row["step"] for row in wanted["rows"]], "each step once"
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in wanted["rows"]]
    assert result["run_digest"] == run.digest
    assert result.get("passed_over", []) == PASSED_OVER.get(variant, SkippedSteps()).as_json()
    if len(meshes) == 1:
        assert rows == wanted["rows"]
        assert result["params_digest"] == wanted["params_digest"], "the same bits"
    else:
        losses = np.array([[row["loss"], other["loss"]] for row, other in zip(rows, wanted["rows"], strict=True)])
        assert np.abs(losses[:, 0] - losses[:, 1]).max() < TOLERANCE, "the same batches"
    assert find_damage(RunFolder(world.folder).checkpoint(STOP_STEP)) is None
    assert read_json(world.folder / "result.json")["params_digest"] == result["params_digest"]


def write_caches(root: Path) -> dict[str, Path]:
    """Two components of two shards each."""
    random = np.random.default_rng(0)

    def documents() -> list[np.ndarray]:
        return [np.array([0, *random.integers(2, 64, 9), 1], np.uint16) for _ in range(20)]

    return {name: write_token_cache(root / name, [documents(), documents()]) for name in ("a", "b")}


@contextmanager
def world_in(root: Path, caches: dict[str, Path]) -> Iterator[World]:
    """A fresh world with copies of the caches and injected faults."""
    for path in root.glob("*"):  # keep compiled programs
        if path.name != "compilation-cache":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    copied = {name: Path(shutil.copytree(folder, root / "tokens" / name)) for name, folder in caches.items()}
    world = World(root, copied, caches)
    world.judge()
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore a signal that arrives between two trainers
    try:
        with installed(world.faults):
            yield world
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    """SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


def set_up_jax() -> None:
    """Compile without optimisations."""
    jax.config.update("jax_disable_most_optimizations", True)
