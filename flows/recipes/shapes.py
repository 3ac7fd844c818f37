"""Models by their shape: what a family fixes, and what follows from the sizes that are given."""

import math
from typing import Any

from phasewise.trainer.config import Experts, ModelConfig, Rope


def llama(
    *,
    num_layers: int,
    d_model: int,
    seq_len: int = 256,
    vocab_size: int = 4096,
    num_query_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    d_ff: int | None = None,
    rope: Rope | None = None,
    compute_dtype: str = "float32",
    **fields: Any,
) -> ModelConfig:
    """A model of Llama 3's family by its shape.

    Args:
        vocab_size: at least the tokenizer's.
        num_query_heads: as many as `d_model` has room for where only `head_dim` is given; 4 where neither is.
        num_kv_heads: as many as there are query heads, where none is given.
        head_dim: `d_model` divided by the number of query heads, where none is given.
        d_ff: 3.5 times `d_model`, as in Llama 3 8B, where none is given.
        rope: theta 10,000 without a stretch, where none is given.
        fields: other fields of `ModelConfig`, such as `qk_norm`, `tied_head`, `sliding_window`.
    """
    heads = num_query_heads or (d_model // head_dim if head_dim else 4)
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "seq_len": seq_len,
        "num_layers": num_layers,
        "d_model": d_model,
        "d_ff": d_ff or round(3.5 * d_model),
        "num_query_heads": heads,
        "num_kv_heads": num_kv_heads or heads,
        "head_dim": head_dim or d_model // heads,
        "rope": rope or Rope(theta=10_000, scaling=None),
        "compute_dtype": compute_dtype,
    }
    others = {
        "rms_norm_epsilon": 1e-5,
        "initializer_std": 0.02,
        "qk_norm": False,
        "tied_head": False,
        "sliding_window": None,
        "float32_attention": False,
    }
    return ModelConfig.model_validate({**others, **shape, **fields})


def qwen(*, num_layers: int, d_model: int, **fields: Any) -> ModelConfig:
    """A model of Qwen 3's family: `llama` with norms on queries and keys. Takes what `llama` takes."""
    return llama(num_layers=num_layers, d_model=d_model, qk_norm=True, **fields)


def afmoe(
    *,
    num_layers: int,
    d_model: int,
    experts: Experts,
    seq_len: int = 256,
    sliding_window: int | None = None,
    global_attention_every: int = 4,
    **fields: Any,
) -> ModelConfig:
    """A sparse model of Trinity's family (AFMoE): experts behind a router, and what the family does besides.

    Local layers with RoPE and a window, each so-manieth one global and without RoPE; norms on queries and keys, and before and after each
    part of a layer; a sigmoid gate on what attention gives; embeddings times √d_model; weights of standard deviation 0.5 / √d_model, cut
    off at three of them (Trinity Large report, §2).

    Args:
        experts: how many there are, how large, and how the load on them is balanced.
        sliding_window: how far local layers see; half of `seq_len` where it is not given.
        fields: what `llama` takes, and other fields of `ModelConfig`.
    """
    family: dict[str, Any] = {
        "qk_norm": True,
        "attention_gate": True,
        "post_norms": True,
        "embedding_scale": math.sqrt(d_model),
        "initializer_std": 0.5 / math.sqrt(d_model),
        "initializer_cutoff": 3.0,
    }
    family |= {"sliding_window": sliding_window or seq_len // 2, "global_attention_every": global_attention_every}
    return llama(num_layers=num_layers, d_model=d_model, seq_len=seq_len, experts=experts, **(family | fields))
