"""The experts behind one function: each token goes through the MLPs that were chosen for it, and none is dropped.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.base.errors import ConfigError

TILE_ROWS = 512

TILING = (TILE_ROWS, 512, 512)
"""Rows, inputs and outputs of a tile: with 1024 in place of 512 columns, the gradients of the weights have no room in v5e's fast memory."""


class Order(NamedTuple):
    """The assignments sorted by expert; those of one expert stay in the order of the tokens.

    Attributes:
        token: whose each sorted row is.
        place: the sorted row of each assignment.
        counts: rows of each expert.
    """

    token: Int[Array, " m"]
    place: Int[Array, "n k"]
    counts: Int[Array, " x"]


BLOCKS_OF_MEAN = 4
"""So many blocks hold the mean load of an expert. Fewer compute more in vain; more are no quicker (docs/lab/trainer.md)."""

MIN_ROWS = 64
"""Smaller blocks only read an expert's matrices again."""

CAPACITY = 1.25
"""Beyond so many times the mean load an expert overflows: what a padded form would drop, or compute in a second round, is counted."""


class Routed(NamedTuple):
    """What the router decided for each token.

    Attributes:
        chosen: the experts of a token, best first; all different.
        gates: the weight of each of them in the result. They sum to `route_scale`.
        scores: sigmoid of the logits of all experts, without the bias.
    """

    chosen: Int[Array, "*n k"]
    gates: Float[Array, "*n k"]
    scores: Float[Array, "*n x"]


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


KERNELS = ("padded", "ragged", "megablox")
"""The first two run everywhere. `jax.lax.ragged_dot` is there for comparison: with jax 0.10.2, XLA forms every expert's product with every
row for GPUs, v4, v5e, v6e and v7x, and is slow on a CPU; v5p alone has a kernel for it (docs/lab/trainer.md)."""


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
    from jax.experimental.pallas.ops.tpu.megablox import gmm  # half a second, for those who need it

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


def sort_by_expert(chosen: Int[Array, "n k"], num_experts: int) -> Order:
    """One sort of single numbers, expert and assignment in one: eight times as fast on a CPU as a sort that carries a second array.

    The numbers must be below 2³²: 16 million assignments a device where there are 256 experts.
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
    """Rows by their numbers, which are all there: what is not asked whether they are is three times as fast on a CPU."""
    return rows.at[index].get(mode="promise_in_bounds")


def sum_of_token(rows: Float[Array, "m d"], place: Int[Array, "n k"], dtype: jnp.dtype) -> Float[Array, "n d"]:
    """Σ over its experts of a token's sorted rows, in float32; in the order in which they were chosen, on every device."""
    total = take(rows, place[:, 0]).astype(jnp.float32)
    for chosen in range(1, place.shape[1]):
        total += take(rows, place[:, chosen]).astype(jnp.float32)
    return total.astype(dtype)


@jax.custom_vjp
def spread(x: Float[Array, "n d"], ordered: Order) -> Float[Array, "m d"]:
    """Each token's row, once for each of its experts, sorted. The gradient is a gather too, not a scatter."""
    return take(x, ordered.token)


def _spread_forward(x: Float[Array, "n d"], ordered: Order) -> tuple[Float[Array, "m d"], Order]:
    return spread(x, ordered), ordered


def _spread_backward(ordered: Order, of_rows: Float[Array, "m d"]) -> tuple[Float[Array, "n d"], None]:
    return sum_of_token(of_rows, ordered.place, of_rows.dtype), None


spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def collect(rows: Float[Array, "m d"], ordered: Order) -> Float[Array, "n d"]:
    """The sum of each token's sorted rows. The gradient is a gather too."""
    return sum_of_token(rows, ordered.place, rows.dtype)


def _collect_forward(rows: Float[Array, "m d"], ordered: Order) -> tuple[Float[Array, "n d"], Order]:
    return collect(rows, ordered), ordered


