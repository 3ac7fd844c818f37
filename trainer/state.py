"""The training state as one tree, and norms of trees of weights."""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Float

from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.interventions import Rolling, Window
from phasewise.trainer.metrics import PARAM_GROUPS, SPARSE_GROUPS
from phasewise.trainer.model.params import Params, ParamSpec, abstract_params, init_params, param_specs
from phasewise.trainer.model.router import Momentum, init_momentum
from phasewise.trainer.optimizer import OptimizerState, build_optimizer

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
    windows: list[Window | None] = []
    for limits in (run.stability.skip_step, run.stability.skip_step, run.stability.max_update_norm):
        lengths = {limit.window for _, limit in limits.within(run.start_step, run.stop_step) if limit}
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
