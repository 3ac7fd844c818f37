"""The loop around the step: batches in, metrics and checkpoints out."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from phasewise.trainer.base.errors import AsksPerson, CheckpointError, DataError, ExitCode, TrainingDiverged
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.checkpoints.checkpointer import Checkpoints, check_rows
from phasewise.trainer.checkpoints.files import checkpoint_path
from phasewise.trainer.checkpoints.hand_off import state_to_start_from
from phasewise.trainer.config import Component, Execution, LossEvaluation, ModelConfig, RunConfig, sequences_between
from phasewise.trainer.data.cache import TokenCache, fetch
from phasewise.trainer.data.loader import Batch, Loader
from phasewise.trainer.data.packing import PLAIN, ComponentRows, RowRule
from phasewise.trainer.instability import Unstable, after_answer, decide
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loss import Targets
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.model.params import Params
from phasewise.trainer.process.compilation_cache import seal_new
from phasewise.trainer.process.distributed import is_first, stop_agreed
from phasewise.trainer.process.environment import note_conditions
from phasewise.trainer.process.lease import Alone, no_check
from phasewise.trainer.process.signals import stop_requests
from phasewise.trainer.process.watchdog import FIELD_OF, Watchdog
from phasewise.trainer.recorder import Recorder
from phasewise.trainer.sharding import on_mesh, parts_here, place_batch, run_mesh, state_shardings
from phasewise.trainer.skipped_steps import CONTRACT_NAME, NOTHING, SkippedSteps, read_skipped_steps
from phasewise.trainer.state import TrainState, init_state, params_digest
from phasewise.trainer.step import StepMetrics, build_objective, build_train_step

MIN_TOKENS = 2

MeanLoss = Callable[..., Float[Array, ""]]
"""Weights, tokens, the documents that they belong to, and which tokens are predicted, where not all are → nats a token."""

Evaluate = Callable[[Params, Params | None], Row]

T = TypeVar("T")

FINAL_LOSS_UPDATES = 10


class Preempted(Exception):  # not an error: the state is saved
    """A SIGTERM or Ctrl-C came; the state after the last update is saved."""

    exit_code = ExitCode.PREEMPTED


class Moves(Exception):  # not an error: the state is saved
    """The last update on this slice is done and saved; the phase goes on on another one."""

    exit_code = ExitCode.MOVES


@dataclass(frozen=True)
class Guards:
    """What a run is watched by. `check` is asked before anything is written, and raises where the folder is another trainer's.

    What replaces or deletes files is done within `alone`.
    """

    watchdog: Watchdog
    check: Callable[[], None] = no_check
    alone: Alone = nullcontext


@dataclass(frozen=True)
class Around:
    """What the updates of a run read from, and write to."""

    loader: Loader
    checkpoints: Checkpoints
    guards: Guards
    evaluate: Evaluate | None
    stop_requested: Callable[[int], bool]
    mesh: jax.sharding.Mesh | None
    shardings: TrainState | None


class _Batches:
    """The batches of a run in order, with their update's number, placed; the watchdog hears what is waited for."""

    def __init__(self, run: RunConfig, around: Around, first_step: int, passed_over: SkippedSteps) -> None:
        self._around = around
        self._steps = (step for step in range(first_step, run.last_step) if step not in passed_over)
        self._batches = timed(around.loader.batches(first_step, run.last_step, left_out=passed_over))
        self._shapes: set[tuple[int, ...]] = set()

    def __iter__(self) -> Iterator[tuple[int, Any, Any, tuple[Any, ...], float]]:
        watchdog = self._around.guards.watchdog
        for step in self._steps:
            watchdog.begin("data", step)
            batch, data_seconds = next(self._batches)
            watchdog.begin("step" if batch.tokens.shape in self._shapes else "compile", step)
            self._shapes.add(batch.tokens.shape)
            mesh = self._around.mesh
            targets = () if batch.targets is None else (place_batch(batch.targets, mesh),)
            yield step, place_batch(batch.tokens, mesh), place_batch(batch.segment_ids, mesh), targets, data_seconds


