"""The experts by blocks of rows, each of one expert: products of a fixed size, as many as the load needs.

A block has room for a quarter of the mean load. An expert takes as many of them as it needs and an expert without tokens none: so every
distribution is exact, and what is computed in vain is half a block an expert. Padding all experts to one capacity, with further rounds
for what overflows it, costs a quarter in vain at balance, and whole rounds of all experts where a single one overflows.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert; m assignment (n · k), p m and one block of padding, c row of a
block, b block.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.kernels.expert_order import Order, sorted_gates, sum_of_token, take

BLOCKS_OF_MEAN = 4
"""So many blocks hold the mean load of an expert. Fewer compute more in vain; more are no quicker (docs/lab/trainer.md)."""
MIN_ROWS = 64
"""Smaller blocks only read an expert's matrices again."""
CAPACITY = 1.25
"""Beyond so many times the mean load an expert overflows: what a padded form would drop, or compute in a second round, is counted."""


class Matrices(NamedTuple):
    """Those of all experts (the axis x), or of one."""

    gate: Float[Array, "*x d f"]
    up: Float[Array, "*x d f"]
    down: Float[Array, "*x f d"]


class Blocks(NamedTuple):
    """Which rows each block has. The blocks of an expert follow one another, and the experts too; only the first `number` are used.

    Attributes:
        expert: whose the block is.
        start: its first sorted row.
        end: behind the last row of the expert. A block's rows from there on belong to the next block, which writes its results over them.
        number: how many blocks there are.
        token: whose each sorted row is; behind the last come rows that fill up the last block.
        weight: the gate of each sorted row.
    """

    expert: Int[Array, " b"]
    start: Int[Array, " b"]
    end: Int[Array, " b"]
    number: Int[Array, ""]
    token: Int[Array, " p"]
    weight: Float[Array, " p"]


class Block(NamedTuple):
    """One of them."""

    expert: Int[Array, ""]
    start: Int[Array, ""]
    token: Int[Array, " c"]
    weight: Float[Array, "c 1"]
    is_own: Bool[Array, "c 1"]


class Hidden(NamedTuple):
    """The hidden layer before its activation."""

    gate: Float[Array, "p f"]
    up: Float[Array, "p f"]


class Saved(NamedTuple):
    """What the backward pass reads; of what the forward pass computed, only the hidden layer."""

    x: Float[Array, "n d"]
    gates: Float[Array, "n k"]
    matrices: Matrices
    ordered: Order
    hidden: Hidden


