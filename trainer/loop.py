"""The loop around the step: batches in, metrics, heartbeat and checkpoints out."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import jax

from trainer.checkpoint import Checkpoints, state_to_start_from
from trainer.checkpoint_path import checkpoint_path
from trainer.config import RunConfig, sequences_between
from trainer.data.loader import Loader
from trainer.errors import CheckpointError, TrainingDiverged
from trainer.metrics import METRICS_NAME, PARAM_GROUPS, MetricsFile, Row, read_metrics
from trainer.schedule import learning_rate_at
from trainer.state import TrainState, params_digest
from trainer.step import Scheduled, StepMetrics, build_train_step

T = TypeVar("T")
FINAL_LOSS_UPDATES = 10
HEARTBEAT_SECONDS = 1.0


class Preempted(Exception):  # not an error: the state is saved
    """A SIGTERM came; the state after the last update is saved."""


@dataclass
class Clock:
    """When the last checkpoint and the last heartbeat were."""

    started: float = field(default_factory=time.monotonic)
    saved: float = field(default_factory=time.monotonic)
    beat: float = -math.inf


def train(run: RunConfig) -> dict[str, Any]:
    """Train one phase to its end, from wherever its folder says it is, and return the result.

    Raises:
        TrainingDiverged: the loss or the gradient norm is not finite.
        Preempted: the process was asked to stop; the state is saved.
    """
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    loader = Loader(run)
    contract = loader.contract()
    with Checkpoints(output / "checkpoints", run.checkpoints) as checkpoints, stop_requests() as stop_requested:
        restored = checkpoints.latest_step()
        step = run.start_step if restored is None else restored
        if not run.start_step <= step <= run.stop_step:
            raise CheckpointError(
                f"{output} holds a checkpoint of step {step}, and phase {run.phase} trains steps {run.start_step} → {run.stop_step}: "
                "it is of another run. Move it away, or train in another folder."
            )
        state = state_to_start_from(run) if restored is None else checkpoints.restore(step, run, contract)
        metrics = MetricsFile(output / METRICS_NAME, restored_step=step)
        try:
            state = _updates(run, state, step, loader, checkpoints, metrics, stop_requested)
        finally:
            metrics.close()
        checkpoints.save(run.stop_step, state, contract)
    return summarise(run, state)


def _updates(
    run: RunConfig,
    state: TrainState,
    first_step: int,
    loader: Loader,
    checkpoints: Checkpoints,
    metrics: MetricsFile,
    stop_requested: Callable[[], bool],
) -> TrainState:
    """All updates from `first_step` on. Each one's metrics are fetched while the next one runs."""
    train_step, clock, contract = build_train_step(run.model, run.optimizer), Clock(), loader.contract()
    waiting: tuple[int, Scheduled, StepMetrics, Row] | None = None
    for step, (batch, data_seconds) in enumerate(timed(loader.batches(first_step, run.stop_step)), start=first_step):
        scheduled = scheduled_at(run, step)
        state, measured = train_step(state, batch.tokens, scheduled)
        if waiting:
            _record(run, metrics, clock, *waiting)
        drawn = {"tokens": batch.tokens.size, "mixture_since": mixture_since(run, step), "data_seconds": data_seconds}
        waiting = (step + 1, scheduled, measured, drawn)
        if stop_requested() or due(run, step + 1, clock):
            _record(run, metrics, clock, *waiting)
            waiting = None
            checkpoints.save(step + 1, state, contract)
            clock.saved = time.monotonic()
            if stop_requested():
                raise Preempted
    if waiting:
        _record(run, metrics, clock, *waiting)
    return state


def scheduled_at(run: RunConfig, step: int) -> Scheduled:
    """The scheduled values of update number `step`, with the neutral value for what is off."""
    max_grad_norm = run.stability.max_grad_norm.at(step)
    return Scheduled(
        learning_rate=learning_rate_at(run.learning_rate, step),
        z_loss=run.stability.z_loss.at(step) or 0.0,
        max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
        ema_decay=run.stability.ema_decay.at(step) or 0.0,
    )


def mixture_since(run: RunConfig, step: int) -> int:
    """The step from which the mixture of update number `step` holds."""
    starts = [start for start, _ in run.mixture.root]
    return max([start for start in starts if start <= step], default=starts[0])


def timed(items: Iterator[T], clock: Callable[[], float] = time.monotonic) -> Iterator[tuple[T, float]]:
    """Each item with the seconds that it was waited for."""
    asked = clock()
    for item in items:
        yield item, clock() - asked
        asked = clock()


def due(run: RunConfig, step: int, clock: Clock) -> bool:
    """Whether the state after `step` updates is to be saved."""
    minutes = run.checkpoints.every_minutes
    return step % run.checkpoints.every_steps == 0 or (minutes is not None and time.monotonic() - clock.saved >= 60 * minutes)


def summarise(run: RunConfig, state: TrainState) -> dict[str, Any]:
    """What `result.json` says. `final_loss` is the mean over the last 10 updates, in nats a token."""
    losses = [row["loss"] for row in read_metrics(Path(run.output) / METRICS_NAME)][-FINAL_LOSS_UPDATES:]
    return {
        "phase": run.phase,
        "run_digest": run.digest,
        "start_step": run.start_step,
        "stop_step": run.stop_step,
        "tokens": run.model.seq_len * sequences_between(run.batch, run.start_step, run.stop_step),
        "final_loss": sum(losses) / len(losses),
        "params_digest": params_digest(state.params),
        "checkpoint": str(checkpoint_path(run.output, run.stop_step)),
    }


def values_of(measured: StepMetrics) -> dict[str, float]:
    """The measurements under their names in `metrics.jsonl`, fetched in one go."""
    fetched: dict[str, Any] = jax.device_get(measured)._asdict()
    values: dict[str, float] = {}
    for name, value in fetched.items():
        if name.endswith("_norms"):
            values |= {f"{name[:-1]}/{group}": float(norm) for group, norm in zip(PARAM_GROUPS, value, strict=True)}
        elif value is not None:
            values[name] = float(value)
    return values


def _record(run: RunConfig, metrics: MetricsFile, clock: Clock, step: int, scheduled: Scheduled, measured: StepMetrics, drawn: Row) -> None:
    """Write one row, beat, and stop where the numbers are no numbers."""
    values = values_of(measured)
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    scheduled_values = {"learning_rate": scheduled.learning_rate, "z_loss": scheduled.z_loss}
    metrics.append({"step": step, **finite, **scheduled_values, **drawn, "seconds": time.monotonic() - clock.started})
    if time.monotonic() - clock.beat >= HEARTBEAT_SECONDS:
        (Path(run.output) / "heartbeat").touch()
        clock.beat = time.monotonic()
    for name in ("loss", "grad_norm", "param_norm"):
        if not math.isfinite(values[name]):
            raise TrainingDiverged(
                f"phase {run.phase}: {name} is {values[name]} at step {step}. The last checkpoint before it is kept in {run.output}."
            )


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether a SIGTERM has come since."""
    requested: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        requested.append(number)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: bool(requested)
    finally:
        signal.signal(signal.SIGTERM, before)
