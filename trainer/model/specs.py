"""What is declared of a weight before it has values."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Group = Literal["embedding", "attention", "mlp", "experts", "router", "norms", "lm_head"]
UpdatedBy = Literal["muon", "adam", "balancing"]
LAYER, EXPERT = "layer", "expert"
STACKING_AXES = (LAYER, EXPERT)
"""Axes that count matrices; the matrix itself is behind them."""
MIN_DRAWN, LARGE = 2**12, 2**20
"""Weights between them are drawn in lengths that are powers of two."""


def round_up(size: int) -> int:
    """How many numbers are drawn for a weight of `size`: small weights share a few lengths, and so a few compiled draws.

    Value i of a draw depends on the key and on i alone (`jax_threefry_partitionable`), so that those drawn in vain change nothing.
    """
    return size if size > LARGE else max(MIN_DRAWN, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Normal:
    """N(0, `std`²), cut off at ± `cutoff` standard deviations (and not made wider for it); None is not cut off."""

    std: float
    cutoff: float | None

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Fresh values."""
        size = math.prod(shape)
        return self._flat(key, round_up(size))[:size].reshape(shape)

    def _flat(self, key: jax.Array, size: int) -> Float[Array, " size"]:
        if self.cutoff is None:
            return self.std * jax.random.normal(key, (size,), jnp.float32)
        return self.std * jax.random.truncated_normal(key, -self.cutoff, self.cutoff, (size,), jnp.float32)


@dataclass(frozen=True)
class Constant:
    """The same number everywhere."""

    value: float

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Fresh values; the key is not used."""
        return jnp.full(shape, self.value, jnp.float32)


@dataclass(frozen=True)
class ParamSpec:
    """A weight before it has values.

    Attributes:
        axes: a logical axis for each dimension of `shape` (`trainer.sharding.RULES`).
        init: how fresh values are drawn.
        drawn_as: what their keys are made of: one name for all of it, or one for each layer. A name stays when the weight moves in the
            tree, so that a seed goes on to mean the same model.
        tensor: its name in a Hugging Face folder, with `{layer}` and `{expert}` where each has a tensor of its own.
        group: the one of `trainer.metrics.ALL_GROUPS` that its norms are counted in.
        inputs: for a matrix that tokens are multiplied by, how many axes behind `STACKING_AXES` it reads from; it writes to the others.
            None is no matrix.
        decays: whether weight decay applies.
        updated_by: "muon" for the matrices of the layers, where the optimizer is Muon; "balancing" for what has no gradient and moves with
            the load of the experts; "adam" for all else.
        layers: the numbers of the layers that it is stacked of; empty is a weight outside the layers.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Normal | Constant
    drawn_as: tuple[str, ...]
    tensor: str
    group: Group
    inputs: int | None = None
    decays: bool = False
    updated_by: UpdatedBy = "adam"
    layers: tuple[int, ...] = ()

    @property
    def num_stacking_axes(self) -> int:
        """How many leading axes count layers and experts."""
        return sum(axis in STACKING_AXES for axis in self.axes)
