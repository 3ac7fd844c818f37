"""Attention where the mesh cuts rows along their positions: each device has neighbouring queries, and fetches the keys that they see.

A window that is no longer than a device's part reaches only the device before: its last keys come over. Else all keys are gathered, which
are few (kv heads alone), and the queries are dealt anew: a device that had neighbours would have work by its place in the row, the last one
nearly twice the mean. So each row is cut into twice as many runs as there are devices, and device d has the runs d and 2n - 1 - d, which
see as many keys together as any other two. Queries travel there, and what they found comes back; nothing outside of attention knows.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim. Within a device t and s are its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import LANES
from phasewise.trainer.kernels import xla
from phasewise.trainer.sharding import CONTEXT_AXIS, activation_spec

MAX_ROUNDED = 512
"""Keys that come over are rounded up to a multiple of Splash's largest block, where a device's part is one."""
NOBODY = -1
"""The document of keys that come before a row's first: no query is of it."""
Ids = Int[Array, "b t"] | None
PerDevice = Callable[..., Float[Array, "b t h e"]]


def attend(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Ids,
    *,
    kernel: str,
    sliding_window: int | None,
    interpret: bool = False,
) -> Float[Array, "b t h e"]:
    """As `trainer.kernels.attention.attend`, on the mesh in sight, whose `context` divides half of the row.

    Args:
        kernel: "splash" or "xla".
        interpret: as `trainer.kernels.splash.attend` has it.
    """
    parts: int = jax.sharding.get_abstract_mesh().shape[CONTEXT_AXIS]
    own = query.shape[1] // parts
    arrays: tuple[Any, ...] = ()
    heads = query.shape[2] // _cut_heads(query.shape)
    if sliding_window is not None and sliding_window - 1 <= own:
        before = keys_before(sliding_window, own, kernel)
        local = partial(_attend_window, before=before, mix=_window_kernel(kernel, heads, own, before, sliding_window, interpret))
    elif kernel == "splash":
        from phasewise.trainer.kernels import splash  # half a second, for those who need it

        built = splash.build_in_parts(heads, run_positions(own, parts).tobytes(), parts, sliding_window, interpret=interpret)
        leaves, structure = jax.tree.flatten(built)
        arrays = tuple(leaves)
        local = partial(_attend_all, mix=partial(_by_splash, structure=structure))
    else:
        local = partial(_attend_all, mix=partial(_by_xla, own=own, parts=parts, sliding_window=sliding_window))
    specs = (
        activation_spec(query.shape, "bthe"),
        activation_spec(key.shape, "bske"),
        activation_spec(value.shape, "bske"),
        None if segment_ids is None else activation_spec(segment_ids.shape, "bt"),
        tuple(PartitionSpec(*[None] * (leaf.ndim > 1), CONTEXT_AXIS) for leaf in arrays),
    )
    return jax.shard_map(local, in_specs=specs, out_specs=specs[0], check_vma=False)(query, key, value, segment_ids, arrays)


def _cut_heads(shape: tuple[int, ...]) -> int:
    axis = activation_spec(shape, "bthe")[2]
    return 1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis]


