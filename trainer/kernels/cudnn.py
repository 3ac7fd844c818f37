"""Attention by cuDNN's flash kernel, for NVIDIA GPUs, in bfloat16 or float16.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from typing import Literal

import jax
from jaxtyping import Array, Float, Int


def attend(
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
