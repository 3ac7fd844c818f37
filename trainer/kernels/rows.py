"""Rows of a batch on a mesh that may cut them along their positions: how many parts there are, and what each device does by itself.

Shape letters: b batch, c and n any others.
"""

from collections.abc import Callable

import jax
from jaxtyping import Float

from phasewise.trainer.sharding import CONTEXT_AXIS, activation_spec


def context_parts(length: int, *, multiple: int = 1) -> int:
    """Over how many devices the mesh in sight cuts a row of this length; 1 where it does not divide it.

    Args:
        multiple: what a part must be a multiple of.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = 1 if mesh.empty else mesh.shape[CONTEXT_AXIS]
    return parts if length % (parts * multiple) == 0 else 1


def join_rows(x: Float[jax.Array, "*b n"]) -> Float[jax.Array, "*c n"]:
    """The rows of a batch as one long row, which is quicker; as they are where the mesh in sight cuts rows along their positions.

    Joined, such rows would lie in pieces that no mesh can name, and the compiler would gather them.
    """
    is_cut = x.ndim > 2 and context_parts(x.shape[1]) > 1
    return x if is_cut else x.reshape(-1, x.shape[-1])


def map_tokens(function: Callable[[jax.Array], jax.Array], x: Float[jax.Array, "*n c"]) -> jax.Array:
    """`function` of the tokens that each device has, where it takes each by itself and the compiler would gather them, as for `top_k`."""
    if jax.sharding.get_abstract_mesh().empty:
        return function(x)
    spec = activation_spec(x.shape, "bt"[: x.ndim - 1] + ".")
    return jax.shard_map(function, in_specs=spec, out_specs=spec, check_vma=False)(x)
