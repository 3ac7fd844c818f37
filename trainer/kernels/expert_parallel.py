"""The experts on a mesh: each device sorts its own tokens, and on an `expert` axis sends rows to the devices of their experts.

No token is dropped: rows travel in as many rounds as the fullest device needs, which all devices know from the counts.

Shape letters: n token (or b row and t position: `join_rows`), k chosen expert, x expert, d d_model, f d_expert, m assignment (n · k),
e device of the axis, y expert of a device, r received row.
"""

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from phasewise.trainer.kernels.experts import (
    CAPACITY,
    Matrices,
    Routed,
    apply_experts,
    apply_sorted,
    choose,
    collect,
    sort_by_expert,
    sorted_gates,
    spread,
    take,
)
from phasewise.trainer.sharding import BATCH_AXES, CONTEXT_AXIS, EXPERT_AXIS, TENSOR_AXIS, constrain, context_parts

ROOM = 1.25
"""A device has room for this multiple of the rows of an even load. Less room makes more rounds, and more room costs memory and traffic."""
FURTHER_ROUNDS = "further_rounds"
"""Name of the rounds in a compiled program that a balanced load does not need. Preflight does not count them."""
Way = Literal["dense", "ragged"]
"""`jax.lax.all_to_all` moves the whole room. `jax.lax.ragged_all_to_all`, which XLA has for TPUs, moves only the rows."""
Counts = Int[Array, "e e y"]  # rows of each device for each device's experts: the same array on all devices


class Passage(NamedTuple):
    """Static sizes of the exchange."""

    way: Way
    rows: int  # sorted rows of a device
    room: int  # rows that a device can receive in a round: a multiple of the number of devices


class Window(NamedTuple):
    """The rows of a round."""

    begin: Int[Array, "e e"]  # the first sorted row on the sender
    size: Int[Array, "e e"]  # number of rows
    place: Int[Array, "e e"]  # the first row on the receiver
    expert: Int[Array, " r"]  # the expert of each received row, among this device's experts, or their number for an empty row


