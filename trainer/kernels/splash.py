"""Attention by jax's Splash kernel for TPU: scores stay in the chip's fast memory, and wholly masked blocks are not visited.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import BlockSizes, CausalMask, LocalMask, MultiHeadMask, SegmentIds, make_splash_mha
from jaxtyping import Array, Int

from phasewise.trainer.config import ATTENTION, LANES
from phasewise.trainer.kernels.xla import Ids, Keys, Query

MAX_BLOCK, MAX_FUSED_BLOCKS = 512, 8
NONE, SOME, ALL = (np.array([[some, every]]) for some, every in ((False, False), (True, False), (True, True)))
"""Stand for a block of a mask, of which jax uses only `any` and `all`."""


def attend(query: Query, key: Keys, value: Keys, segment_ids: Ids, *, sliding_window: int | None = None, interpret: bool = False) -> Query:
    """As `trainer.kernels.attention.attend`, for the rows and heads of one device. `interpret` runs on any platform, for tests."""
    length, heads = query.shape[1:3]
    missing = -length % LANES  # padding at the row's end, which no position of the row sees
    query, key, value = (jnp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)]) for x in (query, key, value))
    ids = None if segment_ids is None else jnp.pad(segment_ids.astype(jnp.int32), [(0, 0), (0, missing)])
    kernel = build_kernel(heads, length + missing, sliding_window, interpret=interpret)
    return attend_part(query, key, value, ids, ids, kernel)[:, :length]


def attend_part(query: Query, key: Keys, value: Keys, query_ids: Ids, key_ids: Int[Array, "b s"] | None, kernel: Any) -> Query:
    """As `attend`, for queries of a part of a row, with a kernel for their positions. Lengths are multiples of 128."""
    scaled = (query.astype(jnp.float32) * jnp.float32(query.shape[-1] ** -0.5)).astype(query.dtype)
    query, key, value = (x.swapaxes(1, 2) for x in (scaled, key, value))
    if query_ids is None or key_ids is None:
        mixed = jax.vmap(lambda q, k, v: kernel(q, k, v))(query, key, value)
    else:
        mixed = jax.vmap(lambda q, k, v, of_q, of_k: kernel(q, k, v, SegmentIds(of_q, of_k)))(query, key, value, query_ids, key_ids)
    return mixed.swapaxes(1, 2)


def _block_of_mask(mask: CausalMask | LocalMask, index: tuple[slice, slice]) -> np.ndarray:
    """Return whether the queries of a block see none, some or all of its keys, which are not later, and within a window if there is one.

    With a window the block's queries must be neighbours.
    """
    (first, stop, _), (low, high, _) = (part.indices(size) for part, size in zip(index, mask.shape, strict=True))
    left = mask.window_size[0] if isinstance(mask, LocalMask) else None
    rows = (mask.q_sequence + mask.offset)[first:stop]
    least, most = int(rows.min()) - high + 1, int(rows.max()) - low
    if most < 0 or (left is not None and least > left):
        return NONE
    return ALL if least >= 0 and (left is None or most <= left) else SOME


class Causal(CausalMask):
    """jax's mask, with a faster construction for long rows: from the first and last position of a block. The kernel reads no mask."""

    __getitem__ = _block_of_mask  # pyright: ignore[reportAssignmentType]  # a block is two slices


class Local(LocalMask):
    """The same for a window."""

    __getitem__ = _block_of_mask  # pyright: ignore[reportAssignmentType]  # a block is two slices


@lru_cache(maxsize=64)
def build_kernel(
    heads: int, length: int, sliding_window: int | None, *, before: int = 0, order: bytes = b"", parts: int = 1, interpret: bool
) -> Any:
    """Return the kernel for `length` queries, a multiple of 128, against their keys.

    Its block masks are NumPy arrays without a device or trace, so that one kernel serves every mesh, and a compiler for absent chips.

    Args:
        before: number of keys before the queries' keys.
        order: positions of the queries on all `parts` devices, as bytes of int32, with two runs of equal length for each device. All
            devices have all keys in order. The kernel's arrays are then for all devices, to be divided along the axis of query blocks: the
            second or only axis.
    """
    shape = (length, before + length)
    mask = Causal(shape, before) if sliding_window is None else Local(shape, (sliding_window - 1, 0), before)
    if order:
        mask.q_sequence = np.frombuffer(order, np.int32)
    with jax.ensure_compile_time_eval():
        kernel = make_splash_mha(
            MultiHeadMask([mask] * heads),
            block_sizes=block_sizes(length // (2 * parts) if order else length, before + length),
            head_shards=1,
            q_seq_shards=parts,
            interpret=interpret,
            residual_checkpoint_name=ATTENTION,
        )
    return jax.tree.map(np.asarray, kernel)


def block_sizes(length: int, keys: int | None = None) -> BlockSizes:
    """Return square blocks of at most 512 positions that divide a run of `length` queries, and their keys.

    One backward kernel computes all three gradients, but keeps the queries' gradients once for every block of keys. That exceeds the
    chip's memory for long rows, which use two kernels.
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
