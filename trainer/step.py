"""One update: pure maths, compiled once for a batch shape. Whatever a schedule changes comes in as an argument."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Execution, ModelConfig, Optimizer
from phasewise.trainer.interventions import (
    Limit,
    Rolling,
    Scheduled,
    Window,
    clip_factor,
    clip_update_rms,
    is_skipped,
    keep_if,
    limit_from,
    moving_average,
    push,
)
from phasewise.trainer.loss import LossSums, Objective, Rows, SegmentIds, Targets, mean_gradients, objective_sums
from phasewise.trainer.model.decoder import head_weight, run_layers
from phasewise.trainer.model.params import Params
from phasewise.trainer.model.router import Routing, RoutingMetrics, measure_routing, move_biases
from phasewise.trainer.optimizer import build_optimizer, moments, weight_rules
from phasewise.trainer.sharding import compile_step, constrain_params
from phasewise.trainer.state import TrainState, group_norms, slot_squares, total_norm

Scalar = Float[Array, ""]
TokenIds = Int[Array | np.ndarray, "b t"]
TrainStep = Callable[..., tuple[TrainState, "StepMetrics"]]
"""State, tokens, the documents that they belong to (None: one a row), scheduled values, and which tokens are predicted, where the data say
so → the next state, and what was measured."""


class Clips(NamedTuple):
    """What the clips of the direction did; None where the phase has no such clip, and infinity where there is no limit yet."""

    rms_clip_factor: Scalar | None
    direction_norm: Scalar | None
    max_update_norm: Scalar | None
    update_clip_factor: Scalar | None


class Skip(NamedTuple):
    """What skip-step decided, and by which limits; None where the phase does not have it."""

    skipped: Bool[Array, ""] | None
    max_loss: Scalar | None
    max_skip_grad_norm: Scalar | None


class StepMetrics(NamedTuple):
    """What one update measured; `trainer.metrics` says what each is. What the phase does not have is None; limits may be infinite.

    `_norms` are of the groups of `trainer.norms.groups`, `_slots` of each weight and layer (`trainer.norms.slots`).
    """

    loss: Scalar
    batch_het: Scalar | None
    log_z_squared: Scalar
    grad_norm: Scalar
    grad_norms: Float[Array, " group"]
    grad_slots: Float[Array, " slot"]
    update_norm: Scalar
    update_norms: Float[Array, " group"]
    update_slots: Float[Array, " slot"]
    param_norm: Scalar
    param_norms: Float[Array, " group"]
    param_slots: Float[Array, " slot"]
    first_moment_norm: Scalar
    first_moment_norms: Float[Array, " group"]
    first_moment_slots: Float[Array, " slot"]
    second_moment_norm: Scalar
    second_moment_norms: Float[Array, " group"]
    second_moment_slots: Float[Array, " slot"]
    grad_clip_factor: Scalar
    rms_clip_factor: Scalar | None
    direction_norm: Scalar | None
    max_update_norm: Scalar | None
    update_clip_factor: Scalar | None
    max_loss: Scalar | None
    max_skip_grad_norm: Scalar | None
    skipped: Bool[Array, ""] | None
    ema_distance: Scalar | None
    routing: RoutingMetrics | None
    counted_tokens: Scalar | None = None


def build_train_step(
    model: ModelConfig, optimizer_config: Optimizer, execution: Execution | None = None, mesh: jax.sharding.Mesh | None = None
) -> TrainStep:
    """The compiled update, on a mesh or on one device. It takes the state's memory: the old state must not be used again."""
    execution = execution or Execution()
    optimizer = build_optimizer(optimizer_config, model)
    clip = build_clip(model)
    objective = build_objective(model, execution)

    def train_step(
        state: TrainState, tokens: Int[Array, "b t"], segment_ids: SegmentIds, scheduled: Scheduled, targets: Targets | None = None
    ) -> tuple[TrainState, StepMetrics]:
        rows: Rows = (tokens, segment_ids) if targets is None else (tokens, segment_ids, targets)
        parts = execution.microbatch_sequences
        sums, grads = mean_gradients(objective, state.params, rows, z_loss=scheduled.z_loss, microbatch_sequences=parts)
        loss = sums.cross_entropy / sums.tokens
        grad_squares = slot_squares(grads, model)
        grad_norm = total_norm(grad_squares)
        grad_clip_factor = clip_factor(grad_norm, scheduled.max_grad_norm)
        grads = optax.tree.scale(grad_clip_factor, grads)
        direction, optimizer_state = optimizer.update(grads, state.optimizer, state.params, scheduled.decay_scale)
        direction, update_norms, clips = clip(direction, state.rolling.update_norms, scheduled)
        rate = scheduled.learning_rate * (1.0 if clips.update_clip_factor is None else clips.update_clip_factor)
        params = jax.tree.map(lambda weight, d: weight - rate * d, state.params, direction)
        momentum = state.balancing
        if sums.routing is not None:
            params, momentum = move_biases(params, momentum, sums.routing, model)
        ema = None if state.ema is None else moving_average(state.ema, params, scheduled.ema_decay)
        after = TrainState(params, optimizer_state, ema, state.rolling._replace(update_norms=update_norms), momentum)
        update_squares = rate**2 * slot_squares(direction, model)
        skip = decide(state.rolling, loss, grad_norm, scheduled.skip_step)
        if skip.skipped is not None:
            after = keep_if(skip.skipped, state, after)
            update_squares = jnp.where(skip.skipped, 0.0, update_squares)
        after = after._replace(rolling=remembered(after.rolling, loss, grad_norm))
        # Sums of squares of the weights and of the optimizer's averages
        first, second = moments(after.optimizer, model)
        trees = {"param": after.params, "first_moment": first, "second_moment": second}
        measured = {"grad": grad_squares, "update": update_squares, **{name: slot_squares(tree, model) for name, tree in trees.items()}}
        return after, StepMetrics(
            loss=loss,
            batch_het=None if sums.part_losses is None else jnp.nanmax(sums.part_losses) - jnp.nanmean(sums.part_losses),
            log_z_squared=sums.squared_log_z / sums.tokens,
            grad_clip_factor=grad_clip_factor,
            ema_distance=None if after.ema is None else ema_distance(after.params, after.ema),
            routing=None if sums.routing is None else measure_routing(sums.routing, model),
            counted_tokens=None if targets is None else sums.tokens,
            **named_norms(measured, model),
            **clips._asdict(),
            **skip._asdict(),
        )

    return compile_step(train_step, model, mesh)


