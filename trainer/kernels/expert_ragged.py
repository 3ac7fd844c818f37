"""The experts by products of ragged groups of rows, which TPUs have a kernel for.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert; m assignment (n · k).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trainer.kernels.expert_blocks import Weights
from trainer.kernels.expert_order import Order, collect, sorted_gates, spread


def apply_ragged(x: Float[Array, "n d"], gates: Float[Array, "n k"], weights: Weights, ordered: Order) -> Float[Array, "n d"]:
    """As `trainer.kernels.experts.apply_experts`, by `jax.lax.ragged_dot`."""

    def product(rows: Float[Array, "m i"], matrices: Float[Array, "x i o"]) -> Float[Array, "m o"]:
        return jax.lax.ragged_dot(rows, matrices.astype(x.dtype), ordered.counts, preferred_element_type=jnp.float32)

    rows = spread(x, ordered)
    hidden = jax.nn.silu(product(rows, weights[0])) * product(rows, weights[1]) * sorted_gates(gates, ordered)[:, None]
    return collect(product(hidden.astype(x.dtype), weights[2]).astype(x.dtype), ordered)
