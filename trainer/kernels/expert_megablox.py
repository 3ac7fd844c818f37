"""The experts by jax's Megablox kernel for TPUs: products of ragged groups of rows, without an expert's product with the rows of another.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert; m assignment (n · k), p m filled up to whole tiles.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jaxtyping import Array, Float, Int

from phasewise.trainer.kernels.expert_blocks import Matrices
from phasewise.trainer.kernels.expert_order import Order, collect, sorted_gates, spread

TILE_ROWS = 512
TILING = (TILE_ROWS, 512, 512)
"""Rows, inputs and outputs of a tile: with 1024 in place of 512 columns, the gradients of the weights have no room in v5e's fast memory."""


def apply_megablox(
    x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, *, interpret: bool = False
) -> Float[Array, "n d"]:
    """As `trainer.kernels.experts.apply_experts`. What a product gives is rounded to the type of `x`, as in the other layers of the model.

    The kernel wants whole tiles: rows of zeros fill up the last expert's.

    Args:
        interpret: run the kernel's program step by step on any platform: slow, for tests.
    """
    rows = len(ordered.token)
    missing = -rows % TILE_ROWS
    counts = ordered.counts.at[-1].add(missing)

    def product(left: Float[Array, "p i"], stacked: Float[Array, "x i o"]) -> Float[Array, "p o"]:
        return _multiply(interpret, left, stacked.astype(x.dtype), counts)

    inputs = jnp.pad(spread(x, ordered), [(0, missing), (0, 0)])
    weights = jnp.pad(sorted_gates(gates, ordered), (0, missing))
    gate, up = (product(inputs, stacked).astype(jnp.float32) for stacked in (matrices.gate, matrices.up))
    activated = (jax.nn.silu(gate) * up * weights[:, None]).astype(x.dtype)
    return collect(product(activated, matrices.down)[:rows], ordered)


def _multiply_plain(
    interpret: bool, left: Float[Array, "p i"], stacked: Float[Array, "x i o"], counts: Int[Array, " x"]
) -> Float[Array, "p o"]:
    """jax's own code widens types, which the step forbids: here, and in the backward pass."""
    with jax.numpy_dtype_promotion("standard"):
        return gmm(left, stacked, counts, left.dtype, TILING, None, None, False, interpret)


_multiply = jax.custom_vjp(_multiply_plain, nondiff_argnums=(0,))


def _multiply_forward(interpret: bool, left: Array, stacked: Array, counts: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _multiply(interpret, left, stacked, counts), (left, stacked, counts)


def _multiply_backward(interpret: bool, saved: tuple[Array, Array, Array], of_result: Array) -> tuple[Array, Array, None]:
    left, stacked, counts = saved
    with jax.numpy_dtype_promotion("standard"):
        _, backward = jax.vjp(lambda left, stacked: _multiply_plain(interpret, left, stacked, counts), left, stacked)
        return *backward(of_result), None


_multiply.defvjp(_multiply_forward, _multiply_backward)
