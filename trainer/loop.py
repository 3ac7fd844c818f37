"""The loop around the step: batches in, metrics, heartbeat and checkpoints out."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax

from trainer.base.errors import CheckpointError
from trainer.checkpoints.checkpointer import Checkpoints
from trainer.checkpoints.hand_off import state_to_start_from
from trainer.checkpoints.path import checkpoint_path
from trainer.config import RunConfig, sequences_between
from trainer.data.loader import Loader
from trainer.held_out_loss import Evaluate, build_evaluate, is_due
from trainer.metrics import METRICS_NAME, Row, read_metrics
from trainer.process.distributed import is_first, stop_agreed
from trainer.process.stopping import stop_requests
from trainer.process.watchdog import Watchdog, end_stalled
from trainer.recorder import Recorder
from trainer.schedule import scheduled_at
from trainer.sharding import parts_here, place_batch, run_mesh, state_shardings
from trainer.state import TrainState, init_state, params_digest
from trainer.step import StepMetrics, build_train_step

T = TypeVar("T")
FINAL_LOSS_UPDATES = 10


class Preempted(Exception):  # not an error: the state is saved
    """A SIGTERM or Ctrl-C came; the state after the last update is saved."""


def train(run: RunConfig) -> dict[str, Any]:
    """Train one phase to its end, from wherever its folder says it is, and return the result.

    Raises:
        TrainingDiverged: the loss or the gradient norm is not finite.
        Preempted: the process was asked to stop; the state is saved.
    """
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    mesh = run_mesh(run)
    loader = loader_of(run, mesh)
    contract = loader.contract()
    shardings = None if mesh is None else state_shardings(jax.eval_shape(lambda: init_state(run)), run.model, mesh)
    evaluate = build_evaluate(run.evaluation, run.model, run.execution, mesh) if run.evaluation else None
    with _stop_requested() as stop_requested, Checkpoints(output / "checkpoints", run) as checkpoints:
        restored = checkpoints.latest_step()
        step = run.start_step if restored is None else restored
        if not run.start_step <= step <= run.stop_step:
            raise CheckpointError(
                f"{output} holds a checkpoint of step {step}, and phase {run.phase} trains steps {run.start_step} → {run.stop_step}: "
                "it is of another run. Move it away, or train in another folder."
            )
        with Watchdog(run.execution.stall_seconds, end_stalled(run.phase)) as watchdog:
            state = state_to_start_from(run, shardings) if restored is None else checkpoints.restore(step, contract, shardings)
            with Recorder(run, restored_step=step) as recorder:
                around = Around(loader, checkpoints, recorder, watchdog, evaluate, stop_requested, mesh)
                state = _updates(run, state, step, around)
        checkpoints.save(run.stop_step, state, contract)
    return summarise(run, state)


def loader_of(run: RunConfig, mesh: jax.sharding.Mesh | None) -> Loader:
    """Of several processes each reads only the rows that its devices hold."""
    if jax.process_count() == 1:
        return Loader(run)
    parts, of = parts_here(mesh)
    return Loader(run, host=parts, hosts=of)


@dataclass(frozen=True)
class Around:
    """What the updates of a run read from, and write to."""

    loader: Loader
    checkpoints: Checkpoints
    recorder: Recorder
    watchdog: Watchdog
    evaluate: Evaluate | None
    stop_requested: Callable[[int], bool]
    mesh: jax.sharding.Mesh | None


def _updates(run: RunConfig, state: TrainState, first_step: int, around: Around) -> TrainState:
    """All updates from `first_step` on. Each one's metrics are fetched while the next one runs."""
    train_step = build_train_step(run.model, run.optimizer, run.execution, around.mesh)
    contract = around.loader.contract()
    waiting: tuple[int, StepMetrics, Row] | None = None

    def record(update: tuple[int, StepMetrics, Row] | None) -> None:
        if update:
            around.recorder.write(*update)
            around.watchdog.beat()

    for step, (batch, data_seconds) in enumerate(timed(around.loader.batches(first_step, run.stop_step)), start=first_step):
        rows = place_batch(batch.tokens, around.mesh), place_batch(batch.segment_ids, around.mesh)
        state, measured = train_step(state, *rows, scheduled_at(run, step))
        record(waiting)
        waiting = (step + 1, measured, {"data_seconds": data_seconds})
        is_to_stop = around.stop_requested(step + 1)
        is_due_now = around.checkpoints.due(step + 1)
        is_to_save = is_to_stop or is_due_now
        is_to_evaluate = around.evaluate is not None and is_due(run.evaluation, step + 1, run.stop_step)
        if not (is_to_save or is_to_evaluate):
            continue
        jax.block_until_ready(measured.loss)
        around.recorder.stop_clock()
        if around.evaluate is not None and is_to_evaluate:
            waiting[2].update(_evaluated(around.evaluate, state))
        record(waiting)
        waiting = None
        if is_to_save:
            around.checkpoints.save(step + 1, state, contract)
            if is_to_stop:
                raise Preempted
        around.recorder.start_clock()
    record(waiting)
    return state


def _evaluated(evaluate: Evaluate, state: TrainState) -> Row:
    started = time.monotonic()
    row = evaluate(state.params, state.ema)
    return {**row, "evaluation_seconds": time.monotonic() - started}


def timed(items: Iterator[T], clock: Callable[[], float] = time.monotonic) -> Iterator[tuple[T, float]]:
    """Each item with the seconds that it was waited for."""
    asked = clock()
    for item in items:
        yield item, clock() - asked
        asked = clock()


def summarise(run: RunConfig, state: TrainState) -> dict[str, Any]:
    """What `result.json` says. `final_loss` is the mean over the last 10 updates, in nats a token.

    Every process has its part in the digest; the first alone knows the rest, the others say nothing.
    """
    digest = params_digest(state.params)
    if not is_first():
        return {}
    losses = [row["loss"] for row in read_metrics(Path(run.output) / METRICS_NAME)][-FINAL_LOSS_UPDATES:]
    return {
        "phase": run.phase,
        "run_digest": run.digest,
        "start_step": run.start_step,
        "stop_step": run.stop_step,
        "tokens": run.model.seq_len * sequences_between(run.batch, run.start_step, run.stop_step),
        "final_loss": sum(losses) / len(losses),
        "params_digest": digest,
        "checkpoint": str(checkpoint_path(run.output, run.stop_step)),
    }


@contextmanager
def _stop_requested() -> Iterator[Callable[[int], bool]]:
    """Whether to stop after a step, because that was asked for since; several processes agree on the step."""
    if jax.process_count() > 1:  # jax itself takes the signal, of any of them
        yield stop_agreed
        return
    with stop_requests() as is_requested:
        yield lambda _step: is_requested()
