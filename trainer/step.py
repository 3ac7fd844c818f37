"""One update: pure maths, compiled once for a batch shape. Whatever a schedule changes comes in as an argument."""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from trainer.config import ModelConfig, Optimizer
from trainer.loss import loss_sums
from trainer.metrics import PARAM_GROUPS
from trainer.model.decoder import logits
from trainer.model.params import Params
from trainer.optimizer.adamw import build_optimizer
from trainer.state import TrainState


class Scheduled(NamedTuple):
    """The scheduled values of one step, as plain numbers; what is off is its neutral value (z_loss 0, max_grad_norm infinity)."""

    learning_rate: float
    z_loss: float
    max_grad_norm: float
    ema_decay: float


class StepMetrics(NamedTuple):
    """What one update measured; `trainer.metrics` says what each is. `ema_distance` is None where there is no moving average."""

    loss: Float[Array, ""]
    log_z_squared: Float[Array, ""]
    grad_norm: Float[Array, ""]
    update_norm: Float[Array, ""]
    param_norm: Float[Array, ""]
    grad_norms: Float[Array, " group"]
    update_norms: Float[Array, " group"]
    param_norms: Float[Array, " group"]
    ema_distance: Float[Array, ""] | None


TrainStep = Callable[[TrainState, Int[Array | np.ndarray, "b t"], Scheduled], tuple[TrainState, StepMetrics]]


def build_train_step(model: ModelConfig, optimizer_config: Optimizer) -> TrainStep:
    """The compiled update. It takes the state's memory: the old state must not be used again."""
    optimizer = build_optimizer(optimizer_config, model)

    def loss(params: Params, tokens: Int[Array, "b t"], z_loss: Array) -> tuple[Array, tuple[Array, Array]]:
        sums = loss_sums(logits(params, tokens, model), tokens)
        cross_entropy, log_z_squared = sums.cross_entropy / sums.tokens, sums.squared_log_z / sums.tokens
        return cross_entropy + z_loss * log_z_squared, (cross_entropy, log_z_squared)

    def train_step(state: TrainState, tokens: Int[Array, "b t"], scheduled: Scheduled) -> tuple[TrainState, StepMetrics]:
        (_, (cross_entropy, log_z_squared)), grads = jax.value_and_grad(loss, has_aux=True)(state.params, tokens, scheduled.z_loss)
        grad_norm, grad_norms = optax.tree.norm(grads), group_norms(grads)
        grads = optax.tree.scale(clip_factor(grad_norm, scheduled.max_grad_norm), grads)
        direction, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        updates = optax.tree.scale(-scheduled.learning_rate, direction)
        params = cast(Params, optax.apply_updates(state.params, updates))
        ema = None if state.ema is None else moving_average(state.ema, params, scheduled.ema_decay)
        param_norm = optax.tree.norm(params)
        metrics = StepMetrics(
            loss=cross_entropy,
            log_z_squared=log_z_squared,
            grad_norm=grad_norm,
            update_norm=optax.tree.norm(updates),
            param_norm=param_norm,
            grad_norms=grad_norms,
            update_norms=group_norms(updates),
            param_norms=group_norms(params),
            ema_distance=None if ema is None else optax.tree.norm(optax.tree.sub(params, ema)) / param_norm,
        )
        return TrainState(params, optimizer_state, ema), metrics

    return jax.jit(train_step, donate_argnums=0)


def group_norms(tree: Params) -> Float[Array, " group"]:
    """The L2 norm of each group of weights, in the order of `PARAM_GROUPS`."""
    leaves = {path[-1].key: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return jnp.stack([optax.tree.norm([leaves[name] for name in names]) for names in PARAM_GROUPS.values()])


def clip_factor(norm: Float[Array, ""], max_norm: float | Array) -> Float[Array, ""]:
    """What to multiply gradients by so that their norm is at most `max_norm` (Pascanu et al., 2013)."""
    return jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-16))


def moving_average(ema: Params, params: Params, decay: float | Array) -> Params:
    """decay · ema + (1 - decay) · params.

    Marin's early Ocelot had it the wrong way round (8B retrospective, "Adjusted Hyperparameters").
    """
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, ema, params)
