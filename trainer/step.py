"""One update as pure maths, compiled once per batch shape. Scheduled values are arguments. The training state is one tree."""

import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Execution, ModelConfig, Optimizer, RunConfig
from phasewise.trainer.interventions import Rolling, Scheduled, Window, clip_factor, clip_update_rms, is_skipped, limit_from, push
from phasewise.trainer.loss import LossSums, Objective, Rows, SegmentIds, Targets, mean_gradients, objective_sums
from phasewise.trainer.metrics import PARAM_GROUPS, SPARSE_GROUPS
from phasewise.trainer.model.decoder import head_weight, run_layers
from phasewise.trainer.model.params import Params, ParamSpec, abstract_params, init_params, param_specs
from phasewise.trainer.model.router import Momentum, RoutingMetrics, init_momentum, measure_routing, move_biases
from phasewise.trainer.optimizer import OptimizerState, build_optimizer, moments
from phasewise.trainer.sharding import BATCH_AXES, compile_step, constrain

MAX_PIECE_BYTES = 2**28
_slice_of_rows = jax.jit(jax.lax.dynamic_slice_in_dim, static_argnums=2)


def slot_names(model: ModelConfig) -> tuple[str, ...]:
    """Return the name of each number of `slot_squares`: `query/3` with the layer, or `head`."""
    return tuple(name if layer is None else f"{name}/{layer}" for name, spec in _named_specs(model) for layer in (spec.layers or (None,)))


def slot_squares(tree: Params, model: ModelConfig) -> Float[Array, " slot"]:
    """Return float32 sums of squares in the order of `slot_names`, for a tree with the structure of `param_specs`."""
    squares: list[Array] = []
    for (_, spec), leaf in zip(_named_specs(model), jax.tree.leaves(tree), strict=True):
        axes = tuple(range(1 if spec.layers else 0, leaf.ndim))
        squares.append(jnp.atleast_1d(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=axes)))
    return jnp.concatenate(squares)


def groups(model: ModelConfig) -> tuple[str, ...]:
    """Return the groups of weights for norms: `PARAM_GROUPS`, and the groups of `SPARSE_GROUPS` that the model has."""
    found = {spec.group for _, spec in _named_specs(model)}
    return (*PARAM_GROUPS, *(group for group in SPARSE_GROUPS if group in found))


def norms_of(trees: dict[str, Float[Array, " slot"]], model: ModelConfig) -> dict[str, Array]:
    """Return the L2 norms of each tree, from its `slot_squares`: of the whole tree, of each of `groups` and of each slot."""
    of_slots = [spec.group for _, spec in _named_specs(model) for _ in (spec.layers or (None,))]
    members = [[number for number, group in enumerate(of_slots) if group == wanted] for wanted in groups(model)]
    norms: dict[str, Array] = {}
    for name, squares in trees.items():
        norms[f"{name}_norm"] = jnp.sqrt(jnp.sum(squares))
        norms[f"{name}_norms"] = jnp.sqrt(jnp.stack([jnp.sum(squares[jnp.asarray(numbers, jnp.int32)]) for numbers in members]))
        norms[f"{name}_slots"] = jnp.sqrt(squares)
    return norms


def _named_specs(model: ModelConfig) -> list[tuple[str, ParamSpec]]:
    return [(path[-1].key, spec) for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model))]


class TrainState(NamedTuple):
    """Training state after N updates, applied or skipped. N is the name of the checkpoint, not a part of the state."""

    params: Params
    optimizer: OptimizerState
    ema: Params | None  # moving average of `params`
    rolling: Rolling = Rolling()
    balancing: Momentum | None = None  # momentum of the routers' biases, which are in `params`


def init_state(run: RunConfig) -> TrainState:
    """Return the state at step 0 of a lineage."""
    params = init_params(run.seed, run.model)
    optimizer = build_optimizer(run.optimizer, run.model).init(params)
    ema = jax.tree.map(jnp.copy, params) if run.keeps_average else None
    return TrainState(params, optimizer, ema, init_rolling(run), init_momentum(run.model))


def init_rolling(run: RunConfig) -> Rolling:
    """Return empty windows for every intervention that the phase has at any step."""
    steps = run.start_step, run.stop_step
    skips = [limit for _, limit in run.stability.skip_step.within(*steps) if limit]
    on_losses, on_norms = ([one.window for one in skips if one.skip_on == on] for on in ("loss_and_grad_norm", "update_norm"))
    of_clip = [limit.window for _, limit in run.stability.max_update_norm.within(*steps) if limit]
    windows: list[Window | None] = []
    for lengths in map(set, (on_losses, on_losses, of_clip, on_norms)):
        assert len(lengths) <= 1, f"a configuration refuses windows of several lengths, found {lengths}"
        windows.append(Window(jnp.zeros(lengths.pop(), jnp.float32), jnp.zeros((), jnp.int32)) if lengths else None)
    return Rolling(*windows)


