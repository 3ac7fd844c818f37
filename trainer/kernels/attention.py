"""Attention behind one function: Splash on TPU, cuDNN on GPU for types that it supports, XLA elsewhere.

On a mesh that cuts rows along positions, each device has two runs of queries, for equal work under the causal mask, and all keys. With a
window within a part, a device needs only the keys just before its own.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from phasewise.trainer.config import LANES
from phasewise.trainer.config.execution import Operands, choose
from phasewise.trainer.kernels import xla
from phasewise.trainer.kernels.xla import Ids, Keys, Query
from phasewise.trainer.sharding import CONTEXT_AXIS, activation_spec, context_parts, map_shards

MAX_ROUNDED = 512  # Splash's largest block. The number of keys from the device before is a multiple of it, if it divides a device's part
NO_DOCUMENT = -1  # the document of keys before a row's first key. No query has it
PerDevice = Callable[..., Query]


def attend(query: Query, key: Keys, value: Keys, segment_ids: Ids, *, kernel: str = "auto", sliding_window: int | None = None) -> Query:
    """Return causal grouped-query attention within segments, scaled by 1/√e, with scores and softmax in float32.

    If a mesh cuts rows along positions but does not divide this length, each device has the whole row.

    Args:
        query, key, value: `h` is a multiple of `k`. Query head i reads kv head i // (h / k).
        segment_ids: equal numbers mark positions of the same document. None is one document per row.
        kernel: "auto" chooses for the platform of this process. Name the kernel to compile for another platform.
        sliding_window: number of positions that a position sees, with itself. None is all earlier positions.
    """
    platform = "tpu" if kernel == "splash" else jax.default_backend()
    parts = context_parts(query.shape[1], multiple=2 * LANES if platform == "tpu" else 2)
    chosen = choose(kernel, platform, Operands(query.dtype.name, query.shape[-1], query.shape[1], parts))
    if parts > 1:
        return attend_in_parts(query, key, value, segment_ids, kernel=chosen, sliding_window=sliding_window)
    if chosen == "splash":
        from phasewise.trainer.kernels import splash  # imports for half a second

        implementation: PerDevice = splash.attend
    else:
        implementation = attend_by_cudnn if chosen == "cudnn" else xla.attend
    of_device = partial(implementation, sliding_window=sliding_window)
    return map_shards(of_device, query, key, value, segment_ids, letters=("b.he", "b.ke", "b.ke", "b."))


def attend_by_cudnn(
    query: Query,
    key: Keys,
    value: Keys,
    segment_ids: Ids,
    *,
    sliding_window: int | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Query:
    """As `attend`, with segments as a mask of b · t · s values: jax's function has no offsets of packed segments. Tests use "xla"."""
    mask = None if segment_ids is None else (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    window = None if sliding_window is None else (sliding_window - 1, 0)
    with jax.numpy_dtype_promotion("standard"):  # jax's code promotes types, which the decoder forbids
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=True, local_window_size=window, implementation=implementation
        )


def attend_in_parts(
    query: Query, key: Keys, value: Keys, segment_ids: Ids, *, kernel: str, sliding_window: int | None, interpret: bool = False
) -> Query:
    """As `attend` by "splash" or "xla", on the current mesh, whose `context` divides half of the row."""
    mesh_shape = jax.sharding.get_abstract_mesh().shape
    parts: int = mesh_shape[CONTEXT_AXIS]
    own = query.shape[1] // parts
    axis = activation_spec(query.shape, "bthe")[2]
    heads = query.shape[2] // (1 if axis is None else mesh_shape[axis])
    arrays: tuple[Any, ...] = ()
    if sliding_window is not None and sliding_window - 1 <= own:
        local = _with_keys_before(kernel, heads, own, sliding_window, interpret=interpret)
    else:
        local, arrays = _with_all_keys(kernel, heads, own, parts, sliding_window, interpret=interpret)
    specs = (
        activation_spec(query.shape, "bthe"),
        activation_spec(key.shape, "bske"),
        activation_spec(value.shape, "bske"),
        None if segment_ids is None else activation_spec(segment_ids.shape, "bt"),
        tuple(PartitionSpec(*[None] * (leaf.ndim > 1), CONTEXT_AXIS) for leaf in arrays),
    )
    return jax.shard_map(local, in_specs=specs, out_specs=specs[0], check_vma=False)(query, key, value, segment_ids, arrays)


