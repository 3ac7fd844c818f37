"""Attention behind one function: Splash on TPU, cuDNN on GPU where the types fit, XLA elsewhere.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import LANES, ModelConfig
from phasewise.trainer.kernels import context, cudnn, xla
from phasewise.trainer.kernels.rows import context_parts
from phasewise.trainer.sharding import map_shards

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
        return context.attend(query, key, value, segment_ids, kernel=chosen, sliding_window=sliding_window)
    of_device = partial(implementation(chosen), sliding_window=sliding_window)
    return map_shards(of_device, query, key, value, segment_ids, letters=("bthe", "bske", "bske", "bt"))


def implementation(kernel: str) -> Callable[..., Float[Array, "b t h e"]]:
    """The function of a kernel, which takes what `attend` takes."""
    if kernel == "splash":
        from phasewise.trainer.kernels import splash  # half a second, for those who need it

        return splash.attend
    return {"cudnn": cudnn.attend, "xla": xla.attend}[kernel]


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
        return _cudnn_refusal(platform, operands)
    return None


def _cudnn_refusal(platform: str, operands: Operands) -> str | None:
    if platform not in ("gpu", "cuda"):
        return f"needs an NVIDIA GPU, found {platform}"
    if operands.context > 1:
        return f"has no mask for queries that are a part of a row, found context {operands.context} in execution.mesh"
    if operands.dtype not in CUDNN_DTYPES:
        return f"needs queries, keys and values in {' or '.join(CUDNN_DTYPES)} (compute_dtype, float32_attention), found {operands.dtype}"
    if operands.head_dim % 8 or operands.head_dim > CUDNN_MAX_HEAD_DIM:
        return f"needs a head_dim that is a multiple of 8 and at most {CUDNN_MAX_HEAD_DIM}, found {operands.head_dim}"
    if operands.seq_len % 2:
        return f"needs rows of an even number of tokens to mask segments, found {operands.seq_len}"
    return None