def abstract_state(run: RunConfig, *, with_ema: bool) -> TrainState:
    """Return shapes and types of a state."""
    params = abstract_params(run.model)
    optimizer = jax.eval_shape(build_optimizer(run.optimizer, run.model).init, params)
    small = jax.eval_shape(lambda: (init_rolling(run), init_momentum(run.model)))
    return TrainState(params, optimizer, params if with_ema else None, *small)


def params_digest(params: Params) -> str:
    """Return the SHA-256 over path, type, shape and bytes of every weight. All processes gather a weight on several hosts in pieces."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        digest.update(f"{jax.tree_util.keystr(path)} {np.dtype(leaf.dtype).str} {leaf.shape}".encode())
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            digest.update(np.ascontiguousarray(leaf).tobytes())
            continue
        rows = max(size for size in range(1, len(leaf) + 1) if len(leaf) % size == 0 and size * leaf.nbytes <= len(leaf) * MAX_PIECE_BYTES)
        for first in range(0, len(leaf), rows):
            piece = multihost_utils.process_allgather(_slice_of_rows(leaf, first, rows), tiled=True)
            digest.update(np.ascontiguousarray(piece).tobytes())
    return digest.hexdigest()


Scalar = Float[Array, ""]
TrainStep = Callable[..., tuple[TrainState, "StepMetrics"]]
"""State, tokens, segment ids (None: one document per row), scheduled values, and optional targets → next state and measurements."""


class StepMetrics(NamedTuple):
    """Measurements of one update, explained in `trainer.metrics`. Limits may be infinite. Absent features are None.

    `_norms` have one value per group of `trainer.state.groups`, `_slots` one per weight and layer (`trainer.state.slot_names`).
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
    max_skip_update_norm: Scalar | None
    skipped: Bool[Array, ""] | None
    ema_distance: Scalar | None
    routing: RoutingMetrics | None
    counted_tokens: Scalar | None = None
    row_losses: Float[Array, " b"] | None = None  # nats per token in the order of the batch, NaN for a row without predicted tokens


def build_train_step(
    model: ModelConfig, optimizer_config: Optimizer, execution: Execution | None = None, mesh: jax.sharding.Mesh | None = None
) -> TrainStep:
    """Build the compiled update, on a mesh or on one device. It donates the state: the old state must not be used again."""
    execution = execution or Execution()
    optimizer = build_optimizer(optimizer_config, model)
    objective = build_objective(model, execution)

    def train_step(
        state: TrainState, tokens: Int[Array, "b t"], segment_ids: SegmentIds, scheduled: Scheduled, targets: Targets | None = None
    ) -> tuple[TrainState, StepMetrics]:
        rows: Rows = (tokens, segment_ids) if targets is None else (tokens, segment_ids, targets)
        parts = execution.microbatch_sequences
        sums, grads = mean_gradients(objective, state.params, rows, z_loss=scheduled.z_loss, microbatch_sequences=parts)
        loss = sums.cross_entropy / sums.tokens
        grad_squares = slot_squares(grads, model)
        grad_norm = jnp.sqrt(jnp.sum(grad_squares))
        grad_clip_factor = clip_factor(grad_norm, scheduled.max_grad_norm)
        clipped = optax.tree.scale(grad_clip_factor, grads)
        direction, optimizer_state = optimizer.update(clipped, state.optimizer, state.params, scheduled.decay_scale)

        rms_clip_factor = direction_norm = max_update_norm = update_clip_factor = None
        rolling = state.rolling
        if scheduled.max_update_rms is not None:
            direction, rms_clip_factor = clip_update_rms(direction, param_specs(model), scheduled.max_update_rms)
        if rolling.update_norms is not None or rolling.skip_update_norms is not None:
            direction_norm = jnp.sqrt(jnp.sum(slot_squares(direction, model)))
        if rolling.update_norms is not None and direction_norm is not None:
            max_update_norm = limit_from(rolling.update_norms, scheduled.max_update_norm)
            update_clip_factor = clip_factor(direction_norm, max_update_norm)
            rolling = rolling._replace(update_norms=push(rolling.update_norms, direction_norm))
        rate = scheduled.learning_rate * (1.0 if update_clip_factor is None else update_clip_factor)
        params = jax.tree.map(lambda weight, d: weight - rate * d, state.params, direction)
        moved = (params, state.balancing) if sums.routing is None else move_biases(params, state.balancing, sums.routing, model)
        # Marin's early Ocelot had the average the wrong way round (8B retrospective, "Adjusted Hyperparameters")
        decay = scheduled.ema_decay
        ema = None if state.ema is None else jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.ema, moved[0])
        after = TrainState(moved[0], optimizer_state, ema, rolling, moved[1])
        update_squares = rate**2 * slot_squares(direction, model)

        skipped = max_loss = max_skip_grad_norm = max_skip_update_norm = None
        windows: dict[str, Window] = {}
        if rolling.losses is not None and rolling.grad_norms is not None:
            max_loss = limit_from(rolling.losses, scheduled.skip_step)
            max_skip_grad_norm = limit_from(rolling.grad_norms, scheduled.skip_step)
            skipped = is_skipped(((loss, max_loss), (grad_norm, max_skip_grad_norm)), scheduled.skip_step)
            windows = {"losses": push(rolling.losses, loss), "grad_norms": push(rolling.grad_norms, grad_norm)}
        elif rolling.skip_update_norms is not None and direction_norm is not None:
            max_skip_update_norm = limit_from(rolling.skip_update_norms, scheduled.skip_step)
            skipped = is_skipped(((direction_norm, max_skip_update_norm),), scheduled.skip_step)
            windows = {"skip_update_norms": push(rolling.skip_update_norms, direction_norm)}
        if skipped is not None:
            after = jax.tree.map(lambda old, new: jnp.where(skipped, old, new), state, after)
            update_squares = jnp.where(skipped, 0.0, update_squares)
            after = after._replace(rolling=after.rolling._replace(**windows))

        trees = {"param": after.params, **dict(zip(("first_moment", "second_moment"), moments(after.optimizer, model), strict=True))}
        squares = {"grad": grad_squares, "update": update_squares, **{name: slot_squares(tree, model) for name, tree in trees.items()}}
        distance = None if after.ema is None else optax.tree.norm(optax.tree.sub(after.params, after.ema))
        return after, StepMetrics(
            loss=loss,
            batch_het=batch_het(sums.rows, parts, mesh),
            log_z_squared=sums.squared_log_z / sums.tokens,
            grad_clip_factor=grad_clip_factor,
            rms_clip_factor=rms_clip_factor,
            direction_norm=direction_norm,
            max_update_norm=max_update_norm,
            update_clip_factor=update_clip_factor,
            max_loss=max_loss,
            max_skip_grad_norm=max_skip_grad_norm,
            max_skip_update_norm=max_skip_update_norm,
            skipped=skipped,
            ema_distance=None if distance is None else distance / optax.tree.norm(after.params),
            routing=None if sums.routing is None else measure_routing(sums.routing, model),
            counted_tokens=None if targets is None else sums.tokens,
            row_losses=None if sums.rows is None else sums.rows[0] / sums.rows[1],
            **norms_of(squares, model),
        )

    return compile_step(train_step, model, mesh)