def apply_on_mesh(
    x: Float[Array, "*n d"], routed: Routed, matrices: Matrices, *, kernel: str
) -> tuple[Float[Array, "*n d"], Int[Array, ""]]:
    """As `trainer.kernels.experts.apply_experts`, on the current mesh, if there is one.

    Each device has the matrices of its experts, gathered over `fsdp` in the type of `x` (as the compiler gathers dense weights), and its
    part of d_expert, over which `tensor` sums. Overflow is counted over all devices, as on one.
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
    capacity = math.ceil(CAPACITY * routed.chosen.size / num_experts)
    return result, jnp.sum(jnp.maximum(counts - capacity, 0), dtype=jnp.int32)


def _apply_local(
    x: Float[Array, "*n d"],
    gates: Float[Array, "*n k"],
    chosen: Int[Array, "*n k"],
    parts: tuple[Float[Array, "y d f"], Float[Array, "y d f"], Float[Array, "y f d"]],
    *,
    num_experts: int,
    kernel: str,
) -> Float[Array, "*n d"]:
    shape = x.shape
    x, gates, chosen = (each.reshape(-1, each.shape[-1]) for each in (x, gates, chosen))
    matrices = Matrices(*parts)
    ordered = sort_by_expert(chosen, num_experts)
    devices = jax.lax.axis_size(EXPERT_AXIS)
    if devices == 1:
        result = apply_sorted(x, gates, matrices, ordered, kernel)
    else:
        is_tpu = choose(kernel, "tpu" if kernel == "megablox" else jax.default_backend()) == "megablox"
        room = devices * min(math.ceil(ROOM * chosen.size / devices), chosen.size)
        passage = Passage("ragged" if is_tpu else "dense", chosen.size, room)
        counts = jax.lax.all_gather(ordered.counts.reshape(devices, -1), EXPERT_AXIS)
        mixed = _exchange(passage, kernel, spread(x, ordered), sorted_gates(gates, ordered), matrices, counts)
        result = collect(mixed, ordered)
    result = result.reshape(shape)
    return result if jax.lax.axis_size(TENSOR_AXIS) == 1 else jax.lax.psum(result, TENSOR_AXIS)


def _exchange_forward(
    passage: Passage, kernel: str, rows: Float[Array, "m d"], gates: Float[Array, " m"], matrices: Matrices, counts: Counts
) -> tuple[Float[Array, "m d"], tuple[Any, ...]]:
    results, backward = jax.vjp(partial(_round, passage, kernel, counts, 0), rows, gates, matrices)
    with jax.named_scope(FURTHER_ROUNDS):
        results = jax.lax.fori_loop(
            1,
            _count_rounds(counts, passage),
            lambda number, results: results + _round(passage, kernel, counts, number, rows, gates, matrices),
            results,
        )
    return results, (backward, rows, gates, matrices, counts)


def _exchange_backward(passage: Passage, kernel: str, saved: tuple[Any, ...], of_results: Float[Array, "m d"]) -> tuple[Any, ...]:
    backward, rows, gates, matrices, counts = saved

    def add(number: Int[Array, ""], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        _, again = jax.vjp(partial(_round, passage, kernel, counts, number), rows, gates, matrices)
        return jax.tree.map(jnp.add, gradients, again(of_results))

    gradients = backward(of_results)
    with jax.named_scope(FURTHER_ROUNDS):
        gradients = jax.lax.fori_loop(1, _count_rounds(counts, passage), add, gradients)
    return *gradients, None


_exchange = jax.custom_vjp(lambda *arguments: _exchange_forward(*arguments)[0], nondiff_argnums=(0, 1))
_exchange.defvjp(_exchange_forward, _exchange_backward)


def _count_rounds(counts: Counts, passage: Passage) -> Int[Array, ""]:
    """Return the number of rounds on the fullest device (dense: pair of devices): 1 up to 1.25 times an even share."""
    totals = jnp.sum(counts, axis=2)
    if passage.way == "dense":
        rounds = -(-jnp.max(totals) // (passage.room // len(counts)))
    else:
        rounds = -(-jnp.max(jnp.sum(totals, axis=0)) // passage.room)
    return jax.lax.pmax(rounds, (*BATCH_AXES, TENSOR_AXIS, CONTEXT_AXIS))


def _round(
    passage: Passage,
    kernel: str,
    counts: Counts,
    number: Int[Array, ""] | int,
    rows: Float[Array, "m d"],
    gates: Float[Array, " m"],
    matrices: Matrices,
) -> Float[Array, "m d"]:
    # The window of the round. Dense: each pair of devices has a part of the room. Ragged: senders fill the room in order
    devices, _, experts = counts.shape
    room = passage.room
    totals = jnp.sum(counts, axis=2)
    if passage.way == "dense":
        part = room // devices
        low = jnp.minimum(totals, number * part)
        high = jnp.minimum(totals, (number + 1) * part)
        place = jnp.broadcast_to(part * jnp.arange(devices, dtype=jnp.int32)[:, None], totals.shape)
    else:
        queue = jnp.cumsum(totals, axis=0) - totals
        low = jnp.clip(number * room - queue, 0, totals)
        high = jnp.clip((number + 1) * room - queue, 0, totals)
        place = jnp.clip(queue - number * room, 0, room)
    begin = jnp.cumsum(totals, axis=1) - totals + low
    here = jax.lax.axis_index(EXPERT_AXIS)
    first, size = low[:, here], high[:, here] - low[:, here]
    ends = place[:, here, None] + jnp.clip(jnp.cumsum(counts[:, here], axis=1) - first[:, None], 0, size[:, None])
    moved, starts = high - low, place[:, here]
    row = jnp.arange(room, dtype=jnp.int32)
    run = jnp.sum(row[:, None] >= ends.reshape(-1), axis=1, dtype=jnp.int32)
    source = jnp.minimum(run // experts, len(starts) - 1)
    is_there = (run < ends.size) & (row >= starts[source])
    window = Window(begin, moved, place, jnp.where(is_there, run % experts, experts))

    inputs = send_rows(passage, rows, window)
    weights = send_rows(passage, gates[:, None], window)
    ordered = sort_by_expert(window.expert[:, None], experts + 1)
    results = apply_sorted(inputs, weights, matrices, ordered._replace(counts=ordered.counts[:experts]), kernel)
    return return_rows(passage, results, window)


def _send(passage: Passage, rows: Float[Array, "m d"], window: Window) -> Float[Array, "r d"]:
    here = jax.lax.axis_index(EXPERT_AXIS)
    begin, size, place, _ = window
    if passage.way == "ragged":
        empty = jnp.zeros((passage.room, rows.shape[1]), rows.dtype)
        return jax.lax.ragged_all_to_all(rows, empty, begin[here], size[here], place[here], size[:, here], axis_name=EXPERT_AXIS)
    offset = jnp.arange(passage.room // len(begin), dtype=jnp.int32)
    index = jnp.minimum(begin[here][:, None] + offset, passage.rows - 1).reshape(-1)
    is_there = (offset < size[here][:, None]).reshape(-1, 1)
    sent = jnp.where(is_there, take(rows, index), jnp.zeros((), rows.dtype))
    return jax.lax.all_to_all(sent, EXPERT_AXIS, 0, 0, tiled=True)


def _return(passage: Passage, results: Float[Array, "r d"], window: Window) -> Float[Array, "m d"]:
    here = jax.lax.axis_index(EXPERT_AXIS)
    begin, size, place, _ = window
    if passage.way == "ragged":
        empty = jnp.zeros((passage.rows, results.shape[1]), results.dtype)
        return jax.lax.ragged_all_to_all(results, empty, place[:, here], size[:, here], begin[:, here], size[here], axis_name=EXPERT_AXIS)
    devices = len(begin)
    offset = jnp.arange(passage.rows, dtype=jnp.int32)[:, None] - begin[here]
    is_theirs = (offset >= 0) & (offset < size[here])
    slot = passage.room // devices * jnp.arange(devices, dtype=jnp.int32) + offset
    received = jax.lax.all_to_all(results, EXPERT_AXIS, 0, 0, tiled=True)
    back = take(received, jnp.sum(jnp.where(is_theirs, slot, 0), axis=1, dtype=jnp.int32))
    return jnp.where(is_theirs.any(axis=1)[:, None], back, jnp.zeros((), results.dtype))


send_rows = jax.custom_vjp(_send, nondiff_argnums=(0,))
return_rows = jax.custom_vjp(_return, nondiff_argnums=(0,))
send_rows.defvjp(
    lambda passage, rows, window: (send_rows(passage, rows, window), window),
    lambda passage, window, of_received: (return_rows(passage, of_received, window), None),
)
return_rows.defvjp(
    lambda passage, results, window: (return_rows(passage, results, window), window),
    lambda passage, window, of_rows: (send_rows(passage, of_rows, window), None),
)
