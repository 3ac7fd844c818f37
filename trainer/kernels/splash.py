"""Attention by jax's Splash kernel for TPU: scores never leave the chip's fast memory, and blocks that are wholly masked are not visited.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import BlockSizes, CausalMask, LocalMask, MultiHeadMask, SegmentIds, make_splash_mha
from jaxtyping import Array, Float, Int

from phasewise.trainer.config import ATTENTION, LANES

MAX_BLOCK, MAX_FUSED_BLOCKS = 512, 8


def attend(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"] | None,
    *,
    sliding_window: int | None = None,
    interpret: bool = False,
) -> Float[Array, "b t h e"]:
    """As `trainer.kernels.attention.attend`, for the rows and heads of one device: on a mesh, call it within `jax.shard_map`.

    Args:
        interpret: run the kernel's program step by step on any platform: slow, for tests.
    """
    _, length, heads, width = query.shape
    scaled = (query.astype(jnp.float32) * jnp.float32(width**-0.5)).astype(query.dtype)
    missing = -length % LANES  # filled up at the row's end, where no position that is kept can see
    q, k, v = (jnp.pad(x.swapaxes(1, 2), [(0, 0), (0, 0), (0, missing), (0, 0)]) for x in (scaled, key, value))
    kernel = build_kernel(heads, length + missing, sliding_window, interpret=interpret)
    ids = None if segment_ids is None else jnp.pad(segment_ids.astype(jnp.int32), [(0, 0), (0, missing)])
    return _mixed(kernel, q, k, v, ids, ids)[:, :, :length].swapaxes(1, 2)


def attend_part(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    query_ids: Int[Array, "b t"] | None,
    key_ids: Int[Array, "b s"] | None,
    kernel: Any,
) -> Float[Array, "b t h e"]:
    """As `attend`, of queries that are a part of a row, with a kernel that knows where they lie in it. Lengths are multiples of 128."""
    scaled = (query.astype(jnp.float32) * jnp.float32(query.shape[-1] ** -0.5)).astype(query.dtype)
    q, k, v = (x.swapaxes(1, 2) for x in (scaled, key, value))
    return _mixed(kernel, q, k, v, query_ids, key_ids).swapaxes(1, 2)


def _mixed(
    kernel: Any,
    query: Float[Array, "b h t e"],
    key: Float[Array, "b k s e"],
    value: Float[Array, "b k s e"],
    query_ids: Int[Array, "b t"] | None,
    key_ids: Int[Array, "b s"] | None,
) -> Float[Array, "b h t e"]:
    if query_ids is None or key_ids is None:
        return jax.vmap(lambda q, k, v: kernel(q, k, v))(query, key, value)
    return jax.vmap(lambda q, k, v, of_q, of_k: kernel(q, k, v, SegmentIds(of_q, of_k)))(query, key, value, query_ids, key_ids)


NONE, SOME, ALL = (np.array([[some, every]]) for some, every in ((False, False), (True, False), (True, True)))
"""What stands for a block of a mask where only `any` and `all` are asked of it."""


class Causal(CausalMask):
    """jax's, quick for long rows: a block is judged by its first and last position. The kernel computes masks itself and reads none."""

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        return judge(self.q_sequence + self.offset, index, self.shape, None)


class Local(LocalMask):
    """The same for a window."""

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        return judge(self.q_sequence + self.offset, index, self.shape, self.window_size[0])


def judge(positions: Int[np.ndarray, " t"], index: tuple[slice, slice], shape: tuple[int, ...], left: int | None) -> np.ndarray:
    """Whether queries of a block see none, some or all of its keys: those at most `left` positions back, and none that are later.

    With a window the block's queries must be neighbours.
    """
    (first, stop, _), (low, high, _) = (part.indices(size) for part, size in zip(index, shape, strict=True))
    rows = positions[first:stop]
    least, most = int(rows.min()) - high + 1, int(rows.max()) - low
    if most < 0 or (left is not None and least > left):
        return NONE
    return ALL if least >= 0 and (left is None or most <= left) else SOME


@lru_cache(maxsize=64)
def build_kernel(heads: int, length: int, sliding_window: int | None, *, interpret: bool) -> Any:
    """The kernel for rows of `length` positions, a multiple of 128. What its mask says of the blocks are NumPy arrays, made once.

    They belong to no device and no trace, so that one kernel serves every mesh, and a compiler for chips that aren't here.

    What its backward pass needs has a name, by which `execution.remat` may keep it.
    """
    shape = (length, length)
    mask = Causal(shape) if sliding_window is None else Local(shape, (sliding_window - 1, 0), 0)
    return _build(mask, heads, block_sizes(length), parts=1, interpret=interpret)


@lru_cache(maxsize=64)
def build_behind(heads: int, length: int, before: int, sliding_window: int, *, interpret: bool) -> Any:
    """The kernel for `length` queries against `before` keys that come before them, and their own. As `build_kernel`."""
    mask = Local((length, before + length), (sliding_window - 1, 0), before)
    return _build(mask, heads, block_sizes(length, before + length), parts=1, interpret=interpret)


@lru_cache(maxsize=64)
def build_in_parts(heads: int, order: bytes, parts: int, sliding_window: int | None, *, interpret: bool) -> Any:
    """The kernel for rows whose queries lie in another order on so many devices; each has all keys, in their order.

    Its arrays are those of all devices: to be cut into equal parts along the axis of query blocks, which is the second, or the only one.

    Args:
        order: the positions of all queries as bytes of int32, the first device's first. A device has two runs of positions of one length.
    """
    positions = np.frombuffer(order, np.int32)
    length = len(positions)
    shape = (length, length)
    mask = Causal(shape) if sliding_window is None else Local(shape, (sliding_window - 1, 0), 0)
    mask.q_sequence = positions
    return _build(mask, heads, block_sizes(length // (2 * parts), length), parts=parts, interpret=interpret)


def _build(mask: CausalMask | LocalMask, heads: int, sizes: BlockSizes, *, parts: int, interpret: bool) -> Any:
    with jax.ensure_compile_time_eval():
        kernel = make_splash_mha(
            MultiHeadMask([mask] * heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=parts,
            interpret=interpret,
            residual_checkpoint_name=ATTENTION,
        )
    return jax.tree.map(np.asarray, kernel)


def block_sizes(length: int, keys: int | None = None) -> BlockSizes:
    """Square blocks of at most 512 positions that divide the row; or a run of queries, and the keys that it meets.

    One backward kernel makes all three gradients, but keeps those of the queries once for every block of keys: for long rows, which
    would hold the chip's memory many times, there are two kernels.
    """
    keys = keys or length
    size = max(block for block in range(LANES, MAX_BLOCK + 1, LANES) if length % block == 0 and keys % block == 0)
    fused = keys <= MAX_FUSED_BLOCKS * size
    return BlockSizes(
        block_q=size,
        block_kv=size,
        block_kv_compute=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_kv_dkv_compute=size,
        block_q_dq=None if fused else size,
        block_kv_dq=None if fused else size,
        use_fused_bwd_kernel=fused,
    )
