"""Held-out bits per byte: comparable between models with different tokenizers, and with a byte n-gram model."""

from collections.abc import Mapping

import jax
import numpy as np

from phasewise.tasks.evaluation.held_out import BitsPerByte, HeldOutTokens
from phasewise.tasks.evaluation.scoring import cut_windows, score_windows
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params


def bits_per_byte(params: Params, config: ModelConfig, held_out: Mapping[str, HeldOutTokens]) -> BitsPerByte:
    """Negative log2-likelihood of the documents' tokens over the UTF-8 bytes of their text, by component.

    A document longer than `seq_len` is cut into disjoint windows, each given the one token before it. The begin and end tokens are
    given, not predicted. A model that is not finite gives a value that is not.
    """
    params = jax.device_put(params)
    windows = [
        (component, window)
        for component, held in held_out.items()
        for document in held.documents
        for window in cut_windows(document, config.seq_len, held.special.begin)
    ]
    bits = dict.fromkeys(held_out, 0.0)
    scores = score_windows(params, config, [window for _, window in windows])
    for (component, _), scored in zip(windows, scores, strict=True):
        bits[component] -= float(scored.log_likelihoods.sum(dtype=np.float64)) / np.log(2)
    return BitsPerByte({component: float(bits[component] / held.text_bytes) for component, held in held_out.items()})
