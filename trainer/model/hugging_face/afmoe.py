"""The fields of `config.json` that only `AfmoeForCausalLM` has, both ways."""

import math
from typing import Any

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.config import Experts, ModelConfig

AFMOE = "AfmoeForCausalLM"
EXPERT_FIELDS = {
    "num_experts": "num_experts",
    "num_active": "num_experts_per_tok",
    "num_shared": "num_shared_experts",
    "d_expert": "moe_intermediate_size",
    "route_scale": "route_scale",
    "num_dense_layers": "num_dense_layers",
}
"""Our name in `Experts` → theirs."""
MUST_BE = {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1, "attention_dropout": 0.0}
"""What the router of this family does; older folders say it."""
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def to_afmoe(config: ModelConfig) -> dict[str, Any]:
    """What a model with experts says beside the fields of every family.

    Raises:
        ConfigError: their class has a part that the model has not, or the model scales embeddings by another number.
    """
    assert config.experts is not None
    lacking = [name for name in ("attention_gate", "post_norms", "qk_norm") if not getattr(config, name)]
    lacking += ["global_attention_every"] if config.global_attention_every is None else []
    if lacking:
        raise ConfigError(f"{AFMOE} always has {', '.join(lacking)}, and the model has not: it cannot be exported.")
    if config.embedding_scale != 1.0 and not math.isclose(config.embedding_scale, math.sqrt(config.d_model), rel_tol=1e-6):
        raise ConfigError(
            f"{AFMOE} multiplies embeddings by 1 or √d_model = {math.sqrt(config.d_model):g}, found embedding_scale "
            f"{config.embedding_scale:g}: such a model cannot be exported."
        )
    return {
        **{theirs: getattr(config.experts, ours) for ours, theirs in EXPERT_FIELDS.items()},
        "global_attn_every_n_layers": config.global_attention_every,
        "sliding_window": config.sliding_window,
        "layer_types": layer_types(config.num_layers, config.global_attention_every or 1),
        "mup_enabled": config.embedding_scale != 1.0,
    }


def from_afmoe(found: dict[str, Any]) -> dict[str, Any]:
    """Our fields beside those of every family. What a folder cannot say is off: balancing, its loss, and the cut-off of fresh weights.

    Raises:
        CheckpointError: a field is missing, the router is of another kind, or the layers are in another pattern.
    """
    for name, value in MUST_BE.items():
        if found.get(name, value) != value:
            raise CheckpointError(f"config.json must have {name} {value!r}, found {found[name]!r}: this decoder has no other.")
    wanted = (*EXPERT_FIELDS.values(), "sliding_window")
    if missing := sorted(name for name in wanted if found.get(name) is None):
        raise CheckpointError(f"config.json must name {', '.join(missing)}, and does not.")
    experts = Experts(**{ours: found[theirs] for ours, theirs in EXPERT_FIELDS.items()}, balancing=None, sequence_loss=0.0)
    return {
        "experts": experts,
        "global_attention_every": _global_every(found),
        "sliding_window": found["sliding_window"],
        "embedding_scale": math.sqrt(found["hidden_size"]) if found.get("mup_enabled") else 1.0,
        "attention_gate": True,
        "post_norms": True,
    }


def layer_types(num_layers: int, every: int) -> list[str]:
    """Their names of the layers' attention."""
    return [GLOBAL if (layer + 1) % every == 0 else LOCAL for layer in range(num_layers)]


def _global_every(found: dict[str, Any]) -> int:
    layers: int = found["num_hidden_layers"]
    every = found.get("global_attn_every_n_layers")
    if every is None:
        every = (found.get("layer_types") or [GLOBAL]).index(GLOBAL) + 1
    kinds = found.get("layer_types")
    if kinds is not None and kinds != layer_types(layers, every):
        raise CheckpointError(f"one layer in {every} must be {GLOBAL} and the others {LOCAL}, found {kinds} in config.json.")
    return every
