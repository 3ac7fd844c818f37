"""Attention over rows that hold several texts which share their beginnings: each text sees its own tokens, shared or not, and no other's.

A row is laid out as a tree, read from its root: a beginning, then what goes on from it in one way, then what goes on in another. A token is
in all texts up to a slot of the row, its end, and in none behind it. For reading alone: there are no gradients here.

Shape letters: b batch, t query slot, s key slot, h query head, k kv head, e head_dim, c queries of a block.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.kernels.xla import Block, blocks, from_rows, mix
from phasewise.trainer.sharding import map_shards


class Branches(NamedTuple):
    """How a row is laid out.

    Attributes:
        ends: of each slot, the first slot that does not see it any more; it is behind the slot itself.
        positions: of each slot, the tokens that come before it in its text.
    """

    ends: Int[Array, "b t"]
    positions: Int[Array, "b t"]


def attend_branches(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    branches: Branches,
    *,
    sliding_window: int | None,
) -> Float[Array, "b t h e"]:
    """Grouped-query attention, scaled by 1/√e, of each slot to those before it whose end is behind it and which the window reaches."""

    def of_device(query: Array, key: Array, value: Array, ends: Array, positions: Array) -> Array:
        operands = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.swapaxes(1, 2), value.swapaxes(1, 2)
        seen = [visible(block, Branches(ends, positions), sliding_window) for block in blocks(query.shape[1], None)]
        mixed = [mix(block, operands, of_block).values for block, of_block in zip(blocks(query.shape[1], None), seen, strict=True)]
        return jnp.concatenate([from_rows(part, query.shape[2]) for part in mixed], axis=1).astype(query.dtype)

    return map_shards(of_device, query, key, value, *branches, letters=("bthe", "bske", "bske", "bt", "bt"))


def visible(block: Block, branches: Branches, sliding_window: int | None) -> Bool[Array, "b 1 1 c s"]:
    """Which slots each query of a block sees. The window goes by positions: what lies between two slots of a text may be of others."""
    slots = jnp.arange(block.start, block.stop)
    seen = (jnp.arange(block.stop) <= slots[:, None])[None] & (slots[:, None] < branches.ends[:, None, : block.stop])
    if sliding_window is not None:
        back = branches.positions[:, block.start : block.stop, None] - branches.positions[:, None, : block.stop]
        seen &= back < sliding_window
    return seen[:, None, None]
