"""All that training changes, as one tree."""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainer.config import RunConfig
from trainer.model.params import Params, abstract_params, init_params
from trainer.optimizer.adamw import build_optimizer


class TrainState(NamedTuple):
    """`step` is not in here: step N means that N updates have been applied, and the checkpoint's name says N.

    Attributes:
        ema: exponential moving average of `params`, or None where it is off.
    """

    params: Params
    optimizer: optax.OptState
    ema: Params | None


def init_state(run: RunConfig) -> TrainState:
    """The state at step 0 of a lineage."""
    params = init_params(run.seed, run.model)
    optimizer = build_optimizer(run.optimizer, run.model).init(params)
    ema = jax.tree.map(jnp.copy, params) if run.keeps_average else None
    return TrainState(params, optimizer, ema)


def abstract_state(run: RunConfig, *, with_ema: bool) -> TrainState:
    """Shapes and types of a state, without values."""
    params = abstract_params(run.model)
    optimizer = jax.eval_shape(build_optimizer(run.optimizer, run.model).init, params)
    return TrainState(params, optimizer, params if with_ema else None)


def params_digest(params: Params) -> str:
    """SHA-256 over every weight's path, type, shape and bytes: equal digests are equal models, bit for bit."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array: np.ndarray[Any, Any] = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