def block_rows(assignments: int, num_experts: int) -> int:
    """The rows of a block."""
    return min(max(MIN_ROWS, -(-assignments // (BLOCKS_OF_MEAN * num_experts))), assignments)


def count_overflowed(counts: Int[Array, " x"], assignments: int) -> Int[Array, ""]:
    """Assignments beyond the capacity of their expert."""
    capacity = math.ceil(CAPACITY * assignments / len(counts))
    return jnp.sum(jnp.maximum(counts - capacity, 0), dtype=jnp.int32)


def cut_blocks(gates: Float[Array, "n k"], ordered: Order, size: int) -> Blocks:
    """Blocks of `size` rows for all assignments, whatever their distribution."""
    counts = ordered.counts
    ends = jnp.cumsum(counts)
    needed = -(-counts // size)
    behind = jnp.cumsum(needed)
    number = jnp.arange(gates.size // size + len(counts), dtype=jnp.int32)
    expert = jnp.minimum(jnp.sum(number[:, None] >= behind, axis=1, dtype=jnp.int32), len(counts) - 1)
    start = (ends - counts)[expert] + (number - (behind - needed)[expert]) * size
    filled = (jnp.pad(each, (0, size)) for each in (ordered.token, sorted_gates(gates, ordered)))
    return Blocks(expert, start, ends[expert], behind[-1], *filled)


def block_at(blocks: Blocks, number: Int[Array, ""], size: int) -> Block:
    """The rows of one block."""
    start = blocks.start[number]
    is_own = start + jnp.arange(size, dtype=jnp.int32) < blocks.end[number]
    return Block(
        blocks.expert[number], start, _rows(blocks.token, start, size), _rows(blocks.weight, start, size)[:, None], is_own[:, None]
    )


def apply_blocks(x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, size: int) -> Float[Array, "n d"]:
    """As `trainer.kernels.experts.apply_experts`, by blocks of `size` rows."""
    return _apply(size, x, gates, matrices, ordered)


def _apply_plain(size: int, x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order) -> Float[Array, "n d"]:
    return _apply_forward(size, x, gates, matrices, ordered)[0]


def _apply_forward(
    size: int, x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order
) -> tuple[Float[Array, "n d"], Saved]:
    blocks = cut_blocks(gates, ordered, size)

    def of_block(number: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
        block = block_at(blocks, number, size)
        mine = _of_expert(matrices, block, x.dtype)
        inputs = take(x, block.token)
        gate, up = (_product(inputs, matrix) for matrix in (mine.gate, mine.up))
        activated = (jax.nn.silu(gate) * up * block.weight).astype(x.dtype)
        return _write(results, (gate, up, _product(activated, mine.down)), block)

    widths = (matrices.gate.shape[2], matrices.gate.shape[2], x.shape[1])
    empty = tuple(jax.lax.empty((len(blocks.token), width), x.dtype) for width in widths)
    gate, up, outputs = jax.lax.fori_loop(0, blocks.number, of_block, empty)
    return sum_of_token(outputs, ordered.place, x.dtype), Saved(x, gates, matrices, ordered, Hidden(gate, up))


def _apply_backward(
    size: int, saved: Saved, of_result: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"], Float[Array, "n k"], Matrices, None]:
    x, gates, matrices, ordered, hidden = saved
    blocks = cut_blocks(gates, ordered, size)

    def of_block(number: Array, results: tuple[tuple[Array, ...], Matrices]) -> tuple[tuple[Array, ...], Matrices]:
        of_rows, sums = results
        block = block_at(blocks, number, size)
        above = jnp.where(block.is_own, take(of_result, block.token), jnp.zeros((), x.dtype))
        mine = Hidden(*(_rows(part, block.start, size).astype(jnp.float32) for part in hidden))
        of_inputs, of_weight, of_matrices = differentiate(
            take(x, block.token), mine, _of_expert(matrices, block, x.dtype), above, block.weight
        )
        of_rows = _write(of_rows, (of_inputs, of_weight), block)
        return of_rows, jax.tree.map(lambda whole, more: whole.at[block.expert].add(more, mode="promise_in_bounds"), sums, of_matrices)

    of_rows = jax.lax.empty((len(blocks.token), x.shape[1]), x.dtype), jax.lax.empty((len(blocks.token),), jnp.float32)
    zeros = jax.tree.map(lambda matrix: jnp.zeros(matrix.shape, jnp.float32), matrices)
    (of_inputs, of_weights), sums = jax.lax.fori_loop(0, blocks.number, of_block, (of_rows, zeros))
    of_matrices = jax.tree.map(lambda whole, matrix: whole.astype(matrix.dtype), sums, matrices)
    return sum_of_token(of_inputs, ordered.place, x.dtype), take(of_weights, ordered.place), of_matrices, None


_apply = jax.custom_vjp(_apply_plain, nondiff_argnums=(0,))
_apply.defvjp(_apply_forward, _apply_backward)


def differentiate(
    inputs: Float[Array, "c d"], hidden: Hidden, matrices: Matrices, above: Float[Array, "c d"], weight: Float[Array, "c 1"]
) -> tuple[Float[Array, "c d"], Float[Array, " c"], Matrices]:
    """A block's gradients with respect to its inputs, the gates of its rows, and its expert's matrices; float32.

    With h the activated hidden layer, w a row's gate and D the down matrix, the row's result is w · h D: so ∂/∂w is h · (∂/∂result Dᵀ),
    and the results need not be kept.
    """
    sigmoid = jax.nn.sigmoid(hidden.gate)
    silu = hidden.gate * sigmoid
    activated = silu * hidden.up
    of_activated = _product(above, matrices.down.T)
    of_weight = jnp.sum(of_activated * activated, axis=1)
    of_activated = of_activated * weight
    of_up = (of_activated * silu).astype(inputs.dtype)
    of_gate = (of_activated * hidden.up * sigmoid * (1 + hidden.gate * (1 - sigmoid))).astype(inputs.dtype)
    of_down = _product((activated * weight).astype(inputs.dtype).T, above)
    of_inputs = _product(of_gate, matrices.gate.T) + _product(of_up, matrices.up.T)
    return of_inputs, of_weight, Matrices(_product(inputs.T, of_gate), _product(inputs.T, of_up), of_down)


def _of_expert(matrices: Matrices, block: Block, dtype: Any) -> Matrices:
    return Matrices(*(matrix[block.expert].astype(dtype) for matrix in matrices))


def _product(a: Float[Array, "i j"], b: Float[Array, "j l"]) -> Float[Array, "i l"]:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _rows(x: Array, start: Int[Array, ""], size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size)


def _write(results: tuple[Array, ...], parts: tuple[Array, ...], block: Block) -> tuple[Array, ...]:
    pairs = zip(results, parts, strict=True)
    return tuple(jax.lax.dynamic_update_slice_in_dim(whole, part.astype(whole.dtype), block.start, 0) for whole, part in pairs)
