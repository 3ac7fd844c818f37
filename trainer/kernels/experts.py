"""The experts of each token on one device. No token is dropped.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert, m assignment (n · k), p padded row, c row of a block.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.base.errors import ConfigError

KERNELS = ("padded", "ragged", "megablox")
"""The first two run on every platform. `jax.lax.ragged_dot` is there for comparison: with jax 0.10.2, XLA computes every expert's product
with every row for GPUs, v4, v5e, v6e and v7x, and is slow on a CPU. Only v5p has a kernel for it (docs/lab/trainer.md)."""
TILE_ROWS = 512
TILING = (TILE_ROWS, 512, 512)
"""Rows, inputs and outputs of a tile. With 1024 instead of 512 columns, the weights' gradients exceed v5e's fast memory."""
BLOCKS_OF_MEAN = 4
"""Number of blocks for the mean load of an expert. Fewer blocks have more padding, and more blocks are not faster (docs/lab/trainer.md)."""
MIN_ROWS = 64  # smaller blocks only read an expert's matrices more often
CAPACITY = 1.25
"""An expert overflows beyond this multiple of the mean load. A kernel with a fixed capacity would drop the overflow, which is counted."""


class Routed(NamedTuple):
    """The router's decision for each token."""

    chosen: Int[Array, "*n k"]  # the different experts of a token, best first
    gates: Float[Array, "*n k"]  # the weight of each of them in the result. They sum to `route_scale`
    scores: Float[Array, "*n x"]  # sigmoid of the logits of all experts, without the bias


class Matrices(NamedTuple):
    """The matrices of all experts (axis x), or of one expert."""

    gate: Float[Array, "*x d f"]
    up: Float[Array, "*x d f"]
    down: Float[Array, "*x f d"]


class Order(NamedTuple):
    """The assignments sorted by expert, and within an expert by token."""

    token: Int[Array, " m"]  # the token of each sorted row
    place: Int[Array, "n k"]  # the sorted row of each assignment
    counts: Int[Array, " x"]  # rows of each expert


class Blocks(NamedTuple):
    """Blocks of rows of one expert each, in the order of the experts. Only the first `number` blocks are used."""

    expert: Int[Array, " b"]
    start: Int[Array, " b"]  # first sorted row of the block
    # end of the expert's rows. From there on, a block's rows belong to the next block, which overwrites their results
    end: Int[Array, " b"]
    number: Int[Array, ""]
    token: Int[Array, " p"]  # the token of each sorted row, then padding for the last block
    weight: Float[Array, " p"]  # the gate of each sorted row


class Block(NamedTuple):
    """The rows of one block. `is_own` is False for rows of the next block."""

    expert: Int[Array, ""]
    start: Int[Array, ""]
    token: Int[Array, " c"]
    weight: Float[Array, "c 1"]
    is_own: Bool[Array, "c 1"]


def apply_experts(
    x: Float[Array, "n d"],
    routed: Routed,
    gate: Float[Array, "x d f"],
    up: Float[Array, "x d f"],
    down: Float[Array, "x f d"],
    *,
    kernel: str = "auto",
) -> tuple[Float[Array, "n d"], Int[Array, ""]]:
    """Return Σ over the experts of a token of gate · down(silu(gate(x)) · up(x)) (Trinity report, eqs 15 and 18).

    Products run in the type of `x`, to which the weights are cast when they are used. Their sums, the activation and the gates are float32.
    The result is exact for every distribution of tokens. `x`, the weights and `routed.gates` have gradients.

    Args:
        kernel: "padded" uses blocks of a fixed number of rows, "megablox" is jax's kernel for TPUs, "ragged" is `jax.lax.ragged_dot`.
            "auto" chooses for the platform of this process. Name the kernel to compile for another platform.

    Returns:
        The result, and the number of assignments beyond 1.25 times the mean load of their expert (`Load.overflowed`).
    """
    assert routed.scores.shape[1] == len(gate), f"the router has {routed.scores.shape[1]} experts, there are weights of {len(gate)}"
    ordered = sort_by_expert(routed.chosen, len(gate))
    result = apply_sorted(x, routed.gates, Matrices(gate, up, down), ordered, kernel)
    capacity = math.ceil(CAPACITY * routed.chosen.size / len(gate))
    return result, jnp.sum(jnp.maximum(ordered.counts - capacity, 0), dtype=jnp.int32)


