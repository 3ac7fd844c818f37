"""The experts on a mesh: each device sorts its own tokens; where `expert` deals out experts, rows go to the devices that have theirs.

A token's row has the same gate, expert and products as on one device, and the sum over its experts is formed on its own device in the same
order. No distribution drops a token: rows travel in as many rounds as the fullest device needs, which all devices know from the counts.

Shape letters: n token (or b row and t position: `join_rows`), k chosen expert, x expert, d d_model, f d_expert; m assignment (n · k),
e device of the axis, y expert of a device.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from phasewise.trainer.kernels.expert_blocks import Matrices, count_overflowed
from phasewise.trainer.kernels.expert_exchange import Counts, Passage, count_rounds, cut_window, plan_passage, return_rows, send_rows
from phasewise.trainer.kernels.expert_order import collect, sort_by_expert, sorted_gates, spread
from phasewise.trainer.kernels.experts import apply_experts, apply_sorted, choose
from phasewise.trainer.kernels.rows import context_parts
from phasewise.trainer.model.router import Routed
from phasewise.trainer.sharding import BATCH_AXES, CONTEXT_AXIS, EXPERT_AXIS, TENSOR_AXIS, constrain

FURTHER_ROUNDS = "further_rounds"
"""The name, in a compiled program, of what a balanced load does not do; preflight does not count it."""


def apply_on_mesh(
    x: Float[Array, "*n d"], routed: Routed, matrices: Matrices, *, kernel: str
) -> tuple[Float[Array, "*n d"], Int[Array, ""]]:
    """As `trainer.kernels.experts.apply_experts`, on the mesh in sight; without one it is that function.

    Each device has the matrices of its experts, gathered over `fsdp` in the type of `x` (as the compiler gathers dense weights), and its
    part of d_expert; parts are summed over `tensor`. What is beyond 1.25 times the mean load is counted over all devices, as on one.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return apply_experts(x, routed, *matrices, kernel=kernel)
    num_experts = routed.scores.shape[-1]
    is_cut = len(x) % math.prod(mesh.shape[axis] for axis in BATCH_AXES) == 0
    along = (CONTEXT_AXIS,) if x.ndim > 2 and context_parts(x.shape[1]) > 1 else ()
    rows = PartitionSpec(BATCH_AXES if is_cut else None, *along)
    inner, outer = PartitionSpec(EXPERT_AXIS, None, TENSOR_AXIS), PartitionSpec(EXPERT_AXIS, TENSOR_AXIS)
    narrow = (
        constrain(matrices.gate.astype(x.dtype), "expert", "expert_d_model", "d_ff"),
        constrain(matrices.up.astype(x.dtype), "expert", "expert_d_model", "d_ff"),
        constrain(matrices.down.astype(x.dtype), "expert", "d_ff", "expert_d_model"),
    )
    local = partial(_apply_local, num_experts=num_experts, kernel=kernel)
    specs = (rows, rows, rows, (inner, inner, outer))
    result = jax.shard_map(local, in_specs=specs, out_specs=rows, check_vma=False)(x, routed.gates, routed.chosen, narrow)
    axes = tuple(range(routed.chosen.ndim))
    counts = jnp.sum(routed.chosen[..., None] == jnp.arange(num_experts, dtype=jnp.int32), axis=axes, dtype=jnp.int32)
    return result, count_overflowed(counts, routed.chosen.size)


