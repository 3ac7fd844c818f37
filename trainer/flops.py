"""Arithmetic of a training step, and the peak FLOP/s of devices.

FLOPs per token, forward and backward (PaLM, Chowdhery et al., 2022, appendix B): six per multiplied parameter, and for attention the
products of queries with keys and of weights with values. Norms, RoPE, softmax, the optimizer, the embedding lookup and recomputation are
not counted, so the share of the peak is *model* FLOPs utilisation (MFU).
"""

import tomllib
from pathlib import Path
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


PEAKS = tuple(Peak(**peak) for peak in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["peaks"])


def peak_flops(device_kind: str, compute_dtype: str) -> float | None:
    """Return the peak FLOP/s of one device, or None if unknown.

    Only the bfloat16 peak is known. Float32 depends on the compiler's number of passes, and a CPU on its cores and clock.
    """
    if compute_dtype != "bfloat16":
        return None
    return next((peak.bfloat16 for peak in PEAKS if device_kind.startswith(peak.device_kind)), None)