def is_due(evaluation: LossEvaluation | None, step: int, stop_step: int) -> bool:
    """Whether the weights after `step` updates are evaluated."""
    return evaluation is not None and (step % evaluation.every_steps == 0 or step == stop_step)


def read_held_out(evaluation: LossEvaluation, model: ModelConfig, rule: RowRule = PLAIN) -> dict[Component, Batch]:
    """Each component's first rows, as many as there are up to `evaluation.sequences`; of less than one row's text, all of it as one.

    Args:
        rule: how documents become rows, and which tokens are predicted, as in training.

    Raises:
        DataError: a cache is missing or damaged, is not of the held-out split, or has fewer than two tokens, or no answer to be predicted.
    """
    return {name: _first_rows(name, folder, evaluation, model, rule) for name, folder in sorted(evaluation.caches.items())}


def _first_rows(name: Component, folder: str, evaluation: LossEvaluation, model: ModelConfig, rule: RowRule) -> Batch:
    cache = TokenCache.open(folder)
    if cache.manifest.split != "held_out":
        raise DataError(f"{folder} must be a held-out cache of {name}, found the split '{cache.manifest.split}': name another folder.")
    if cache.manifest.tokens < MIN_TOKENS:
        raise DataError(
            f"{folder} must have at least {MIN_TOKENS} tokens to predict one, found {cache.manifest.tokens}: give it more text."
        )
    whole = 1 if cache.num_rows(model.seq_len) or rule.packing != "chunk" else 0
    laid = ComponentRows(cache, rule, model.seq_len if whole else cache.manifest.tokens)
    rows = np.arange(min(laid.num_rows, evaluation.sequences))
    tokens = np.empty((len(rows), laid.seq_len), np.int32)
    fetch(laid.read(rows, tokens, rows))
    targets = laid.targets(rows) if rule.chooses_targets else None
    if targets is not None and not targets.any():
        raise DataError(
            f"the held-out text of {name} must have tokens that are predicted in its first {len(rows)} rows, found none in {folder} with "
            f"packing {rule.packing} and loss_on {rule.loss_on}: give it more conversations, or raise evaluation.loss_sequences."
        )
    return Batch(tokens, cache.manifest.begin_of_text, packed=laid.segment_ids(rows), targets=targets)


def build_evaluate(
    evaluation: LossEvaluation, model: ModelConfig, execution: Execution, mesh: jax.sharding.Mesh | None = None, *, rule: RowRule = PLAIN
) -> Evaluate:
    """Evaluates weights, and their moving average where there is one, on text that is read now.

    Args:
        rule: as in `read_held_out`.

    Raises:
        DataError: as `read_held_out`.
    """
    held_out = read_held_out(evaluation, model, rule)
    mean_loss = build_mean_loss(model, execution, mesh)

    def losses(params: Params) -> dict[Component, Float[Array, ""]]:
        return {name: mean_loss(params, batch.tokens, batch.segment_ids, batch.targets) for name, batch in held_out.items()}

    def evaluate(params: Params, ema: Params | None) -> Row:
        found = losses(params), None if ema is None else losses(ema)
        of_weights, of_average = cast(tuple[dict[str, float], dict[str, float] | None], jax.device_get(found))
        row = as_row("eval_loss", of_weights)
        if of_average is not None:
            row |= as_row("ema_eval_loss", of_average)
            row["ema_gap"] = row["eval_loss"] - row["ema_eval_loss"]
        return row

    return evaluate


def build_mean_loss(model: ModelConfig, execution: Execution, mesh: jax.sharding.Mesh | None = None) -> MeanLoss:
    """Mean cross-entropy in nats a token, without z-loss; compiled once for a shape."""
    objective = build_objective(model, execution)

    def mean_loss(
        params: Params, tokens: Int[Array, "b t"], segment_ids: Int[Array, "b t"], targets: Targets | None = None
    ) -> Float[Array, ""]:
        _, sums = objective(params, tokens, segment_ids, 0.0, targets)
        return sums.cross_entropy / sums.tokens

    return jax.jit(on_mesh(mean_loss, mesh))


