"""Scheduled values of a step, and interventions as pure functions: clips, rolling windows and their limits, skip-step, the average.

Order in an update: clip the gradients' norm, compute the optimizer's direction with weight decay, clip the root mean square of each weight.
Then clip the norm of the whole direction by earlier norms, and apply the learning rate. A skipped update changes only the windows of
skip-step. The rules are Levanter's of June 2025, as in the published runs (`docs/decisions/0006-interventions.md` lists the differences).
The host computes scheduled values, so a schedule compiles nothing.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import AdamC, RunConfig, learning_rate_at
from phasewise.trainer.model.params import Params

MIN_STD = 1e-6  # tolerance for rounding in a window of equal values, as in Levanter


class Limit(NamedTuple):
    """mean + `sigmas` standard deviations of at least `min_samples` values. Infinite `sigmas` mean no limit."""

    sigmas: float
    min_samples: int


NO_LIMIT = Limit(math.inf, 1)


class Scheduled(NamedTuple):
    """Scheduled values of one update as plain numbers. The neutral value means off (z_loss 0, max_grad_norm infinity)."""

    learning_rate: float
    z_loss: float
    max_grad_norm: float
    ema_decay: float
    decay_scale: float = 1.0  # factor of every weight's decay, for AdamC learning rate / peak (Defazio, 2025, §4)
    max_update_rms: float | None = None  # None if the phase never clips by it
    max_update_norm: Limit = NO_LIMIT
    skip_step: Limit = NO_LIMIT


def scheduled_at(run: RunConfig, step: int) -> Scheduled:
    """Return the scheduled values of update number `step` (from 0)."""
    stability = run.stability
    learning_rate = learning_rate_at(run.learning_rate, step)
    max_grad_norm, max_update_rms = stability.max_grad_norm.at(step), stability.max_update_rms.at(step)
    clips_rms = any(value is not None for _, value in stability.max_update_rms.within(run.start_step, run.stop_step))
    found = stability.max_update_norm.at(step), stability.skip_step.at(step)
    max_update_norm, skip_step = (NO_LIMIT if limit is None else Limit(limit.sigmas, limit.min_samples) for limit in found)
    return Scheduled(
        learning_rate=learning_rate,
        z_loss=stability.z_loss.at(step) or 0.0,
        max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
        ema_decay=stability.ema_decay.at(step) or 0.0,
        decay_scale=learning_rate / run.optimizer.peak_learning_rate if isinstance(run.optimizer, AdamC) else 1.0,
        max_update_rms=None if not clips_rms else math.inf if max_update_rms is None else max_update_rms,
        max_update_norm=max_update_norm,
        skip_step=skip_step,
    )


class Window(NamedTuple):
    """Ring buffer of the last values of a series. `pushed` counts all values of the run. Empty places have the value 0."""

    values: Float[Array, " w"]
    pushed: Int[Array, ""]


class Rolling(NamedTuple):
    """Windows of skip-step and of the clip of the direction's norm, None if the phase never uses them."""

    losses: Window | None = None  # without z-loss
    grad_norms: Window | None = None  # before clipping
    update_norms: Window | None = None  # of the direction, before clipping
    skip_update_norms: Window | None = None  # the same, also of skipped updates


def push(window: Window, value: Float[Array, ""]) -> Window:
    """Return the window with one more value. Values that are not finite are ignored."""
    place = window.pushed % window.values.shape[0]
    finite = jnp.isfinite(value)
    values = window.values.at[place].set(jnp.where(finite, value, window.values[place]))
    return Window(values, window.pushed + finite.astype(jnp.int32))


def limit_from(window: Window, limit: Limit) -> Float[Array, ""]:
    """Return mean + sigmas · max(standard deviation, `MIN_STD`) of the window, or infinity for fewer than `min_samples` values."""
    length = window.values.shape[0]
    there = jnp.arange(length) < window.pushed
    count = jnp.clip(window.pushed, 1, length)
    mean = jnp.sum(window.values) / count
    std = jnp.sqrt(jnp.sum(jnp.where(there, jnp.square(window.values - mean), 0.0)) / count)
    return jnp.where(window.pushed >= limit.min_samples, mean + limit.sigmas * jnp.maximum(std, MIN_STD), jnp.inf)


def is_skipped(measured: tuple[tuple[Float[Array, ""], Float[Array, ""]], ...], limit: Limit) -> Bool[Array, ""]:
    """Whether skip-step is on, and a value of the pairs (value, its limit) is above its limit or not finite."""
    steady = jnp.all(jnp.stack([jnp.isfinite(value) & (value <= most) for value, most in measured]))
    return jnp.isfinite(limit.sigmas) & ~steady


def clip_factor(norm: Float[Array, ""], max_norm: float | Array) -> Float[Array, ""]:
    """Return the factor that limits a tree's norm to `max_norm` (Pascanu et al., 2013)."""
    return jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-16))


def clip_update_rms(direction: Params, specs: dict[str, Any], max_rms: float | Array) -> tuple[Params, Float[Array, ""]]:
    """Limit the root mean square of each weight and layer to `max_rms`. Return the direction and the smallest factor.

    u / max(1, rms(u) / max_rms), as in Adafactor (Shazeer and Stern, 2018, §6), on the direction with its decay. It is Levanter's
    `update_rms_clipping`, used in Marin 32B from step 67,522 to 72,233.
    """

    def factor(update: Array, spec: Any) -> Array:
        axes = tuple(range(1 if spec.layers else 0, update.ndim))
        rms = jnp.sqrt(jnp.mean(jnp.square(update), axis=axes, keepdims=True))
        return 1.0 / jnp.maximum(1.0, rms / max_rms)

    factors = jax.tree.map(factor, direction, specs)
    return jax.tree.map(jnp.multiply, direction, factors), jnp.min(jnp.stack([jnp.min(leaf) for leaf in jax.tree.leaves(factors)]))