def batch_het(rows: Float[Array, "2 b"] | None, part: int | None, mesh: jax.sharding.Mesh | None) -> Scalar | None:
    """Return BatchHet (Trinity report, eq. 40): the largest loss of a micro-batch, or of a device's rows, minus the mean.

    None for one part. A micro-batch has every nth row (`mean_gradients`), and a device has neighbours.
    """
    devices = 1 if mesh is None else math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    if rows is None or (devices == 1 and (part is None or rows.shape[1] <= part)):
        return None
    is_cut = part is not None and rows.shape[1] > part
    sums = rows.reshape(2, part, -1).sum(1) if is_cut else rows.reshape(2, devices, -1).sum(2)
    losses = sums[0] / sums[1]
    return jnp.nanmax(losses) - jnp.nanmean(losses)


def build_objective(model: ModelConfig, execution: Execution) -> Objective:
    """Build the function that is differentiated.

    Padding (document 0) is not predicted and moves no balance of experts. With targets only these tokens are predicted. A micro-batch may
    have few targets and as many rows as another, so its balance of experts counts by tokens, not by targets.

    A model without attention within documents attends over whole rows. Padding comes last, so no token sees padding.
    """

    def objective(
        params: Params,
        tokens: Int[Array, "b t"],
        segment_ids: SegmentIds,
        z_loss: float | Array,
        targets: Targets | None = None,
        targets_a_token: Scalar | None = None,
    ) -> tuple[Scalar, LossSums]:
        # the constraint also cuts the gradients: it applies to cotangents
        params = jax.tree.map(lambda spec, weight: constrain(weight, *spec.axes), param_specs(model), params)
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
        # balance loss of the rows (Trinity report, eqs 29–32): mean over tokens, sum over layers
        if targets_a_token is None:
            mean_balance = jnp.sum(routing.sequence_loss / jnp.maximum(routing.load.tokens, 1).astype(jnp.float32))
            balance = mean_balance * sums.tokens
        else:
            balance = jnp.sum(routing.sequence_loss) * targets_a_token
        loss = loss + model.experts.sequence_loss * balance
        return loss, sums._replace(routing=jax.lax.stop_gradient(routing))

    return objective
