"""One small model of each family, as changes of the fixture `model`."""

from typing import Any

import jax

from phasewise.trainer.config import Experts, ModelConfig, SignBalancing, Smebu
from phasewise.trainer.model.decoder import project, run_layers
from phasewise.trainer.model.params import Params

MEMBERS: dict[str, tuple[str, ...]] = {
    "embedding": ("embedding",),
    "attention": ("query", "key", "value", "output"),
    "mlp": ("gate", "up", "down"),
    "norms": ("attention_norm", "mlp_norm", "query_norm", "key_norm", "final_norm"),
    "lm_head": ("head",),
}

SIGN = SignBalancing(kind="sign", rate=1e-3)
SMEBU = Smebu(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5)
EXPERTS = Experts(
    num_experts=4, num_active=2, num_shared=1, d_expert=16, route_scale=1.5, num_dense_layers=0, balancing=SIGN, sequence_loss=0.0
)
AFMOE: dict[str, Any] = {
    "num_layers": 6, "qk_norm": True, "sliding_window": 8, "global_attention_every": 2, "attention_gate": True, "post_norms": True,
    "embedding_scale": 32**0.5, "initializer_cutoff": 3.0, "experts": EXPERTS,
}  # fmt: skip
"""Three times a local layer and a global one: a loop around loops."""
SPARSE: dict[str, Any] = {"experts": EXPERTS}  # layers that are all alike, with experts: one stack, quick to compile
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "qwen": {"qk_norm": True, "tied_head": True}, "afmoe": AFMOE}


def logits(params: Params, tokens: Any, config: ModelConfig, **options: Any) -> jax.Array:
    """A position sees itself and earlier positions of its document."""
    return project(params, run_layers(params, tokens, config, **options)[0], config)
