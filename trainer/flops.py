"""Arithmetic of a training step, and the peak FLOP/s of devices.

FLOPs per token, forward and backward (PaLM, Chowdhery et al., 2022, appendix B): six per multiplied parameter, and for attention the
products of queries with keys and of weights with values. Norms, RoPE, softmax, the optimizer, the embedding lookup and recomputation are
not counted, so the share of the peak is *model* FLOPs utilisation (MFU).
"""

from typing import NamedTuple

from phasewise.trainer.config import ModelConfig

FLOPS_A_PARAMETER = 6  # two forward (multiply and add), four backward (with respect to input and to weight)


class StepFlops(NamedTuple):
    """FLOPs of one update, forward and backward."""

    matrices: int
    attention: int

    @property
    def total(self) -> int:
        """The sum of both parts."""
        return self.matrices + self.attention


def step_flops(model: ModelConfig, sequences: int, *, causal: bool = True) -> StepFlops:
    """Return the FLOPs of one update on `sequences` rows.

    `causal`: count only visible pairs of positions, windows included, otherwise all t² of a row, as PaLM does. Documents within a row count
    as one document, because a shape does not show the documents' mask.
    """
    from phasewise.trainer.model.params import count_active_parameters, layer_kinds  # imports jax

    matrices = FLOPS_A_PARAMETER * count_active_parameters(model, only_matrices=True) * sequences * model.seq_len
    length, width = model.seq_len, model.num_query_heads * model.head_dim
    windows = [length if kind.window is None else min(kind.window, length) for kind in layer_kinds(model)]
    pairs = sum(window * (window + 1) // 2 + (length - window) * window if causal else length**2 for window in windows)
    # two products, two FLOPs per pair and dimension, once forward and twice backward
    return StepFlops(matrices, 2 * 2 * 3 * width * sequences * pairs)


class Peak(NamedTuple):
    """Dense FLOP/s of one device from its data sheet. `device_kind` is a prefix of `jax.Device.device_kind`."""

    device_kind: str
    bfloat16: float
    source: str


PEAKS: tuple[Peak, ...] = (
    Peak("TPU v4", 275e12, "cloud.google.com/tpu/docs/v4: 275 teraflops a chip, bf16 or int8"),
    Peak("TPU v5 lite", 197e12, "cloud.google.com/tpu/docs/v5e: 197 TFLOPs a chip, bf16"),
    Peak("TPU v5e", 197e12, "another name of the same chip"),
    Peak("TPU v5p", 459e12, "cloud.google.com/tpu/docs/v5p: 459 teraflops a chip, bf16"),
    Peak("TPU v5", 459e12, "JAX's name of v5p"),
    Peak("TPU v6 lite", 918e12, "cloud.google.com/tpu/docs/v6e: 918 TFLOPs a chip, bf16"),
    Peak("TPU v6e", 918e12, "another name of the same chip"),
    Peak("TPU7x", 1153.5e12, "docs.cloud.google.com/tpu/docs/tpu7x: 2,307 TFLOPs a chip, bf16; a device is half of a chip"),
    Peak("NVIDIA H100 PCIe", 756e12, "NVIDIA H100 data sheet: 1,513 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H100 NVL", 835e12, "NVIDIA H100 data sheet: 1,671 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H100", 989e12, "NVIDIA H100 data sheet, SXM: 1,979 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H200 NVL", 835e12, "NVIDIA H200 data sheet: 1,671 teraFLOPS bf16 with sparsity, half of it dense"),
    Peak("NVIDIA H200", 989e12, "NVIDIA H200 data sheet, SXM: 1,979 teraFLOPS bf16 with sparsity, half of it dense"),
)
"""The first matching prefix counts."""


def peak_flops(device_kind: str, compute_dtype: str) -> float | None:
    """Return the peak FLOP/s of one device, or None if unknown.

    Only the bfloat16 peak is known. Float32 depends on the compiler's number of passes, and a CPU on its cores and clock.
    """
    if compute_dtype != "bfloat16":
        return None
    return next((peak.bfloat16 for peak in PEAKS if device_kind.startswith(peak.device_kind)), None)