def build_objective(model: ModelConfig, execution: Execution) -> Objective:
    """What is differentiated. Where documents are named, padding (document 0) is not predicted and moves no balance of experts.

    Where targets are named, no other token is predicted. Which ones are is decided with the rows (`trainer.data.rows`). A part of a batch
    may have few of them and as many rows as another one: so its balance of experts counts by its tokens, not by its targets.

    A model that does not attend within documents attends as if its row were one; padding comes last, so nothing sees it.
    """

    def objective(
        params: Params,
        tokens: Int[Array, "b t"],
        segment_ids: SegmentIds,
        z_loss: float | Array,
        targets: Targets | None = None,
        targets_a_token: Scalar | None = None,
    ) -> tuple[Scalar, LossSums]:
        params = constrain_params(params, model)
        seen = segment_ids if model.attend_within_documents else None
        counted = None if segment_ids is None else segment_ids != 0
        hidden, routing = run_layers(params, tokens, model, segment_ids=seen, counted=counted, execution=execution)
        predicted = counted if targets is None else targets if counted is None else targets & counted
        weight = None if predicted is None else jnp.roll(predicted, -1, axis=1).astype(jnp.float32)
        head = head_weight(params, model)
        chunk = execution.loss_chunk_tokens
        loss, sums = objective_sums(hidden, head, tokens, z_loss, chunk_tokens=chunk, targets_weight=weight)
        if routing is None or model.experts is None:
            return loss, sums
        a_token = targets_a_token
        balance = mean_sequence_loss(routing) * sums.tokens if a_token is None else jnp.sum(routing.sequence_loss) * a_token
        loss = loss + model.experts.sequence_loss * balance
        return loss, sums._replace(routing=jax.lax.stop_gradient(routing))

    return objective


def mean_sequence_loss(routing: Routing) -> Scalar:
    """Mean over tokens of the balance loss of their row, summed over the layers (Trinity report, eqs 29–32); without its weight."""
    return jnp.sum(routing.sequence_loss / jnp.maximum(routing.load.tokens, 1).astype(jnp.float32))


def build_clip(model: ModelConfig) -> Callable[[Params, Window | None, Scheduled], tuple[Params, Window | None, Clips]]:
    """The clips of the direction: each weight's root mean square; then the norm, whose factor is given, not applied."""
    rules = weight_rules(model)

    def clip(direction: Params, window: Window | None, scheduled: Scheduled) -> tuple[Params, Window | None, Clips]:
        rms_factor = norm = max_norm = factor = None
        if scheduled.max_update_rms is not None:
            direction, rms_factor = clip_update_rms(direction, rules, scheduled.max_update_rms)
        if window is not None:
            norm = total_norm(slot_squares(direction, model))
            max_norm = limit_from(window, scheduled.max_update_norm)
            factor = clip_factor(norm, max_norm)
            window = push(window, norm)
        return direction, window, Clips(rms_factor, norm, max_norm, factor)

    return clip


def decide(rolling: Rolling, loss: Scalar, grad_norm: Scalar, limit: Limit) -> Skip:
    """Whether the update is refused, by the windows as they were before it."""
    if rolling.losses is None or rolling.grad_norms is None:
        return Skip(None, None, None)
    max_loss = limit_from(rolling.losses, limit)
    max_grad_norm = limit_from(rolling.grad_norms, limit)
    skipped = is_skipped(loss, grad_norm, max_loss=max_loss, max_grad_norm=max_grad_norm, limit=limit)
    return Skip(skipped, max_loss, max_grad_norm)


def remembered(rolling: Rolling, loss: Scalar, grad_norm: Scalar) -> Rolling:
    """Skip-step's windows with this update's values in them, whether or not it was refused."""
    if rolling.losses is None or rolling.grad_norms is None:
        return rolling
    return rolling._replace(losses=push(rolling.losses, loss), grad_norms=push(rolling.grad_norms, grad_norm))


def named_norms(squares: dict[str, Float[Array, " slot"]], model: ModelConfig) -> dict[str, Any]:
    """The norms of each kind, of the whole, of the groups and of the slots, under their names in `StepMetrics`."""
    norms: dict[str, Any] = {}
    for name, of_slots in squares.items():
        norms |= {f"{name}_norm": total_norm(of_slots), f"{name}_norms": group_norms(of_slots, model), f"{name}_slots": jnp.sqrt(of_slots)}
    return norms


def ema_distance(params: Params, ema: Params) -> Scalar:
    """How far the weights are from their average, as a share of their norm."""
    return optax.tree.norm(optax.tree.sub(params, ema)) / optax.tree.norm(params)
