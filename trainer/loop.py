"""The loop around the train step: batches in, metrics and checkpoints out."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np
from jaxtyping import Array, Float

from phasewise.trainer.base.errors import AsksPerson, CheckpointError, DataError, ExitCode, TrainingDiverged
from phasewise.trainer.base.run_folder import METRICS_NAME, RunFolder, append_event
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.state import state_to_start_from
from phasewise.trainer.config import Component, Execution, LossEvaluation, ModelConfig, RunConfig, sequences_between
from phasewise.trainer.data.cache import TokenCache, fetch
from phasewise.trainer.data.loader import Batch, Loader
from phasewise.trainer.data.packing import PLAIN, ComponentRows, RowRule
from phasewise.trainer.forecast import LossBand, band_of
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loss import Targets
from phasewise.trainer.metrics import Row, read_metrics, whole_through
from phasewise.trainer.model.params import Params
from phasewise.trainer.process.child_process import stop_requests
from phasewise.trainer.process.compilation_cache import seal_new
from phasewise.trainer.process.distributed import is_first, stop_agreed
from phasewise.trainer.process.environment import note_conditions
from phasewise.trainer.process.watchdog import FIELD_OF, Alone, Watchdog
from phasewise.trainer.recorder import Recorder
from phasewise.trainer.sharding import on_mesh, parts_here, place_batch, run_mesh, state_shardings
from phasewise.trainer.skipped_steps import CONTRACT_NAME, SkippedSteps, Unstable, after_answer, decide, read_skipped_steps
from phasewise.trainer.step import StepMetrics, TrainState, build_objective, build_train_step, init_state, params_digest

MIN_TOKENS = 2
FINAL_LOSS_UPDATES = 10
Evaluate = Callable[[Params, Params | None], Row]


class Preempted(Exception):
    """After SIGTERM or Ctrl-C: the state of the last update is saved."""

    exit_code = ExitCode.PREEMPTED


class Moves(Exception):
    """After the last update on this slice: the state is saved, and the phase resumes on another slice."""

    exit_code = ExitCode.MOVES


@dataclass(frozen=True)
class Guards:
    """Supervision of a run. `check` runs before every write and raises `TakenOver`. `alone` guards replacement and deletion of files."""

    watchdog: Watchdog
    check: Callable[[], None] = lambda: None
    alone: Alone = nullcontext


def read_held_out(evaluation: LossEvaluation, model: ModelConfig, rule: RowRule = PLAIN) -> dict[Component, Batch]:
    """Read up to `evaluation.sequences` first rows of each component. A text shorter than one row is one short row.

    Raises DataError if a cache is missing, damaged or not held out, or has no token to predict.
    """
    found: dict[Component, Batch] = {}
    for name, folder in sorted(evaluation.caches.items()):
        cache = TokenCache.open(folder)
        manifest = cache.manifest
        if manifest.split != "held_out":
            raise DataError(f"{folder} must be a held-out cache of {name}, found the split '{manifest.split}': name another folder.")
        if manifest.tokens < MIN_TOKENS:
            raise DataError(f"{folder} must have at least {MIN_TOKENS} tokens to predict one, found {manifest.tokens}: give it more text.")
        has_whole_row = cache.num_rows(model.seq_len) or rule.packing != "chunk"
        laid = ComponentRows(cache, rule, model.seq_len if has_whole_row else manifest.tokens)
        rows = np.arange(min(laid.num_rows, evaluation.sequences))
        tokens = np.empty((len(rows), laid.seq_len), np.int32)
        fetch(laid.read(rows, tokens, rows))
        targets = laid.targets(rows) if rule != PLAIN else None
        if targets is not None and not targets.any():
            raise DataError(
                f"the held-out text of {name} must have tokens that are predicted in its first {len(rows)} rows, found none in {folder} "
                f"with packing {rule.packing} and loss_on {rule.loss_on}: give it more conversations, or raise evaluation.loss_sequences."
            )
        packed = laid.segment_ids(rows)
        found[name] = Batch(tokens, manifest.begin_of_text, packed=packed, targets=targets, end_of_text=manifest.end_of_text)
    return found


def build_evaluate(
    evaluation: LossEvaluation, model: ModelConfig, execution: Execution, mesh: jax.sharding.Mesh | None = None, *, rule: RowRule = PLAIN
) -> Evaluate:
    """Build the evaluation of weights and of their moving average on held-out text, which is read immediately (`read_held_out`)."""
    held_out = read_held_out(evaluation, model, rule)
    objective = build_objective(model, execution)

    def mean_loss(params: Params, tokens: Array, segment_ids: Array, targets: Targets | None) -> Float[Array, ""]:
        _, sums = objective(params, tokens, segment_ids, 0.0, targets)
        return sums.cross_entropy / sums.tokens

    compiled = jax.jit(on_mesh(mean_loss, mesh))
    own: dict[str, np.ndarray] | None = None
    if evaluation.own_text:
        try:
            own = dict(np.load(evaluation.own_text))  # the archive checks the bytes of each array
        except (OSError, ValueError, BadZipFile) as error:
            raise DataError(f"{evaluation.own_text}: expected rows of own text, found a damaged file: {error}. Delete it.") from None

    def evaluate(params: Params, ema: Params | None) -> Row:
        losses = [
            {name: compiled(weights, batch.tokens, batch.segment_ids, batch.targets) for name, batch in held_out.items()}
            for weights in (params, ema)
            if weights is not None
        ]
        measured: list[dict[Component, Any]] = jax.device_get(losses)
        row: Row = {}
        for name, by_component in zip(("eval_loss", "ema_eval_loss"), measured, strict=False):
            row[name] = float(np.mean(list(by_component.values())))
            row |= {f"{name}/{component}": float(loss) for component, loss in by_component.items()}
        if ema is not None:
            row["ema_gap"] = row["eval_loss"] - row["ema_eval_loss"]
        if own is not None:
            predicted, text_bytes = own["predicted"], own["text_bytes"]
            segments = np.ones_like(own["tokens"])
            means = [compiled(params, *one) for one in zip(own["tokens"], segments, predicted, strict=True)]
            bits = np.array(jax.device_get(means)) * predicted.sum(axis=(1, 2)) / np.log(2)
            row["own_text_bits_per_byte"] = float(np.mean(bits / text_bytes))
            row["own_text_bits_per_byte_micro"] = float(bits.sum() / text_bytes.sum())
            row |= {f"own_text_bits_per_byte/{name}": float(one) for name, one in zip(own["names"], bits / text_bytes, strict=True)}
        return row

    return evaluate


def train(run: RunConfig, guards: Guards | None = None) -> dict[str, Any]:
    """Train one phase to its end from the newest state in its folder, and return the result.

    Raises:
        TrainingDiverged: the loss or a norm is not finite, or the loss is above the limit, and the phase does not roll back.
        AsksPerson: a person must decide about the roll-back.
        Preempted: the state is saved after SIGTERM.
        Moves: the run's `until_step` is reached and saved.
        TakenOver: another trainer owns the folder.
    """
    guards = guards or Guards(Watchdog(dict.fromkeys(FIELD_OF), lambda doing: None))
    folder = RunFolder(Path(run.output))
    folder.path.mkdir(parents=True, exist_ok=True)
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
    alone = guards.alone if is_first() else nullcontext
    watch = partial(guards.watchdog.beside, "save")
    with (
        # jax receives the signal in any of several processes
        nullcontext() if jax.process_count() > 1 else stop_requests() as is_requested,
        Checkpoints(folder.checkpoints, run, check=guards.check, alone=guards.alone, watch=watch) as checkpoints,
    ):
        training = _Training(run, guards, loader, checkpoints, evaluate, is_requested, mesh, shardings, band_of(run))
        with alone():
            skipped = after_answer(run, read_skipped_steps(folder.path), write=is_first())
        while True:
            try:
                state = training.train_branch(skipped)
                break
            except Unstable as found:
                checkpoints.wait()  # a question to a person names the checkpoint to return to
                with alone():
                    try:
                        skipped = decide(run, found, skipped, write=is_first())
                        if found.forecast:
                            training = replace(training, band=None)
                    except TrainingDiverged as error:
                        if is_first() and not isinstance(error, AsksPerson):
                            append_event(run.output, "diverged", found.step, str(error))
                        raise
        checkpoints.wait()
        if run.until_step is not None:
            raise Moves
    guards.watchdog.begin("finish")
    digest = params_digest(state.params)  # a collective: every process takes part
    return _summarise(run, digest, skipped) if is_first() else {}


@dataclass(frozen=True)
class _Training:
    run: RunConfig
    guards: Guards
    loader: Loader
    checkpoints: Checkpoints
    evaluate: Evaluate | None
    is_stop_requested: Callable[[], bool] | None  # None if several processes must agree
    mesh: jax.sharding.Mesh | None
    shardings: TrainState | None
    band: LossBand | None

    def train_branch(self, skipped: SkippedSteps) -> TrainState:
        """Train from the newest valid checkpoint to the end. Raises Unstable if an update must be rejected."""
        run, checkpoints, watchdog = self.run, self.checkpoints, self.guards.watchdog
        watchdog.begin("restore")
        checkpoints.wait()
        checkpoints.forget_given_up(skipped)
        restored = checkpoints.latest_step()
        step = run.start_step if restored is None else restored
        if not run.start_step <= step <= run.stop_step:
            raise CheckpointError(
                f"{run.output} holds a checkpoint of step {step}, and phase {run.phase} trains steps {run.start_step} → {run.stop_step}: "
                "it is of another run. Move it away, or train in another folder."
            )
        contract = {**self.loader.contract(), **({CONTRACT_NAME: skipped.as_json()} if skipped else {})}
        if restored is None:
            state = state_to_start_from(run, self.shardings)
        else:
            state = checkpoints.restore(step, contract, self.shardings)
            if (older := checkpoints.newest_with_its_rows(step, skipped)) != step:
                step = older
                state = checkpoints.restore(step, contract, self.shardings)
        if run.until_step is not None and step >= run.until_step:
            return state  # an earlier attempt saved the state and died before its end
        watchdog.begin("start", step)
        note_conditions(run, None if restored is None else step, alone=self.guards.alone)
        with Recorder(run, restored_step=step, band=self.band, check=self.guards.check, alone=self.guards.alone) as recorder:
            return self._update(state, step, skipped, recorder, contract)

    def _update(
        self, state: TrainState, first_step: int, skipped: SkippedSteps, recorder: Recorder, contract: dict[str, Any]
    ) -> TrainState:
        run, mesh, watchdog, checkpoints = self.run, self.mesh, self.guards.watchdog, self.checkpoints
        train_step = build_train_step(run.model, run.optimizer, run.execution, mesh)
        batches = self.loader.batches(first_step, run.last_step, left_out=skipped)
        shapes: set[tuple[int, ...]] = set()
        waiting: tuple[int, StepMetrics, Row] | None = None
        recorded = 0

        def record(update: tuple[int, StepMetrics, Row] | None) -> None:
            nonlocal recorded
            if update:
                watchdog.begin("step" if recorded else "first step")
                recorder.write(*update)
                recorded += 1
                watchdog.begin("step", update[0])

        for step in range(first_step, run.last_step):
            if step in skipped:
                continue
            watchdog.begin("data", step)
            started = time.monotonic()
            batch = next(batches)
            data_seconds = time.monotonic() - started
            watchdog.begin("step" if batch.tokens.shape in shapes else "compile", step)
            shapes.add(batch.tokens.shape)
            targets = () if batch.targets is None else (place_batch(batch.targets, mesh),)
            tokens, segment_ids = place_batch(batch.tokens, mesh), place_batch(batch.segment_ids, mesh)
            state, measured = train_step(state, tokens, segment_ids, scheduled_at(run, step), *targets)
            record(waiting)
            waiting = (step + 1, measured, {"data_seconds": data_seconds})
            watchdog.begin("barrier")
            is_to_stop = stop_agreed(step + 1) if self.is_stop_requested is None else self.is_stop_requested()
            is_to_save = checkpoints.due(step + 1) or is_to_stop
            every = run.evaluation.every_steps if run.evaluation else None
            is_to_evaluate = every is not None and ((step + 1) % every == 0 or step + 1 == run.stop_step)
            if not (is_to_save or is_to_evaluate):
                continue
            watchdog.begin("step" if recorded else "first step")
            jax.block_until_ready(measured.loss)
            with recorder.stopped_clock():
                if self.evaluate is not None and is_to_evaluate:
                    watchdog.begin("evaluation")
                    started = time.monotonic()
                    row = self.evaluate(state.params, state.ema)
                    waiting[2].update({**row, "evaluation_seconds": time.monotonic() - started})
                record(waiting)
                waiting = None
                if is_to_save:
                    watchdog.begin("save")
                    checkpoints.save(step + 1, state, contract, rows=recorder.flush())
                    if is_first():
                        seal_new(RunFolder(run.output).compilation_cache)
                    if is_to_stop:
                        checkpoints.wait()
                        raise Preempted
        record(waiting)
        watchdog.begin("save")
        checkpoints.save(run.last_step, state, contract, rows=recorder.flush())
        return state


def _summarise(run: RunConfig, digest: str, skipped: SkippedSteps) -> dict[str, Any]:
    """The content of `result.json`. `final_loss` is the mean over the last 10 updates, in nats a token."""
    rows = read_metrics(RunFolder(run.output).metrics)
    reached = whole_through(rows, run.start_step, skipped)
    if reached != run.stop_step:
        raise CheckpointError(
            f"{run.output}/{METRICS_NAME}: expected a row of each step up to {run.stop_step}, found no readable row of step {reached + 1}. "
            "Start the run again: it resumes from a checkpoint with all rows."
        )
    losses = [row["loss"] for row in rows][-FINAL_LOSS_UPDATES:]
    counted = [row["counted_tokens"] for row in rows if "counted_tokens" in row]
    return {
        "phase": run.phase,
        "run_digest": run.digest,
        "start_step": run.start_step,
        "stop_step": run.stop_step,
        "tokens": run.model.seq_len * (sequences_between(run.batch, run.start_step, run.stop_step) - skipped.sequences(run)),
        **({"counted_tokens": round(sum(counted))} if counted else {}),
        "final_loss": sum(losses) / len(losses),
        "params_digest": digest,
        "checkpoint": str(RunFolder(run.output).checkpoint(run.stop_step)),
        **({CONTRACT_NAME: skipped.as_json()} if skipped else {}),
    }
