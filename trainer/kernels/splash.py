"""Attention by jax's Splash kernel for TPU: scores never leave the chip's fast memory, and blocks that are wholly masked are not visited.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    LocalMask,
    MultiHeadMask,
    SegmentIds,
    make_splash_mha_single_device,
)
from jaxtyping import Array, Float, Int

from trainer.config import ATTENTION

LANES = 128
"""Blocks are made of so many positions. A row is filled up at its end to a multiple of it, where no position that is kept can see."""
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
    missing = -length % LANES
    q, k, v = (jnp.pad(x.swapaxes(1, 2), [(0, 0), (0, 0), (0, missing), (0, 0)]) for x in (scaled, key, value))
    kernel = build_kernel(heads, length + missing, sliding_window, interpret=interpret)
    if segment_ids is None:
        mixed = jax.vmap(lambda q, k, v: kernel(q, k, v))(q, k, v)
    else:
        ids = jnp.pad(segment_ids.astype(jnp.int32), [(0, 0), (0, missing)])
        mixed = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, SegmentIds(ids, ids)))(q, k, v, ids)
    return mixed[:, :, :length].swapaxes(1, 2)


@lru_cache(maxsize=64)
def build_kernel(heads: int, length: int, sliding_window: int | None, *, interpret: bool) -> Any:
    """The kernel for rows of `length` positions, a multiple of 128. What its mask says of the blocks are NumPy arrays, made once.

    They belong to no device and no trace, so that one kernel serves every mesh, and a compiler for chips that aren't here.

    What its backward pass needs has a name, by which `execution.remat` may keep it.
    """
    shape = (length, length)
    mask = CausalMask(shape) if sliding_window is None else LocalMask(shape, (sliding_window - 1, 0), 0)
    with jax.ensure_compile_time_eval():
        kernel = make_splash_mha_single_device(
            MultiHeadMask([mask] * heads), block_sizes=block_sizes(length), interpret=interpret, residual_checkpoint_name=ATTENTION
        )
    return jax.tree.map(np.asarray, kernel)


def block_sizes(length: int) -> BlockSizes:
    """Square blocks of at most 512 positions that divide the row.

    One backward kernel makes all three gradients, but keeps those of the queries once for every block of keys: for long rows, which
    would hold the chip's memory many times, there are two kernels.
    """
    size = max(block for block in range(LANES, MAX_BLOCK + 1, LANES) if length % block == 0)
    fused = length <= MAX_FUSED_BLOCKS * size
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
