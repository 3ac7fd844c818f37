"""Scheduled values of a step, and interventions as pure functions: clips, rolling windows and their limits, skip-step, the average.

The order in an update: clip the gradients by their norm; compute the optimizer's direction, weight decay included; clip each weight's root
mean square; clip the norm of the whole by the norms before it; apply the learning rate. An update that skip-step refuses changes only
skip-step's own windows. All of it is Levanter's of June 2025, which the record ran (`docs/decisions/0006-interventions.md` lists the
differences). Scheduled values are computed on the host, so a change of one compiles nothing.
"""

import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import AdamC, RollingLimit, RunConfig, learning_rate_at
from phasewise.trainer.model.params import Params

T = TypeVar("T")
MIN_STD = 1e-6
"""A window of equal values still leaves room for rounding; Levanter has the same floor."""


class Limit(NamedTuple):
    """mean + `sigmas` standard deviations, once `min_samples` values are there; infinite sigmas are no limit."""

    sigmas: float
    min_samples: int


NO_LIMIT = Limit(math.inf, 1)


class Scheduled(NamedTuple):
    """The scheduled values of one update, as plain numbers; off is the neutral value (z_loss 0, max_grad_norm infinity).

    Attributes:
        decay_scale: multiplies the decay of every weight: learning rate / peak for AdamC, whose effective decay is weight_decay · learning
            rate² / peak (Defazio, 2025, §4); else 1.
        max_update_rms: None if the phase never clips by it, so that it costs nothing.
        max_update_norm, skip_step: they need the windows that `trainer.state.init_rolling` makes for a phase that has them at any step.
    """

    learning_rate: float
    z_loss: float
    max_grad_norm: float
    ema_decay: float
    decay_scale: float = 1.0
    max_update_rms: float | None = None
    max_update_norm: Limit = NO_LIMIT
    skip_step: Limit = NO_LIMIT


def scheduled_at(run: RunConfig, step: int) -> Scheduled:
    """Return the scheduled values of update number `step` (from 0)."""
    stability = run.stability
    learning_rate = learning_rate_at(run.learning_rate, step)
    max_grad_norm, max_update_rms = stability.max_grad_norm.at(step), stability.max_update_rms.at(step)
    clips_rms = any(value is not None for _, value in stability.max_update_rms.within(run.start_step, run.stop_step))

    def limit(found: RollingLimit | None) -> Limit:
        return NO_LIMIT if found is None else Limit(found.sigmas, found.min_samples)

    return Scheduled(
        learning_rate=learning_rate,
        z_loss=stability.z_loss.at(step) or 0.0,
        max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
        ema_decay=stability.ema_decay.at(step) or 0.0,
        decay_scale=learning_rate / run.optimizer.peak_learning_rate if isinstance(run.optimizer, AdamC) else 1.0,
        max_update_rms=None if not clips_rms else math.inf if max_update_rms is None else max_update_rms,
        max_update_norm=limit(stability.max_update_norm.at(step)),
        skip_step=limit(stability.skip_step.at(step)),
    )


class Window(NamedTuple):
    """The last values of a series, in a ring. `pushed` counts all values that ever came; empty places hold 0."""

    values: Float[Array, " w"]
    pushed: Int[Array, ""]


class Rolling(NamedTuple):
    """The windows of a phase; None if it never uses them.

    Attributes:
        losses, grad_norms: of skip-step: cross-entropies without z-loss, and norms before clipping.
        update_norms: of the clip of the update's norm: norms before that clip and before the learning rate.
    """

    losses: Window | None = None
    grad_norms: Window | None = None
    update_norms: Window | None = None


def empty_window(length: int) -> Window:
    """Return a window without values."""
    return Window(jnp.zeros(length, jnp.float32), jnp.zeros((), jnp.int32))


def push(window: Window, value: Float[Array, ""]) -> Window:
    """Return the window with one more value, and without the oldest if it was full. A value that is not finite does not enter."""
    place = window.pushed % window.values.shape[0]
    finite = jnp.isfinite(value)
    values = window.values.at[place].set(jnp.where(finite, value, window.values[place]))
    return Window(values, window.pushed + finite.astype(jnp.int32))


def limit_from(window: Window, limit: Limit) -> Float[Array, ""]:
    """Return mean + sigmas · max(standard deviation, `MIN_STD`) of the window; infinity while it has fewer than `min_samples`."""
    length = window.values.shape[0]
    there = jnp.arange(length) < window.pushed
    count = jnp.clip(window.pushed, 1, length)
    mean = jnp.sum(window.values) / count
    std = jnp.sqrt(jnp.sum(jnp.where(there, jnp.square(window.values - mean), 0.0)) / count)
    return jnp.where(window.pushed >= limit.min_samples, mean + limit.sigmas * jnp.maximum(std, MIN_STD), jnp.inf)


def is_skipped(
    loss: Float[Array, ""], grad_norm: Float[Array, ""], *, max_loss: Float[Array, ""], max_grad_norm: Float[Array, ""], limit: Limit
) -> Bool[Array, ""]:
    """Return whether skip-step is on and the loss or the gradients' norm is above its limit, or not finite."""
    steady = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (loss <= max_loss) & (grad_norm <= max_grad_norm)
    return jnp.isfinite(limit.sigmas) & ~steady


def keep_if(kept: Bool[Array, ""], old: T, new: T) -> T:
    """Return `old` where `kept`, else `new`, leaf by leaf."""
    return jax.tree.map(lambda before, after: jnp.where(kept, before, after), old, new)


def clip_factor(norm: Float[Array, ""], max_norm: float | Array) -> Float[Array, ""]:
    """Return the factor that brings a tree's norm to at most `max_norm` (Pascanu et al., 2013)."""
    return jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-16))


def clip_update_rms(direction: Params, rules: dict[str, Any], max_rms: float | Array) -> tuple[Params, Float[Array, ""]]:
    """Return each weight of each layer with a root mean square of at most `max_rms`, and the least factor.

    u / max(1, rms(u) / max_rms), as in Adafactor (Shazeer and Stern, 2018, §6), on the direction with its decay, a stacked weight layer
    by layer: Levanter's `update_rms_clipping`, which the record ran from step 67,522 to 72,233 of its 32B.
    """

    def factor(update: Array, rule: Any) -> Array:
        axes = tuple(range(1 if rule.stacked else 0, update.ndim))
        rms = jnp.sqrt(jnp.mean(jnp.square(update), axis=axes, keepdims=True))
        return 1.0 / jnp.maximum(1.0, rms / max_rms)

    factors = jax.tree.map(factor, direction, rules)
    return jax.tree.map(jnp.multiply, direction, factors), jnp.min(jnp.stack([jnp.min(leaf) for leaf in jax.tree.leaves(factors)]))


def moving_average(ema: Params, params: Params, decay: float | Array) -> Params:
    """Return decay · ema + (1 - decay) · params.

    Marin's early Ocelot had it the wrong way round (8B retrospective, "Adjusted Hyperparameters").
    """
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, ema, params)