def keys_before(sliding_window: int, own: int, kernel: str) -> int:
    """How many keys come over from the device before: all that the first query sees, in whole blocks."""
    needed = sliding_window - 1
    if kernel != "splash" or needed == 0:
        return needed
    size = next(size for size in (MAX_ROUNDED, MAX_ROUNDED // 2, LANES) if own % size == 0)
    return -(-needed // size) * size


def run_numbers(parts: int) -> Int[np.ndarray, "d 2"]:
    """The two runs of each device: the even one, then the odd one. They are d and 2n - 1 - d."""
    return np.array([sorted((device, 2 * parts - 1 - device), key=lambda run: run % 2) for device in range(parts)], np.int32)


def run_positions(own: int, parts: int) -> Int[np.ndarray, " t"]:
    """The positions of all queries as they are dealt, the first device's first."""
    half = own // 2
    return (run_numbers(parts).reshape(-1, 1) * half + np.arange(half, dtype=np.int32)).reshape(-1).astype(np.int32)


def deal(x: Float[Array, "b t *c"], *, back: bool = False) -> Float[Array, "b t *c"]:
    """Within `jax.shard_map`: from neighbouring queries to the two runs of each device; or back.

    Device d had the runs 2d and 2d + 1: each device sends one even and one odd run, and gets one of each.
    """
    parts = jax.lax.axis_size(CONTEXT_AXIS)
    runs: list[Array] = []
    for parity, run in enumerate(jnp.split(x, 2, axis=1)):
        ways = [(number // 2, min(number, 2 * parts - 1 - number)) for number in range(parity, 2 * parts, 2)]
        ways = [(to, source) for source, to in ways] if back else ways
        runs.append(jax.lax.ppermute(run, CONTEXT_AXIS, ways))
    return jnp.concatenate(runs, axis=1)


def _attend_all(query: Array, key: Array, value: Array, segment_ids: Ids, arrays: tuple[Array, ...], *, mix: PerDevice) -> Array:
    """The queries of this device's two runs against all keys. The gradients of keys come back summed, each device's own part."""
    gather = partial(jax.lax.all_gather, axis_name=CONTEXT_AXIS, axis=1, tiled=True)
    key_ids = None if segment_ids is None else gather(segment_ids)
    query_ids = None if segment_ids is None else deal(segment_ids)
    return deal(mix(deal(query), gather(key), gather(value), query_ids, key_ids, arrays), back=True)


def _attend_window(
    query: Array, key: Array, value: Array, segment_ids: Ids, _arrays: tuple[Array, ...], *, before: int, mix: PerDevice
) -> Array:
    """This device's queries against its own keys and those just before them. The first device's are of no document."""
    ids = jnp.zeros(query.shape[:2], jnp.int32) if segment_ids is None else segment_ids
    parts = jax.lax.axis_size(CONTEXT_AXIS)

    def with_before(x: Array) -> Array:
        if before == 0:
            return x
        came = jax.lax.ppermute(x[:, -before:], CONTEXT_AXIS, [(device, device + 1) for device in range(parts - 1)])
        return jnp.concatenate([came, x], axis=1)

    is_there = (jax.lax.axis_index(CONTEXT_AXIS) > 0) | (jnp.arange(before + query.shape[1]) >= before)
    key_ids = jnp.where(is_there, with_before(ids), NOBODY)
    return mix(query, with_before(key), with_before(value), ids, key_ids)


def _window_kernel(kernel: str, heads: int, own: int, before: int, sliding_window: int, interpret: bool) -> PerDevice:
    if kernel == "splash":
        from phasewise.trainer.kernels import splash  # half a second, for those who need it

        return partial(splash.attend_part, kernel=splash.build_behind(heads, own, before, sliding_window, interpret=interpret))

    def mix(query: Array, key: Array, value: Array, query_ids: Array, key_ids: Array) -> Array:
        back = before + jnp.arange(own)[:, None] - jnp.arange(before + own)
        return xla.attend_seen(query, key, value, _seen(back, query_ids, key_ids, sliding_window))

    return mix


def _by_splash(query: Array, key: Array, value: Array, query_ids: Ids, key_ids: Ids, arrays: tuple[Array, ...], *, structure: Any) -> Array:
    from phasewise.trainer.kernels import splash  # half a second, for those who need it

    return splash.attend_part(query, key, value, query_ids, key_ids, jax.tree.unflatten(structure, arrays))


def _by_xla(
    query: Array,
    key: Array,
    value: Array,
    query_ids: Ids,
    key_ids: Ids,
    _arrays: tuple[Array, ...],
    *,
    own: int,
    parts: int,
    sliding_window: int | None,
) -> Array:
    positions = jnp.asarray(run_positions(own, parts).reshape(parts, own))[jax.lax.axis_index(CONTEXT_AXIS)]
    back = positions[:, None] - jnp.arange(parts * own)
    return xla.attend_seen(query, key, value, _seen(back, query_ids, key_ids, sliding_window))


def _seen(back: Int[Array, "t s"], query_ids: Ids, key_ids: Ids, sliding_window: int | None) -> Bool[Array, "#b t s"]:
    """Which keys each query sees, by how far back they are."""
    seen = (back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window))[None]
    return seen if query_ids is None or key_ids is None else seen & (query_ids[:, :, None] == key_ids[:, None, :])
