"""Rows on their way to the devices that have their experts, and back: in rounds, for the room on a device is fixed and the load is not.

Each device of the mesh axis `expert` has sorted rows, and the same number of experts, in the order of the devices. A round moves what a
window says. The devices know all counts, so no round needs to ask how much comes.

Shape letters: e device of the axis (`from` first, then `to`), y expert of a device, m sorted row, r room for received rows.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from phasewise.trainer.kernels.expert_order import take
from phasewise.trainer.sharding import EXPERT_AXIS

ROOM = 1.25
"""A device has room for so many times the rows of an even load. Less makes further rounds frequent; more is memory and traffic in vain."""
Way = Literal["dense", "ragged"]
"""`jax.lax.all_to_all` moves the room, full or not; `jax.lax.ragged_all_to_all`, which XLA has for TPUs, moves the rows that are there."""
Counts = Int[Array, "e e y"]
"""Rows of each device for each device's experts: the same array on all of them."""


class Passage(NamedTuple):
    """How rows travel; known while the program is compiled.

    Attributes:
        rows: sorted rows of a device.
        room: rows that a device can receive in a round; a multiple of the number of devices.
    """

    way: Way
    rows: int
    room: int


class Window(NamedTuple):
    """What a round moves.

    Attributes:
        begin: the first sorted row, on the device that sends.
        size: how many rows.
        place: where they lie on the device that receives.
        expert: whose each received row is, among this device's experts; their number where no row is.
    """

    begin: Int[Array, "e e"]
    size: Int[Array, "e e"]
    place: Int[Array, "e e"]
    expert: Int[Array, " r"]


def plan_passage(way: Way, rows: int, devices: int) -> Passage:
    """Room for 1.25 times an even load."""
    return Passage(way, rows, devices * min(math.ceil(ROOM * rows / devices), rows))


def count_rounds(counts: Counts, passage: Passage) -> Int[Array, ""]:
    """How many rounds move everything. One, where no device (dense: no pair of devices) has more than 1.25 times its share."""
    totals = jnp.sum(counts, axis=2)
    if passage.way == "dense":
        return -(-jnp.max(totals) // (passage.room // len(counts)))
    return -(-jnp.max(jnp.sum(totals, axis=0)) // passage.room)


def cut_window(counts: Counts, number: Int[Array, ""] | int, passage: Passage) -> Window:
    """The window of a round. Dense: each pair of devices has a part of the room; ragged: who comes first in their order has it."""
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
    return Window(begin, high - low, place, _experts_of(ends, place[:, here], room, experts))


def _experts_of(ends: Int[Array, "e y"], place: Int[Array, " e"], room: int, experts: int) -> Int[Array, " r"]:
    """Whose each received row is. `ends` are behind the rows of each expert, from each device."""
    row = jnp.arange(room, dtype=jnp.int32)
    number = jnp.sum(row[:, None] >= ends.reshape(-1), axis=1, dtype=jnp.int32)
    source = jnp.minimum(number // experts, len(place) - 1)
    is_there = (number < ends.size) & (row >= place[source])
    return jnp.where(is_there, number % experts, experts)


def _send(passage: Passage, rows: Float[Array, "m d"], window: Window) -> Float[Array, "r d"]:
    """The window's rows, on the devices of their experts; zeros where there are none. Its gradient is `return_rows`."""
    return (_send_dense if passage.way == "dense" else _send_ragged)(passage, rows, window)


def _return(passage: Passage, results: Float[Array, "r d"], window: Window) -> Float[Array, "m d"]:
    """Received rows, back at their places on the devices that sent them; zeros in the rows of other rounds. Its gradient is `send_rows`."""
    return (_return_dense if passage.way == "dense" else _return_ragged)(passage, results, window)


send_rows = jax.custom_vjp(_send, nondiff_argnums=(0,))
return_rows = jax.custom_vjp(_return, nondiff_argnums=(0,))


def _send_forward(passage: Passage, rows: Float[Array, "m d"], window: Window) -> tuple[Float[Array, "r d"], Window]:
    return send_rows(passage, rows, window), window


def _send_backward(passage: Passage, window: Window, of_received: Float[Array, "r d"]) -> tuple[Float[Array, "m d"], None]:
    return return_rows(passage, of_received, window), None


def _return_forward(passage: Passage, results: Float[Array, "r d"], window: Window) -> tuple[Float[Array, "m d"], Window]:
    return return_rows(passage, results, window), window


def _return_backward(passage: Passage, window: Window, of_rows: Float[Array, "m d"]) -> tuple[Float[Array, "r d"], None]:
    return send_rows(passage, of_rows, window), None


send_rows.defvjp(_send_forward, _send_backward)
return_rows.defvjp(_return_forward, _return_backward)


def _send_dense(passage: Passage, rows: Float[Array, "m d"], window: Window) -> Float[Array, "r d"]:
    here = jax.lax.axis_index(EXPERT_AXIS)
    offset = jnp.arange(passage.room // len(window.begin), dtype=jnp.int32)
    index = jnp.minimum(window.begin[here][:, None] + offset, passage.rows - 1).reshape(-1)
    is_there = (offset < window.size[here][:, None]).reshape(-1, 1)
    return _exchange(jnp.where(is_there, take(rows, index), jnp.zeros((), rows.dtype)))


def _return_dense(passage: Passage, results: Float[Array, "r d"], window: Window) -> Float[Array, "m d"]:
    here = jax.lax.axis_index(EXPERT_AXIS)
    devices = len(window.begin)
    offset = jnp.arange(passage.rows, dtype=jnp.int32)[:, None] - window.begin[here]
    is_theirs = (offset >= 0) & (offset < window.size[here])
    slot = passage.room // devices * jnp.arange(devices, dtype=jnp.int32) + offset
    back = take(_exchange(results), jnp.sum(jnp.where(is_theirs, slot, 0), axis=1, dtype=jnp.int32))
    return jnp.where(is_theirs.any(axis=1)[:, None], back, jnp.zeros((), results.dtype))


def _exchange(rows: Float[Array, "r d"]) -> Float[Array, "r d"]:
    return jax.lax.all_to_all(rows, EXPERT_AXIS, 0, 0, tiled=True)


def _send_ragged(passage: Passage, rows: Float[Array, "m d"], window: Window) -> Float[Array, "r d"]:
    here = jax.lax.axis_index(EXPERT_AXIS)
    begin, size, place, _ = window
    empty = jnp.zeros((passage.room, rows.shape[1]), rows.dtype)
    return jax.lax.ragged_all_to_all(rows, empty, begin[here], size[here], place[here], size[:, here], axis_name=EXPERT_AXIS)


def _return_ragged(passage: Passage, results: Float[Array, "r d"], window: Window) -> Float[Array, "m d"]:
    here = jax.lax.axis_index(EXPERT_AXIS)
    begin, size, place, _ = window
    empty = jnp.zeros((passage.rows, results.shape[1]), results.dtype)
    return jax.lax.ragged_all_to_all(results, empty, place[:, here], size[:, here], begin[:, here], size[here], axis_name=EXPERT_AXIS)
