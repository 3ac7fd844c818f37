"""Rotary position embedding, plain and stretched as in Llama 3.1."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from phasewise.trainer.config import Llama3RopeScaling, Rope

Rotation = tuple[Float[Array, "*b t e2"], Float[Array, "*b t e2"]]
"""Cosines and sines of every position and plane, float32; with a first axis, of each row."""


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians a position for each of the `head_dim / 2` planes: theta^(-2i / head_dim) (Su et al., 2021, §3.2.2), then the stretch."""
    plain = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return plain if rope.scaling is None else stretch(plain, rope.scaling)


def stretch(plain: np.ndarray, scaling: Llama3RopeScaling) -> np.ndarray:
    """Slow planes turn `factor` times slower, fast ones as before, and those between are interpolated (Llama 3.1)."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)
    low = scaling.low_frequency_factor
    high = scaling.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (keep + (1 - keep) / scaling.factor)


def rotations(rope: Rope, length: int, head_dim: int) -> Rotation:
    """The table for positions 0 to `length` - 1; computed in float64."""
    angles = np.outer(np.arange(length), frequencies(rope, head_dim))
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def rotations_at(rope: Rope, positions: Int[Array, "b t"], length: int, head_dim: int) -> Rotation:
    """The rotation at positions of each row's own; they are below `length`."""
    cosine, sine = rotations(rope, length, head_dim)
    return cosine[positions], sine[positions]


def rotate(x: Float[Array, "b t h e"], rotation: Rotation) -> Float[Array, "b t h e"]:
    """Turn each pair (first half, second half) of a head's dimensions; float32 inside."""
    cosine, sine = (table[None, :, None, :] if table.ndim == 2 else table[:, :, None, :] for table in rotation)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)