def apply_sorted(
    x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, kernel: str
) -> Float[Array, "n d"]:
    """Return the result of `apply_experts` for sorted assignments. Results of rows after the last expert's rows are undefined."""
    match choose(kernel, "tpu" if kernel == "megablox" else jax.default_backend()):
        case "ragged":
            product = partial(jax.lax.ragged_dot, group_sizes=ordered.counts, preferred_element_type=jnp.float32)
            rows = spread(x, ordered)
            activated = jax.nn.silu(product(rows, matrices.gate.astype(x.dtype)))
            hidden = activated * product(rows, matrices.up.astype(x.dtype)) * sorted_gates(gates, ordered)[:, None]
            hidden = hidden.astype(x.dtype)
            return collect(product(hidden, matrices.down.astype(x.dtype)).astype(x.dtype), ordered)
        case "megablox":
            return apply_megablox(x, gates, matrices, ordered)
        case _:
            size = max(MIN_ROWS, -(-gates.size // (BLOCKS_OF_MEAN * len(matrices.gate))))
            return apply_blocks(x, gates, matrices, ordered, min(size, gates.size))


def choose(kernel: str, platform: str) -> str:
    """Return the named kernel, or for "auto" the fastest on the platform. Raises ConfigError if it does not exist or cannot run."""
    if kernel == "auto":
        return "megablox" if platform == "tpu" else "padded"
    if kernel not in KERNELS:
        raise ConfigError(f"execution.expert_kernel must be one of auto, {', '.join(KERNELS)}, found {kernel}.")
    if kernel == "megablox" and platform != "tpu":
        raise ConfigError(f"execution.expert_kernel = megablox needs a TPU, found {platform}. Take another kernel, or auto.")
    return kernel


def sort_by_expert(chosen: Int[Array, "n k"], num_experts: int) -> Order:
    """Sort the assignments by keys of expert and assignment: on a CPU eight times as fast as a sort with a second array.

    The keys must be below 2³²: 16 million assignments on a device with 256 experts.
    """
    tokens, active = chosen.shape
    rows = tokens * active
    assert rows * num_experts < 2**32, f"{rows} assignments to {num_experts} experts on one device are too many to be sorted as 32 bits"
    assignment = jnp.arange(rows, dtype=jnp.uint32)
    expert_first = jnp.sort(chosen.reshape(-1).astype(jnp.uint32) * jnp.uint32(rows) + assignment)
    source = (expert_first % jnp.uint32(rows)).astype(jnp.int32)
    place = jnp.zeros(rows, jnp.int32).at[source].set(jnp.arange(rows, dtype=jnp.int32), unique_indices=True, mode="promise_in_bounds")
    counts = jnp.sum(chosen.reshape(-1, 1) == jnp.arange(num_experts, dtype=chosen.dtype), axis=0, dtype=jnp.int32)
    return Order(source // active, place.reshape(tokens, active), counts)


def take(rows: Float[Array, "r *c"], index: Int[Array, " i"]) -> Float[Array, "i *c"]:
    """Return rows by number, without a check of the bounds: on a CPU three times as fast."""
    return rows.at[index].get(mode="promise_in_bounds")


def sum_of_token(rows: Float[Array, "m d"], place: Int[Array, "n k"], dtype: jnp.dtype) -> Float[Array, "n d"]:
    """Return Σ over its experts of a token's sorted rows, in float32 and in the order of choice on every device."""
    total = take(rows, place[:, 0]).astype(jnp.float32)
    for chosen in range(1, place.shape[1]):
        total += take(rows, place[:, chosen]).astype(jnp.float32)
    return total.astype(dtype)


def sorted_gates(gates: Float[Array, "n k"], ordered: Order) -> Float[Array, " m"]:
    """Return the gate of each sorted row."""
    empty = jnp.zeros(gates.size, gates.dtype)
    return empty.at[ordered.place.reshape(-1)].set(gates.reshape(-1), unique_indices=True, mode="promise_in_bounds")


@jax.custom_vjp
def spread(x: Float[Array, "n d"], ordered: Order) -> Float[Array, "m d"]:
    """Return each token's row once for each of its experts, sorted. The gradient is a gather, not a scatter."""
    return take(x, ordered.token)


spread.defvjp(
    lambda x, ordered: (spread(x, ordered), ordered), lambda ordered, of_rows: (sum_of_token(of_rows, ordered.place, of_rows.dtype), None)
)


@jax.custom_vjp
def collect(rows: Float[Array, "m d"], ordered: Order) -> Float[Array, "n d"]:
    """Return the sum of each token's sorted rows. The gradient is a gather."""
    return sum_of_token(rows, ordered.place, rows.dtype)


collect.defvjp(lambda rows, ordered: (collect(rows, ordered), ordered), lambda ordered, of_sum: (take(of_sum, ordered.token), None))


def apply_megablox(
    x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, *, interpret: bool = False
) -> Float[Array, "n d"]:
    """Apply sorted experts by jax's kernel for TPUs. Products are rounded to the type of `x`, as in the other layers of the model.

    The kernel needs whole tiles: rows of zeros fill the last expert's tile. `interpret` runs it on any platform, for tests.
    """
    rows = len(ordered.token)
    missing = -rows % TILE_ROWS
    counts = ordered.counts.at[-1].add(missing)
    inputs = jnp.pad(spread(x, ordered), [(0, missing), (0, 0)])
    weights = jnp.pad(sorted_gates(gates, ordered), (0, missing))
    gate = _multiply(interpret, inputs, matrices.gate.astype(x.dtype), counts).astype(jnp.float32)
    up = _multiply(interpret, inputs, matrices.up.astype(x.dtype), counts).astype(jnp.float32)
    activated = (jax.nn.silu(gate) * up * weights[:, None]).astype(x.dtype)
    return collect(_multiply(interpret, activated, matrices.down.astype(x.dtype), counts)[:rows], ordered)


def _grouped_product(
    interpret: bool, left: Float[Array, "p i"], stacked: Float[Array, "x i o"], counts: Int[Array, " x"]
) -> Float[Array, "p o"]:
    from jax.experimental.pallas.ops.tpu.megablox import gmm  # imports for half a second

    with jax.numpy_dtype_promotion("standard"):
        return gmm(left, stacked, counts, left.dtype, TILING, None, None, False, interpret)


_multiply = jax.custom_vjp(_grouped_product, nondiff_argnums=(0,))
"""jax's kernel promotes types, also in its backward pass, which the decoder forbids."""


def _multiply_backward(interpret: bool, saved: tuple[Array, Array, Array], of_result: Array) -> tuple[Array, Array, None]:
    left, stacked, counts = saved
    with jax.numpy_dtype_promotion("standard"):
        _, backward = jax.vjp(lambda left, stacked: _grouped_product(interpret, left, stacked, counts), left, stacked)
        return *backward(of_result), None


_multiply.defvjp(lambda interpret, *operands: (_multiply(interpret, *operands), operands), _multiply_backward)


def _blocks_forward(
    x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, size: int
) -> tuple[Float[Array, "n d"], tuple[Any, ...]]:
    blocks = cut_blocks(gates, ordered, size)

    def of_block(number: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
        block = block_at(blocks, number, size)
        of_expert = Matrices(*(matrix[block.expert].astype(x.dtype) for matrix in matrices))
        inputs = take(x, block.token)
        gate, up = (_product(inputs, matrix) for matrix in (of_expert.gate, of_expert.up))
        activated = (jax.nn.silu(gate) * up * block.weight).astype(x.dtype)
        return _write(results, (gate, up, _product(activated, of_expert.down)), block)

    widths = (matrices.gate.shape[2], matrices.gate.shape[2], x.shape[1])
    empty = tuple(jax.lax.empty((len(blocks.token), width), x.dtype) for width in widths)
    gate, up, outputs = jax.lax.fori_loop(0, blocks.number, of_block, empty)
    return sum_of_token(outputs, ordered.place, x.dtype), (x, gates, matrices, ordered, gate, up)


def _blocks_backward(
    size: int, saved: tuple[Any, ...], of_result: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"], Float[Array, "n k"], Matrices, None]:
    """Products and sums are float32.

    With the activated hidden layer h, a row's gate w and the down matrix D, the row's result is w · h D. So ∂/∂w is h · (∂/∂result Dᵀ),
    without the results.
    """
    x, gates, matrices, ordered, *all_hidden = saved
    blocks = cut_blocks(gates, ordered, size)

    def of_block(number: Array, results: tuple[tuple[Array, ...], Matrices]) -> tuple[tuple[Array, ...], Matrices]:
        of_rows, sums = results
        block = block_at(blocks, number, size)
        above = jnp.where(block.is_own, take(of_result, block.token), jnp.zeros((), x.dtype))
        hidden = [jax.lax.dynamic_slice_in_dim(part, block.start, size).astype(jnp.float32) for part in all_hidden]
        inputs = take(x, block.token)
        of_expert = Matrices(*(matrix[block.expert].astype(x.dtype) for matrix in matrices))

        gate, up = hidden
        sigmoid = jax.nn.sigmoid(gate)
        silu = gate * sigmoid
        activated = silu * up
        of_activated = _product(above, of_expert.down.T)
        of_weight = jnp.sum(of_activated * activated, axis=1)
        of_activated = of_activated * block.weight
        of_up = (of_activated * silu).astype(x.dtype)
        of_gate = (of_activated * up * sigmoid * (1 + gate * (1 - sigmoid))).astype(x.dtype)
        of_down = _product((activated * block.weight).astype(x.dtype).T, above)
        of_inputs = _product(of_gate, of_expert.gate.T) + _product(of_up, of_expert.up.T)
        of_matrices = Matrices(_product(inputs.T, of_gate), _product(inputs.T, of_up), of_down)
        of_rows = _write(of_rows, (of_inputs, of_weight), block)
        return of_rows, jax.tree.map(lambda whole, more: whole.at[block.expert].add(more, mode="promise_in_bounds"), sums, of_matrices)

    of_rows = jax.lax.empty((len(blocks.token), x.shape[1]), x.dtype), jax.lax.empty((len(blocks.token),), jnp.float32)
    zeros = jax.tree.map(lambda matrix: jnp.zeros(matrix.shape, jnp.float32), matrices)
    (of_inputs, of_weights), sums = jax.lax.fori_loop(0, blocks.number, of_block, (of_rows, zeros))
    of_matrices = jax.tree.map(lambda whole, matrix: whole.astype(matrix.dtype), sums, matrices)
    return sum_of_token(of_inputs, ordered.place, x.dtype), take(of_weights, ordered.place), of_matrices, None


apply_blocks = jax.custom_vjp(lambda *arguments: _blocks_forward(*arguments)[0], nondiff_argnums=(4,))
"""Apply sorted experts by blocks of a number of rows, the last argument."""
apply_blocks.defvjp(_blocks_forward, _blocks_backward)


def cut_blocks(gates: Float[Array, "n k"], ordered: Order, size: int) -> Blocks:
    """Return blocks of `size` rows for all assignments, for every distribution."""
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
    """Return one block."""
    start = blocks.start[number]
    is_own = start + jnp.arange(size, dtype=jnp.int32) < blocks.end[number]
    expert = blocks.expert[number]
    token, weight = (jax.lax.dynamic_slice_in_dim(part, start, size) for part in (blocks.token, blocks.weight))
    return Block(expert, start, token, weight[:, None], is_own[:, None])


def _product(a: Float[Array, "i j"], b: Float[Array, "j l"]) -> Float[Array, "i l"]:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _write(results: tuple[Array, ...], parts: tuple[Array, ...], block: Block) -> tuple[Array, ...]:
    pairs = zip(results, parts, strict=True)
    return tuple(jax.lax.dynamic_update_slice_in_dim(whole, part.astype(whole.dtype), block.start, 0) for whole, part in pairs)