def as_row(name: str, losses: Mapping[Component, float]) -> Row:
    """The mean over components, each counting the same, and each by its name."""
    return {name: float(np.mean(list(losses.values()))), **{f"{name}/{component}": float(loss) for component, loss in losses.items()}}


def unwatched() -> Guards:
    """Of a run that nobody else can get at."""
    return Guards(Watchdog(dict.fromkeys(FIELD_OF), lambda doing: None))


def train(run: RunConfig, guards: Guards | None = None) -> dict[str, Any]:
    """Train one phase to its end, from wherever its folder says it is, and return the result.

    Raises:
        TrainingDiverged: the loss or the gradient norm is not finite, or the loss lies above the recipe's limit, and the phase does not
            roll back.
        AsksPerson: the same, and a person must decide whether it does.
        Preempted: the process was asked to stop; the state is saved.
        Moves: the run's `until_step` is reached, and saved.
        TakenOver: another trainer has the folder now.
    """
    guards = guards or unwatched()
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    mesh = run_mesh(run)
    if jax.process_count() == 1:
        loader = Loader(run)
    else:
        parts, of = parts_here(mesh)
        loader = Loader(run, host=parts, hosts=of)
    loader.check_targets()
    shardings = None if mesh is None else state_shardings(jax.eval_shape(lambda: init_state(run)), run.model, mesh)
    rule = RowRule(run.packing, run.loss_on)
    evaluate = build_evaluate(run.evaluation, run.model, run.execution, mesh, rule=rule) if run.evaluation else None
    written_within = partial(guards.watchdog.beside, "save")
    alone = guards.alone if is_first() else nullcontext
    with (
        _stop_requested() as stop_requested,
        Checkpoints(RunFolder(output).checkpoints, run, check=guards.check, alone=guards.alone, watch=written_within) as checkpoints,
    ):
        around = Around(loader, checkpoints, guards, evaluate, stop_requested, mesh, shardings)
        with alone():
            passed_over = after_answer(run, read_skipped_steps(output), write=is_first())
        while True:
            try:
                state = _branch(run, around, passed_over)
                break
            except Unstable as found:
                checkpoints.wait()  # a question names the one to go back to
                with alone():
                    passed_over = _rolled_back(run, found, passed_over)
        checkpoints.wait()
        if run.until_step is not None:
            raise Moves
    guards.watchdog.begin("finish")
    if is_first():
        check_rows(run, passed_over)
    return summarise(run, state, passed_over)


def _branch(run: RunConfig, around: "Around", passed_over: SkippedSteps) -> TrainState:
    checkpoints, watchdog = around.checkpoints, around.guards.watchdog
    watchdog.begin("restore")
    checkpoints.wait()
    checkpoints.forget_given_up(passed_over)
    restored = checkpoints.latest_step()
    step = run.start_step if restored is None else restored
    if not run.start_step <= step <= run.stop_step:
        raise CheckpointError(
            f"{run.output} holds a checkpoint of step {step}, and phase {run.phase} trains steps {run.start_step} → {run.stop_step}: "
            "it is of another run. Move it away, or train in another folder."
        )
    contract = _contract(around.loader, passed_over)
    if restored is None:
        state = state_to_start_from(run, around.shardings)
    else:
        state = checkpoints.restore(step, contract, around.shardings)
        if (older := checkpoints.newest_with_its_rows(step, passed_over)) != step:
            step = older
            state = checkpoints.restore(step, contract, around.shardings)
    if run.until_step is not None and step >= run.until_step:
        return state  # the life before saved it, and did not come to say so
    watchdog.begin("start", step)
    note_conditions(run, None if restored is None else step, alone=around.guards.alone)
    with Recorder(run, restored_step=step, check=around.guards.check, alone=around.guards.alone) as recorder:
        return _updates(run, state, step, around, recorder, passed_over)


def _rolled_back(run: RunConfig, found: Unstable, passed_over: SkippedSteps) -> SkippedSteps:
    try:
        return decide(run, found, passed_over, write=is_first())
    except AsksPerson:
        raise
    except TrainingDiverged as error:
        if is_first():
            append_event(run.output, "diverged", found.step, str(error))
        raise