def _with_keys_before(kernel: str, heads: int, own: int, sliding_window: int, *, interpret: bool) -> PerDevice:
    """Return attention with a window within a device's part: each device gets the keys before its own from the device before."""
    before = sliding_window - 1
    attend_part: PerDevice | None = None
    if kernel == "splash":
        from phasewise.trainer.kernels import splash  # imports for half a second

        if before:
            size = next(size for size in (MAX_ROUNDED, MAX_ROUNDED // 2, LANES) if own % size == 0)
            before = -(-before // size) * size
        built = splash.build_kernel(heads, own, sliding_window, before=before, interpret=interpret)
        attend_part = partial(splash.attend_part, kernel=built)

    def local(query: Array, key: Array, value: Array, segment_ids: Ids, _arrays: tuple[Array, ...]) -> Array:
        ids = jnp.zeros(query.shape[:2], jnp.int32) if segment_ids is None else segment_ids
        parts = jax.lax.axis_size(CONTEXT_AXIS)

        def with_before(x: Array) -> Array:
            if before == 0:
                return x
            received = jax.lax.ppermute(x[:, -before:], CONTEXT_AXIS, [(device, device + 1) for device in range(parts - 1)])
            return jnp.concatenate([received, x], axis=1)

        exists = (jax.lax.axis_index(CONTEXT_AXIS) > 0) | (jnp.arange(before + query.shape[1]) >= before)
        key_ids = jnp.where(exists, with_before(ids), NO_DOCUMENT)
        key, value = with_before(key), with_before(value)
        if attend_part is not None:
            return attend_part(query, key, value, ids, key_ids)
        back = before + jnp.arange(own)[:, None] - jnp.arange(before + own)
        seen = ((back >= 0) & (back < sliding_window))[None] & (ids[:, :, None] == key_ids[:, None, :])
        return xla.attend_seen(query, key, value, seen)

    return local


def _with_all_keys(
    kernel: str, heads: int, own: int, parts: int, sliding_window: int | None, *, interpret: bool
) -> tuple[PerDevice, tuple[Any, ...]]:
    """Return attention of two runs of queries to all keys, and the kernel's arrays of all devices."""
    half = own // 2
    # The runs d and 2n - 1 - d of device d, the even run first
    runs = np.array([sorted((device, 2 * parts - 1 - device), key=lambda run: run % 2) for device in range(parts)], np.int32)
    positions = (runs.reshape(-1, 1) * half + np.arange(half, dtype=np.int32)).reshape(-1).astype(np.int32)
    leaves: list[Any] = []
    structure = attend_part = None
    if kernel == "splash":
        from phasewise.trainer.kernels import splash  # imports for half a second

        order = positions.tobytes()
        built = splash.build_kernel(heads, len(positions), sliding_window, order=order, parts=parts, interpret=interpret)
        leaves, structure = jax.tree.flatten(built)
        attend_part = splash.attend_part

    def local(query: Array, key: Array, value: Array, segment_ids: Ids, arrays: tuple[Array, ...]) -> Array:
        gather = partial(jax.lax.all_gather, axis_name=CONTEXT_AXIS, axis=1, tiled=True)
        key_ids = None if segment_ids is None else gather(segment_ids)
        query_ids = None if segment_ids is None else _deal(segment_ids)
        query, key, value = _deal(query), gather(key), gather(value)
        if attend_part is not None and structure is not None:
            return _deal(attend_part(query, key, value, query_ids, key_ids, jax.tree.unflatten(structure, arrays)), back=True)

        here = jnp.asarray(positions.reshape(parts, own))[jax.lax.axis_index(CONTEXT_AXIS)]
        back = here[:, None] - jnp.arange(parts * own)
        seen = (back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window))[None]
        if query_ids is not None and key_ids is not None:
            seen &= query_ids[:, :, None] == key_ids[:, None, :]
        return _deal(xla.attend_seen(query, key, value, seen), back=True)

    return local, tuple(leaves)


def _deal(x: Float[Array, "b t *c"], *, back: bool = False) -> Float[Array, "b t *c"]:
    """Exchange neighbouring queries for the two runs of each device, or back.

    Device d has the runs 2d and 2d + 1 before: each device sends one even and one odd run, and receives one of each.
    """
    parts = jax.lax.axis_size(CONTEXT_AXIS)
    runs: list[Array] = []
    for parity, run in enumerate(jnp.split(x, 2, axis=1)):
        ways = [(number // 2, min(number, 2 * parts - 1 - number)) for number in range(parity, 2 * parts, 2)]
        ways = [(to, source) for source, to in ways] if back else ways
        runs.append(jax.lax.ppermute(run, CONTEXT_AXIS, ways))
    return jnp.concatenate(runs, axis=1)
