"""All that training changes, as one tree."""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from phasewise.trainer.config import RollingLimit, RunConfig, Steps
from phasewise.trainer.interventions import Rolling, Window, empty_window
from phasewise.trainer.model.params import Params, abstract_params, init_params
from phasewise.trainer.optimizer import OptimizerState, build_optimizer
from phasewise.trainer.process.distributed import pieces_on_host
from phasewise.trainer.routing import Momentum, init_momentum


class TrainState(NamedTuple):
    """`step` is not in here: step N means that N updates have been applied or skipped, and the checkpoint's name says N.

    Attributes:
        ema: exponential moving average of `params`, or None where it is off.
        rolling: the windows of the interventions that the phase has at any step.
        balancing: momentum of the routers' biases, where they have one. The biases are among `params`.
    """

    params: Params
    optimizer: OptimizerState
    ema: Params | None
    rolling: Rolling = Rolling()
    balancing: Momentum | None = None


def init_state(run: RunConfig) -> TrainState:
    """The state at step 0 of a lineage."""
    params = init_params(run.seed, run.model)
    optimizer = build_optimizer(run.optimizer, run.model).init(params)
    ema = jax.tree.map(jnp.copy, params) if run.keeps_average else None
    return TrainState(params, optimizer, ema, init_rolling(run), init_momentum(run.model))


def init_rolling(run: RunConfig) -> Rolling:
    """Empty windows for what the phase has at any step, also where it is off at first."""

    def window(limits: Steps[RollingLimit | None]) -> Window | None:
        lengths = {limit.window for _, limit in limits.within(run.start_step, run.stop_step) if limit}
        assert len(lengths) <= 1, f"a configuration refuses windows of several lengths, found {lengths}"
        return empty_window(lengths.pop()) if lengths else None

    skip_step = run.stability.skip_step
    max_update_norm = run.stability.max_update_norm
    return Rolling(losses=window(skip_step), grad_norms=window(skip_step), update_norms=window(max_update_norm))


def abstract_state(run: RunConfig, *, with_ema: bool) -> TrainState:
    """Shapes and types of a state, without values."""
    params = abstract_params(run.model)
    optimizer = jax.eval_shape(build_optimizer(run.optimizer, run.model).init, params)
    small = jax.eval_shape(lambda: (init_rolling(run), init_momentum(run.model)))
    return TrainState(params, optimizer, params if with_ema else None, *small)


def params_digest(params: Params) -> str:
    """SHA-256 over every weight's path, type, shape and bytes: equal digests are equal models, bit for bit."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        digest.update(f"{jax.tree_util.keystr(path)} {np.dtype(leaf.dtype).str} {leaf.shape}".encode())
        for piece in pieces_on_host(leaf):
            digest.update(piece.tobytes())
    return digest.hexdigest()
