"""Attention behind one function: Splash on TPU, cuDNN on GPU where the types fit, XLA elsewhere.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import LANES, ModelConfig
from phasewise.trainer.kernels import xla
from phasewise.trainer.sharding import CONTEXT_AXIS, activation_spec, context_parts, map_shards

MAX_ROUNDED = 512
"""Keys that come over are rounded up to a multiple of Splash's largest block, where a device's part is one."""

NOBODY = -1
"""The document of keys that come before a row's first: no query is of it."""

Ids = Int[Array, "b t"] | None

PerDevice = Callable[..., Float[Array, "b t h e"]]

KERNELS = ("splash", "cudnn", "xla")
"""In the order of their speed where they can run."""

CUDNN_DTYPES = ("bfloat16", "float16")

CUDNN_MAX_HEAD_DIM = 256
"""On Hopper and later; before, cuDNN itself refuses more than 128."""


class Operands(NamedTuple):
    """What decides whether a kernel can run: the type of queries, keys and values, the size of a head, the length of a row.

    Attributes:
        context: over how many devices a row is cut.
    """

    dtype: str
    head_dim: int
    seq_len: int
    context: int = 1


def attend_in_parts(
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
    axis = activation_spec(query.shape, "bthe")[2]
    heads = query.shape[2] // (1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis])
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
    gather = partial(jax.lax.all_gather, axis_name=CONTEXT_AXIS, axis=1, tiled=True)
    key_ids = None if segment_ids is None else gather(segment_ids)
    query_ids = None if segment_ids is None else deal(segment_ids)
    return deal(mix(deal(query), gather(key), gather(value), query_ids, key_ids, arrays), back=True)


def _attend_window(
    query: Array, key: Array, value: Array, segment_ids: Ids, _arrays: tuple[Array, ...], *, before: int, mix: PerDevice
) -> Array:
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
    seen = (back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window))[None]
    return seen if query_ids is None or key_ids is None else seen & (query_ids[:, :, None] == key_ids[:, None, :])


def attend_by_cudnn(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"] | None,
    *,
    sliding_window: int | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "b t h e"]:
    """As `trainer.kernels.attention.attend`.

    Segments are a mask of b · t · s values, the same for all heads: jax's public function takes no offsets of packed segments. Without
    segments there is none, and that is the quickest.

    Args:
        implementation: "xla" computes the same call on any platform, for tests.
    """
    mask = None if segment_ids is None else (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    window = None if sliding_window is None else (sliding_window - 1, 0)
    with jax.numpy_dtype_promotion("standard"):  # jax's own code widens types, which the decoder forbids
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=True, local_window_size=window, implementation=implementation
        )


def attend(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"] | None,
    *,
    kernel: str = "auto",
    sliding_window: int | None = None,
) -> Float[Array, "b t h e"]:
    """Causal grouped-query attention within segments, scaled by 1/√e; scores and softmax in float32.

    A mesh that cuts rows along positions, and does not divide one of this length, has it whole on each of those devices.

    Args:
        query, key, value: `h` is a multiple of `k`; query head i reads kv head i // (h / k).
        segment_ids: equal numbers mark positions of the same document; None is one document a row.
        kernel: "auto" chooses for the platform of this process. To compile for another one, name it.
        sliding_window: a position sees so many, itself included; None is all before it.

    Raises:
        ConfigError: the kernel cannot run with these operands (`check_kernel` says so before work starts).
    """
    platform = "tpu" if kernel == "splash" else jax.default_backend()
    parts = context_parts(query.shape[1], multiple=2 * LANES if platform == "tpu" else 2)
    chosen = choose(kernel, platform, Operands(query.dtype.name, query.shape[-1], query.shape[1], parts))
    if parts > 1:
        return attend_in_parts(query, key, value, segment_ids, kernel=chosen, sliding_window=sliding_window)
    of_device = partial(implementation(chosen), sliding_window=sliding_window)
    return map_shards(of_device, query, key, value, segment_ids, letters=("bthe", "bske", "bske", "bt"))


def implementation(kernel: str) -> Callable[..., Float[Array, "b t h e"]]:
    """The function of a kernel, which takes what `attend` takes."""
    if kernel == "splash":
        from phasewise.trainer.kernels import splash  # half a second, for those who need it

        return splash.attend
    return {"cudnn": attend_by_cudnn, "xla": xla.attend}[kernel]


def check_kernel(kernel: str, platform: str, config: ModelConfig, *, context: int = 1) -> str:
    """The kernel that a run of this model uses on this platform (`jax.default_backend()`, or the one to compile for).

    Args:
        context: that of the mesh.

    Raises:
        ConfigError: the kernel that is named cannot run there.
    """
    dtype = "float32" if config.float32_attention else config.compute_dtype
    return choose(kernel, platform, Operands(dtype, config.head_dim, config.seq_len, context))


def choose(kernel: str, platform: str, operands: Operands) -> str:
    """The kernel that is named, or for "auto" the quickest that can run. Refuses as `check_kernel`."""
    if kernel == "auto":
        return next(name for name in KERNELS if refusal(name, platform, operands) is None)
    if kernel not in KERNELS:
        raise ConfigError(f"execution.attention must be one of auto, {', '.join(KERNELS)}, found {kernel}.")
    reason = refusal(kernel, platform, operands)
    if reason is not None:
        raise ConfigError(f"execution.attention = {kernel} {reason}. Take another kernel, or auto.")
    return kernel


def refusal(kernel: str, platform: str, operands: Operands) -> str | None:
    """Why a kernel cannot run; None where it can."""
    if kernel == "splash" and platform != "tpu":
        return f"needs a TPU, found {platform}"
    if kernel == "splash" and operands.context > 1 and operands.seq_len % (2 * LANES * operands.context):
        return (
            f"needs 2 × context parts of a row, each a multiple of {LANES} tokens, found 2 × {operands.context} of {operands.seq_len} "
            "(execution.mesh, seq_len)"
        )
    if kernel == "cudnn":
        if platform not in ("gpu", "cuda"):
            return f"needs an NVIDIA GPU, found {platform}"
        if operands.context > 1:
            return f"has no mask for queries that are a part of a row, found context {operands.context} in execution.mesh"
        if operands.dtype not in CUDNN_DTYPES:
            return (
                f"needs queries, keys and values in {' or '.join(CUDNN_DTYPES)} (compute_dtype, float32_attention), found {operands.dtype}"
            )
        if operands.head_dim % 8 or operands.head_dim > CUDNN_MAX_HEAD_DIM:
            return f"needs a head_dim that is a multiple of 8 and at most {CUDNN_MAX_HEAD_DIM}, found {operands.head_dim}"
        if operands.seq_len % 2:
            return f"needs rows of an even number of tokens to mask segments, found {operands.seq_len}"
        return None
    return None
