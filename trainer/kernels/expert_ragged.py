"""The experts by products of ragged groups of rows, which TPUs have a kernel for.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert; m assignment (n · k).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phasewise.trainer.kernels.expert_blocks import Matrices
from phasewise.trainer.kernels.expert_order import Order, collect, sorted_gates, spread


def apply_ragged(x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order) -> Float[Array, "n d"]:
    """As `trainer.kernels.experts.apply_experts`, by `jax.lax.ragged_dot`."""

    def product(rows: Float[Array, "m i"], stacked: Float[Array, "x i o"]) -> Float[Array, "m o"]:
        return jax.lax.ragged_dot(rows, stacked.astype(x.dtype), ordered.counts, preferred_element_type=jnp.float32)

    rows = spread(x, ordered)
    hidden = jax.nn.silu(product(rows, matrices.gate)) * product(rows, matrices.up) * sorted_gates(gates, ordered)[:, None]
    return collect(product(hidden.astype(x.dtype), matrices.down).astype(x.dtype), ordered)
