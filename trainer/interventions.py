"""What keeps a run steady, as pure functions: clips, rolling windows and the limits that follow from them, skip-step, the average.

In an update they come in this order: the gradients are clipped by their norm; the optimizer makes the direction, weight decay included;
each weight's root mean square is clipped; the norm of the whole is clipped by the norms before it; the learning rate is applied. What
skip-step refuses leaves no trace but in its own windows. All of it is Levanter's of June 2025, which the record ran
(`docs/decisions/0006-interventions.md` says where this differs).
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.model.params import Params
from phasewise.trainer.schedule import Limit

T = TypeVar("T")
MIN_STD = 1e-6
"""A window whose values are all equal still leaves room for rounding; Levanter has the same floor."""


class Window(NamedTuple):
    """The last values of something, in a ring. `pushed` is how many ever came; places that are still empty hold 0."""

    values: Float[Array, " w"]
    pushed: Int[Array, ""]


class Rolling(NamedTuple):
    """The windows of a phase; None where it never uses them.

    Attributes:
        losses, grad_norms: what skip-step goes by: cross-entropies without z-loss, and norms before clipping.
        update_norms: what the clip of the update's norm goes by: norms before that clip and before the learning rate.
    """

    losses: Window | None = None
    grad_norms: Window | None = None
    update_norms: Window | None = None


def empty_window(length: int) -> Window:
    """A window with nothing in it."""
    return Window(jnp.zeros(length, jnp.float32), jnp.zeros((), jnp.int32))


def push(window: Window, value: Float[Array, ""]) -> Window:
    """The window with one more value, the oldest let go where it is full. A value that is not finite does not enter."""
    place = window.pushed % window.values.shape[0]
    finite = jnp.isfinite(value)
    values = window.values.at[place].set(jnp.where(finite, value, window.values[place]))
    return Window(values, window.pushed + finite.astype(jnp.int32))


def limit_from(window: Window, limit: Limit) -> Float[Array, ""]:
    """mean + sigmas · max(standard deviation, `MIN_STD`) of the values that are there; infinity before `min_samples` of them are."""
    length = window.values.shape[0]
    there = jnp.arange(length) < window.pushed
    count = jnp.clip(window.pushed, 1, length)
    mean = jnp.sum(window.values) / count
    std = jnp.sqrt(jnp.sum(jnp.where(there, jnp.square(window.values - mean), 0.0)) / count)
    return jnp.where(window.pushed >= limit.min_samples, mean + limit.sigmas * jnp.maximum(std, MIN_STD), jnp.inf)


def is_skipped(
    loss: Float[Array, ""], grad_norm: Float[Array, ""], *, max_loss: Float[Array, ""], max_grad_norm: Float[Array, ""], limit: Limit
) -> Bool[Array, ""]:
    """Whether skip-step is on and the loss or the gradients' norm lies above its limit, or is not finite."""
    steady = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (loss <= max_loss) & (grad_norm <= max_grad_norm)
    return jnp.isfinite(limit.sigmas) & ~steady


def keep_if(kept: Bool[Array, ""], old: T, new: T) -> T:
    """`old` where `kept`, else `new`, leaf by leaf."""
    return jax.tree.map(lambda before, after: jnp.where(kept, before, after), old, new)


def clip_factor(norm: Float[Array, ""], max_norm: float | Array) -> Float[Array, ""]:
    """What to multiply a tree by so that its norm is at most `max_norm` (Pascanu et al., 2013)."""
    return jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-16))


def clip_update_rms(direction: Params, rules: dict[str, Any], max_rms: float | Array) -> tuple[Params, Float[Array, ""]]:
    """Each weight of each layer with a root mean square of at most `max_rms`, and the least factor that did it.

    u / max(1, rms(u) / max_rms), as Adafactor has it (Shazeer and Stern, 2018, §6), on the direction with its decay, a stacked weight layer
    by layer: Levanter's `update_rms_clipping`, which the record ran from step 67,522 to 72,233 of its 32B.
    """

    def factor(update: Array, rule: Any) -> Array:
        axes = tuple(range(1 if rule.stacked else 0, update.ndim))
        rms = jnp.sqrt(jnp.mean(jnp.square(update), axis=axes, keepdims=True))
        return 1.0 / jnp.maximum(1.0, rms / max_rms)

    factors = jax.tree.map(factor, direction, rules)
    return jax.tree.map(jnp.multiply, direction, factors), jnp.min(jnp.stack([jnp.min(leaf) for leaf in jax.tree.leaves(factors)]))


def moving_average(ema: Params, params: Params, decay: float | Array) -> Params:
    """decay · ema + (1 - decay) · params.

    Marin's early Ocelot had it the wrong way round (8B retrospective, "Adjusted Hyperparameters").
    """
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, ema, params)