def _collect_backward(ordered: Order, of_sum: Float[Array, "n d"]) -> tuple[Float[Array, "m d"], None]:
    return take(of_sum, ordered.token), None


collect.defvjp(_collect_forward, _collect_backward)


def sorted_gates(gates: Float[Array, "n k"], ordered: Order) -> Float[Array, " m"]:
    """The gate of each sorted row."""
    empty = jnp.zeros(gates.size, gates.dtype)
    return empty.at[ordered.place.reshape(-1)].set(gates.reshape(-1), unique_indices=True, mode="promise_in_bounds")


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


def apply_experts(
    x: Float[Array, "n d"],
    routed: Routed,
    gate: Float[Array, "x d f"],
    up: Float[Array, "x d f"],
    down: Float[Array, "x f d"],
    *,
    kernel: str = "auto",
) -> tuple[Float[Array, "n d"], Int[Array, ""]]:
    """Σ over the experts of a token of its gate · down(silu(gate(x)) · up(x)) (Trinity report, eqs 15 and 18).

    Products run in the type of `x`, to which the weights are cast where they are used; their sums, the activation and the gates are
    float32. All distributions of tokens are exact, also that of all tokens to the same experts. Gradients go to `x`, to the weights and
    to `routed.gates`.

    Args:
        kernel: "padded" are blocks of a fixed number of rows, "megablox" is jax's kernel for TPUs, "ragged" is `jax.lax.ragged_dot`. "auto"
            chooses for the platform of this process: to compile for another one, name it.

    Returns:
        The result, and how many assignments are beyond 1.25 times the mean load, each expert's by itself (`Load.overflowed`). None of them
        is dropped, whatever the kernel: the number says how much later the slowest device of an even split would be.

    Raises:
        ConfigError: there is no such kernel.
    """
    assert routed.scores.shape[1] == len(gate), f"the router has {routed.scores.shape[1]} experts, there are weights of {len(gate)}"
    ordered = sort_by_expert(routed.chosen, len(gate))
    result = apply_sorted(x, routed.gates, Matrices(gate, up, down), ordered, kernel)
    return result, count_overflowed(ordered.counts, routed.chosen.size)


def apply_sorted(
    x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, kernel: str
) -> Float[Array, "n d"]:
    """The result of `apply_experts` for sorted assignments. Those behind the last expert's are not computed: their results may be anything.

    Raises:
        ConfigError: there is no such kernel.
    """
    match choose(kernel, "tpu" if kernel == "megablox" else jax.default_backend()):
        case "ragged":
            # As `trainer.kernels.experts.apply_experts`, by `jax.lax.ragged_dot`
            def product(rows: Float[Array, "m i"], stacked: Float[Array, "x i o"]) -> Float[Array, "m o"]:
                return jax.lax.ragged_dot(rows, stacked.astype(x.dtype), ordered.counts, preferred_element_type=jnp.float32)

            rows = spread(x, ordered)
            hidden = jax.nn.silu(product(rows, matrices.gate)) * product(rows, matrices.up) * sorted_gates(gates, ordered)[:, None]
            return collect(product(hidden.astype(x.dtype), matrices.down).astype(x.dtype), ordered)
        case "megablox":
            return apply_megablox(x, gates, matrices, ordered)
        case _:
            return apply_blocks(x, gates, matrices, ordered, block_rows(gates.size, len(matrices.gate)))


def choose(kernel: str, platform: str) -> str:
    """The kernel that is named, or for "auto" the quickest of the platform (`jax.default_backend()`, or the one to compile for).

    Raises:
        ConfigError: there is no such kernel, or it cannot run there.
    """
    if kernel == "auto":
        return "megablox" if platform == "tpu" else "padded"
    if kernel not in KERNELS:
        raise ConfigError(f"execution.expert_kernel must be one of auto, {', '.join(KERNELS)}, found {kernel}.")
    if kernel == "megablox" and platform != "tpu":
        raise ConfigError(f"execution.expert_kernel = megablox needs a TPU, found {platform}. Take another kernel, or auto.")
    return kernel