def _contract(loader: Loader, passed_over: SkippedSteps) -> dict[str, Any]:
    return {**loader.contract(), **({CONTRACT_NAME: passed_over.as_json()} if passed_over else {})}


def _updates(
    run: RunConfig, state: TrainState, first_step: int, around: Around, recorder: Recorder, passed_over: SkippedSteps
) -> TrainState:
    train_step = build_train_step(run.model, run.optimizer, run.execution, around.mesh)
    contract = _contract(around.loader, passed_over)
    watchdog = around.guards.watchdog
    waiting: tuple[int, StepMetrics, Row] | None = None
    recorded = 0

    def record(update: tuple[int, StepMetrics, Row] | None) -> None:
        nonlocal recorded
        if update:
            watchdog.begin("step" if recorded else "first step")
            recorder.write(*update)
            recorded += 1
            watchdog.begin("step", update[0])

    for step, tokens, segment_ids, targets, data_seconds in _Batches(run, around, first_step, passed_over):
        state, measured = train_step(state, tokens, segment_ids, scheduled_at(run, step), *targets)
        record(waiting)
        waiting = (step + 1, measured, {"data_seconds": data_seconds})
        watchdog.begin("barrier")
        is_to_stop = around.stop_requested(step + 1)
        is_to_save = around.checkpoints.due(step + 1) or is_to_stop
        is_to_evaluate = around.evaluate is not None and is_due(run.evaluation, step + 1, run.stop_step)
        if not (is_to_save or is_to_evaluate):
            continue
        watchdog.begin("step" if recorded else "first step")
        jax.block_until_ready(measured.loss)
        recorder.stop_clock()
        if around.evaluate is not None and is_to_evaluate:
            watchdog.begin("evaluation")
            started = time.monotonic()
            row = around.evaluate(state.params, state.ema)
            waiting[2].update({**row, "evaluation_seconds": time.monotonic() - started})
        record(waiting)
        waiting = None
        if is_to_save:
            watchdog.begin("save")
            around.checkpoints.save(step + 1, state, contract, rows=recorder.flush())
            if is_first():
                seal_new(RunFolder.at(run.output).compilation_cache)
            if is_to_stop:
                around.checkpoints.wait()
                raise Preempted
        recorder.start_clock()
    record(waiting)
    watchdog.begin("save")
    around.checkpoints.save(run.last_step, state, contract, rows=recorder.flush())
    return state


def timed(items: Iterator[T], clock: Callable[[], float] = time.monotonic) -> Iterator[tuple[T, float]]:
    """Each item with the seconds that it was waited for."""
    asked = clock()
    for item in items:
        yield item, clock() - asked
        asked = clock()


def summarise(run: RunConfig, state: TrainState, passed_over: SkippedSteps = NOTHING) -> dict[str, Any]:
    """What `result.json` says. `final_loss` is the mean over the last 10 updates, in nats a token. What was passed over is named.

    Every process has its part in the digest; the first alone knows the rest, the others say nothing.
    """
    digest = params_digest(state.params)
    if not is_first():
        return {}
    rows = read_metrics(RunFolder.at(run.output).metrics)
    losses = [row["loss"] for row in rows][-FINAL_LOSS_UPDATES:]
    counted = [row["counted_tokens"] for row in rows if "counted_tokens" in row]
    return {
        "phase": run.phase,
        "run_digest": run.digest,
        "start_step": run.start_step,
        "stop_step": run.stop_step,
        "tokens": run.model.seq_len * (sequences_between(run.batch, run.start_step, run.stop_step) - passed_over.sequences(run)),
        **({"counted_tokens": round(sum(counted))} if counted else {}),
        "final_loss": sum(losses) / len(losses),
        "params_digest": digest,
        "checkpoint": str(checkpoint_path(run.output, run.stop_step)),
        **({CONTRACT_NAME: passed_over.as_json()} if passed_over else {}),
    }


@contextmanager
def _stop_requested() -> Iterator[Callable[[int], bool]]:
    if jax.process_count() > 1:  # jax itself takes the signal, of any of them
        yield stop_agreed
        return
    with stop_requests() as is_requested:
        yield lambda _step: is_requested()
