"""The experts by blocks of rows, each of one expert: products of a fixed size, as many as the load needs.

The first block of every expert has room for a quarter more than the mean load. What does not fit goes into further blocks, which exist
only where they are needed: so every distribution is exact, and an even one costs least.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert; m assignment (n · k), p m and one block of padding, c row of a
block, b block.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainer.kernels.expert_order import Order, sorted_gates, sum_of_token, take

MARGIN = 1.25
"""The rows of a block, times the mean load of an expert."""

Weights = tuple[Float[Array, "x d f"], Float[Array, "x d f"], Float[Array, "x f d"]]
"""Gate, up and down of all experts."""


class Blocks(NamedTuple):
    """Which rows each block has. The blocks of an expert follow one another, and the experts too; only the first `number` are used.

    Attributes:
        expert: whose the block is.
        start: its first sorted row.
        end: behind the last row of the expert. A block's rows from there on belong to the next block, which writes its results over them.
        number: how many blocks there are.
    """

    expert: Int[Array, " b"]
    start: Int[Array, " b"]
    end: Int[Array, " b"]
    number: Int[Array, ""]


class Saved(NamedTuple):
    """What the backward pass reads; of what the forward pass computed, only the hidden layer before its activation."""

    x: Float[Array, "n d"]
    gates: Float[Array, "n k"]
    weights: Weights
    ordered: Order
    gate_hidden: Float[Array, "p f"]
    up_hidden: Float[Array, "p f"]


def block_rows(assignments: int, num_experts: int) -> int:
    """The rows of a block."""
    return math.ceil(MARGIN * assignments / num_experts)


def count_overflowed(counts: Int[Array, " x"], size: int) -> Int[Array, ""]:
    """Assignments that the first block of their expert has no room for."""
    return jnp.sum(jnp.maximum(counts - size, 0), dtype=jnp.int32)


def cut_blocks(counts: Int[Array, " x"], assignments: int, size: int) -> Blocks:
    """Blocks of `size` rows for all assignments, whatever their distribution."""
    num_experts = counts.shape[0]
    ends = jnp.cumsum(counts)
    needed = -(-counts // size)
    behind = jnp.cumsum(needed)
    number = jnp.arange(assignments // size + num_experts, dtype=jnp.int32)
    expert = jnp.minimum(jnp.sum(number[:, None] >= behind, axis=1, dtype=jnp.int32), num_experts - 1)
    start = (ends - counts)[expert] + (number - (behind - needed)[expert]) * size
    return Blocks(expert, start, ends[expert], behind[-1])


def apply_blocks(x: Float[Array, "n d"], gates: Float[Array, "n k"], weights: Weights, ordered: Order, size: int) -> Float[Array, "n d"]:
    """As `trainer.kernels.experts.apply_experts`, by blocks of `size` rows."""
    return _apply(size, x, gates, weights, ordered)


def _apply_plain(size: int, x: Float[Array, "n d"], gates: Float[Array, "n k"], weights: Weights, ordered: Order) -> Float[Array, "n d"]:
    return _apply_forward(size, x, gates, weights, ordered)[0]


def _apply_forward(
    size: int, x: Float[Array, "n d"], gates: Float[Array, "n k"], weights: Weights, ordered: Order
) -> tuple[Float[Array, "n d"], Saved]:
    rows = len(ordered.token)
    blocks = cut_blocks(ordered.counts, rows, size)
    token = jnp.pad(ordered.token, (0, size))
    gate = jnp.pad(sorted_gates(gates, ordered), (0, size))
    hidden_size = weights[0].shape[2]

    def of_block(number: Array, results: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        start = blocks.start[number]
        up_gate, up, down = (weight[blocks.expert[number]].astype(x.dtype) for weight in weights)
        inputs = take(x, _rows(token, start, size))
        gate_hidden = _product(inputs, up_gate)
        up_hidden = _product(inputs, up)
        hidden = jax.nn.silu(gate_hidden) * up_hidden * _rows(gate, start, size)[:, None]
        outputs = _product(hidden.astype(x.dtype), down)
        return _write_all(results, (gate_hidden, up_hidden, outputs), start)

    empty = (jax.lax.empty((rows + size, width), x.dtype) for width in (hidden_size, hidden_size, x.shape[1]))
    gate_hidden, up_hidden, outputs = jax.lax.fori_loop(0, blocks.number, of_block, tuple(empty))
    return sum_of_token(outputs, ordered.place, x.dtype), Saved(x, gates, weights, ordered, gate_hidden, up_hidden)


def _apply_backward(
    size: int, saved: Saved, of_result: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"], Float[Array, "n k"], Weights, None]:
    """With h the hidden layer, w a row's gate and D the down matrix: the row's result is w · h D, so ∂/∂w is h · (∂/∂result Dᵀ)."""
    x, gates, weights, ordered = saved[:4]
    rows = len(ordered.token)
    blocks = cut_blocks(ordered.counts, rows, size)
    token = jnp.pad(ordered.token, (0, size))
    gate = jnp.pad(sorted_gates(gates, ordered), (0, size))

    def of_block(number: Array, results: tuple[Any, ...]) -> tuple[Any, ...]:
        of_rows, of_weights = results
        start = blocks.start[number]
        expert = blocks.expert[number]
        is_own = start + jnp.arange(size, dtype=jnp.int32) < blocks.end[number]
        tokens = _rows(token, start, size)
        above = jnp.where(is_own[:, None], take(of_result, tokens), jnp.zeros((), x.dtype))
        hidden = Hidden(*(_rows(part, start, size).astype(jnp.float32) for part in saved[4:]), _rows(gate, start, size)[:, None])
        mine = tuple(weight[expert].astype(x.dtype) for weight in weights)
        more_of_rows, more_of_weights = differentiate(take(x, tokens), hidden, mine, above)
        of_weights = tuple(
            jax.lax.dynamic_update_index_in_dim(sums, sums[expert] + more, expert, 0)
            for sums, more in zip(of_weights, more_of_weights, strict=True)
        )
        return _write_all(of_rows, more_of_rows, start), of_weights

    of_rows = jax.lax.empty((rows + size, x.shape[1]), x.dtype), jax.lax.empty((rows + size,), jnp.float32)
    of_weights = tuple(jnp.zeros(weight.shape, jnp.float32) for weight in weights)
    (of_inputs, of_gates), of_weights = jax.lax.fori_loop(0, blocks.number, of_block, (of_rows, of_weights))
    back = tuple(sums.astype(weight.dtype) for sums, weight in zip(of_weights, weights, strict=True))
    return sum_of_token(of_inputs, ordered.place, x.dtype), take(of_gates, ordered.place), back, None


_apply = jax.custom_vjp(_apply_plain, nondiff_argnums=(0,))
_apply.defvjp(_apply_forward, _apply_backward)


class Hidden(NamedTuple):
    """The hidden layer of a block before its activation, and the gates of its rows; float32."""

    gate: Float[Array, "c f"]
    up: Float[Array, "c f"]
    weight: Float[Array, "c 1"]


def differentiate(
    inputs: Float[Array, "c d"],
    hidden: Hidden,
    weights: tuple[Float[Array, "d f"], Float[Array, "d f"], Float[Array, "f d"]],
    above: Float[Array, "c d"],
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """A block's gradients: of its inputs [c d] and gates [c]; of its expert's gate [d f], up [d f] and down [f d], in float32."""
    dtype = inputs.dtype
    sigmoid = jax.nn.sigmoid(hidden.gate)
    silu = hidden.gate * sigmoid
    activated = silu * hidden.up
    of_activated = _product(above, weights[2].T)
    of_weight = jnp.sum(of_activated * activated, axis=1)
    of_activated = of_activated * hidden.weight
    of_up = (of_activated * silu).astype(dtype)
    of_gate = (of_activated * hidden.up * sigmoid * (1 + hidden.gate * (1 - sigmoid))).astype(dtype)
    of_inputs = _product(of_gate, weights[0].T) + _product(of_up, weights[1].T)
    of_down = _product((activated * hidden.weight).astype(dtype).T, above)
    return (of_inputs, of_weight), (_product(inputs.T, of_gate), _product(inputs.T, of_up), of_down)


def _product(a: Float[Array, "i j"], b: Float[Array, "j l"]) -> Float[Array, "i l"]:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _rows(x: Array, start: Array, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size)


def _write_all(into: tuple[Array, ...], blocks: tuple[Array, ...], start: Array) -> tuple[Any, ...]:
    pairs = zip(into, blocks, strict=True)
    return tuple(jax.lax.dynamic_update_slice_in_dim(whole, part.astype(whole.dtype), start, 0) for whole, part in pairs)
