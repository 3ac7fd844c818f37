"""Arithmetic of a training step, and the peak of the devices it runs on.

FLOPs a token, forward and backward (PaLM, Chowdhery et al., 2022, appendix B): six for every parameter that is multiplied by, and for
attention the products of queries with keys and of weights with values. Not counted: norms, RoPE, softmax, the optimizer, the embedding's
look-up, and what is computed again to save memory – so the share of the peak is one of *model* FLOPs (MFU).
"""

import math
from typing import NamedTuple

from phasewise.trainer.config import ModelConfig

FLOPS_A_PARAMETER = 6
"""Two forward (multiply and add), four backward (with respect to input and to weight)."""


class StepFlops(NamedTuple):
    """FLOPs of one update, forward and backward."""

    matrices: int
    attention: int

    @property
    def total(self) -> int:
        """Both parts."""
        return self.matrices + self.attention


def matrix_parameters(model: ModelConfig) -> int:
    """Parameters that a token is multiplied by: matrices of the layers, of the experts those that it is routed to, and the head."""
    import jax  # a table of peaks is read where nothing is computed

    from phasewise.trainer.model.params import active_share, param_specs

    specs = jax.tree.leaves(param_specs(model))
    matrices = sum(round(active_share(spec, model) * math.prod(spec.shape)) for spec in specs if spec.inputs is not None)
    return matrices + (model.d_model * model.vocab_size if model.tied_head else 0)


def step_flops(model: ModelConfig, sequences: int, *, causal: bool = True) -> StepFlops:
    """FLOPs of one update on `sequences` rows.

    Args:
        causal: count only the pairs (position, what it sees), windows included; else all t² of a row, as PaLM does. Documents within a row
            count as one: what their mask saves is not known from the shape.
    """
    from phasewise.trainer.model.params import layer_kinds  # it imports jax

    tokens = sequences * model.seq_len
    width = model.num_query_heads * model.head_dim
    pairs = sum(visible_pairs(model.seq_len, kind.window) if causal else model.seq_len**2 for kind in layer_kinds(model))
    # Two products, of two FLOPs a pair and dimension, once forward and twice backward.
    return StepFlops(FLOPS_A_PARAMETER * matrix_parameters(model) * tokens, 2 * 2 * 3 * width * sequences * pairs)


def visible_pairs(length: int, window: int | None) -> int:
    """How many (position, visible position) there are in a row: a position sees itself and those before it, `window` in all."""
    window = length if window is None else min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


class Peak(NamedTuple):
    """Dense FLOP/s of one device as its maker states it. `device_kind` begins `jax.Device.device_kind`."""

    device_kind: str
    bfloat16: float
    source: str


PEAKS: tuple[Peak, ...] = (
    Peak("TPU v4", 275e12, "cloud.google.com/tpu/docs/v4: 275 teraflops a chip, bf16 or int8"),
    Peak("TPU v5 lite", 197e12, "cloud.google.com/tpu/docs/v5e: 197 TFLOPs a chip, bf16"),
    Peak("TPU v5e", 197e12, "the same chip by its other name"),
    Peak("TPU v5p", 459e12, "cloud.google.com/tpu/docs/v5p: 459 teraflops a chip, bf16"),
    Peak("TPU v5", 459e12, "what JAX calls v5p"),
    Peak("TPU v6 lite", 918e12, "cloud.google.com/tpu/docs/v6e: 918 TFLOPs a chip, bf16"),
    Peak("TPU v6e", 918e12, "the same chip by its other name"),
    Peak("TPU7x", 1153.5e12, "docs.cloud.google.com/tpu/docs/tpu7x: 2,307 TFLOPs a chip, bf16; a device is half of a chip"),
    Peak("NVIDIA H100 PCIe", 756e12, "NVIDIA H100 data sheet: 1,513 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H100 NVL", 835e12, "NVIDIA H100 data sheet: 1,671 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H100", 989e12, "NVIDIA H100 data sheet, SXM: 1,979 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H200 NVL", 835e12, "NVIDIA H200 data sheet: 1,671 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H200", 989e12, "NVIDIA H200 data sheet, SXM: 1,979 teraFLOPS bf16 with sparsity, half of it dense"),
)
"""The first that fits a device's kind counts."""


def peak_flops(device_kind: str, compute_dtype: str) -> float | None:
    """Peak FLOP/s of one device; None where it is not known.

    That of bfloat16 is known. What runs in float32 has no one peak: it depends on how many passes of a smaller type the compiler makes.
    A CPU's depends on its cores and clock, and no table names it.
    """
    if compute_dtype != "bfloat16":
        return None
    return next((peak.bfloat16 for peak in PEAKS if device_kind.startswith(peak.device_kind)), None)


def mfu(flops: int, seconds: float, *, peak: float | None, devices: int) -> float | None:
    """Model FLOPs utilisation: `flops` in `seconds` on `devices`, as a share of their peak; None where that is not known."""
    return None if peak is None or seconds <= 0 else flops / seconds / (peak * devices)