def _apply_local(
    x: Float[Array, "*n d"],
    gates: Float[Array, "*n k"],
    chosen: Int[Array, "*n k"],
    parts: tuple[Float[Array, "y d f"], Float[Array, "y d f"], Float[Array, "y f d"]],
    *,
    num_experts: int,
    kernel: str,
) -> Float[Array, "*n d"]:
    """What one device does with its tokens; `parts` are the matrices of its experts, perhaps of a part of d_expert."""
    shape = x.shape
    x, gates, chosen = (each.reshape(-1, each.shape[-1]) for each in (x, gates, chosen))
    matrices = Matrices(*parts)
    ordered = sort_by_expert(chosen, num_experts)
    devices = jax.lax.axis_size(EXPERT_AXIS)
    if devices == 1:
        result = apply_sorted(x, gates, matrices, ordered, kernel)
    else:
        is_tpu = choose(kernel, "tpu" if kernel == "megablox" else jax.default_backend()) == "megablox"
        passage = plan_passage("ragged" if is_tpu else "dense", chosen.size, devices)
        counts = jax.lax.all_gather(ordered.counts.reshape(devices, -1), EXPERT_AXIS)
        mixed = _exchange(passage, kernel, spread(x, ordered), sorted_gates(gates, ordered), matrices, counts)
        result = collect(mixed, ordered)
    result = result.reshape(shape)
    return result if jax.lax.axis_size(TENSOR_AXIS) == 1 else jax.lax.psum(result, TENSOR_AXIS)


def _round(
    passage: Passage,
    kernel: str,
    counts: Counts,
    number: Int[Array, ""] | int,
    rows: Float[Array, "m d"],
    gates: Float[Array, " m"],
    matrices: Matrices,
) -> Float[Array, "m d"]:
    """The results of the rows that a round moves; zeros for the others."""
    window = cut_window(counts, number, passage)
    inputs = send_rows(passage, rows, window)
    weights = send_rows(passage, gates[:, None], window)
    experts = counts.shape[2]
    ordered = sort_by_expert(window.expert[:, None], experts + 1)
    results = apply_sorted(inputs, weights, matrices, ordered._replace(counts=ordered.counts[:experts]), kernel)
    return return_rows(passage, results, window)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _exchange(
    passage: Passage, kernel: str, rows: Float[Array, "m d"], gates: Float[Array, " m"], matrices: Matrices, counts: Counts
) -> Float[Array, "m d"]:
    """The results of all rows, in as many rounds as they need."""
    return _exchange_forward(passage, kernel, rows, gates, matrices, counts)[0]


def _exchange_forward(
    passage: Passage, kernel: str, rows: Float[Array, "m d"], gates: Float[Array, " m"], matrices: Matrices, counts: Counts
) -> tuple[Float[Array, "m d"], tuple[Any, ...]]:
    """The first round keeps what its backward pass reads; further ones, which a balanced load has none of, are computed again there."""
    results, backward = jax.vjp(partial(_round, passage, kernel, counts, 0), rows, gates, matrices)

    def add(number: Int[Array, ""], results: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return results + _round(passage, kernel, counts, number, rows, gates, matrices)

    with jax.named_scope(FURTHER_ROUNDS):
        results = jax.lax.fori_loop(1, _rounds(counts, passage), add, results)
    return results, (backward, rows, gates, matrices, counts)


def _exchange_backward(passage: Passage, kernel: str, saved: tuple[Any, ...], of_results: Float[Array, "m d"]) -> tuple[Any, ...]:
    backward, rows, gates, matrices, counts = saved

    def add(number: Int[Array, ""], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        _, again = jax.vjp(partial(_round, passage, kernel, counts, number), rows, gates, matrices)
        return jax.tree.map(jnp.add, gradients, again(of_results))

    gradients = backward(of_results)
    with jax.named_scope(FURTHER_ROUNDS):
        gradients = jax.lax.fori_loop(1, _rounds(counts, passage), add, gradients)
    return *gradients, None


_exchange.defvjp(_exchange_forward, _exchange_backward)


def _rounds(counts: Counts, passage: Passage) -> Int[Array, ""]:
    """As many on all devices of the mesh, not only of this row of it: a loop with exchanges must not end earlier on some."""
    return jax.lax.pmax(count_rounds(counts, passage), (*BATCH_AXES, TENSOR_AXIS, CONTEXT_AXIS))
