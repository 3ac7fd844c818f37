"""Make `goldens/`: tiny models drawn, computed and saved by `transformers`. Needs the extra `parity`.

`python -m tests.trainer.model.make_goldens [NAME …]`. Each is a folder as `save_pretrained` leaves it (weights in float16, to be
small) with `expected.npz`: tokens, logits and some gradients of the loss in float32, by their names. Make them again only where a golden
itself is wrong.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

GOLDENS = Path(__file__).with_name("goldens")
GRADIENTS = (
    "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight", "model.layers.1.self_attn.v_proj.weight",
    "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "model.layers.0.mlp.down_proj.weight",
    "model.layers.2.mlp.router.gate.weight", "model.layers.2.mlp.experts.1.up_proj.weight", "model.layers.3.self_attn.gate_proj.weight",
    "model.layers.4.mlp.experts.3.down_proj.weight", "model.layers.5.post_mlp_layernorm.weight",
)  # fmt: skip
"""Which are kept, where the model has them."""
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
VOCAB_SIZE = 61
SHAPE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "initializer_range": 0.2, "rms_norm_eps": 1e-5,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 2, "head_dim": 6, "rope_parameters": LLAMA3, "tie_word_embeddings": False}),
    "llama-tied": ("Llama", {"num_key_value_heads": 1, "head_dim": 8, "rope_parameters": PLAIN, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 8, "rope_parameters": LLAMA3, "tie_word_embeddings": False}),
    "qwen3-window": (
        "Qwen3",
        {
            "num_key_value_heads": 4, "head_dim": 6, "rope_parameters": PLAIN, "tie_word_embeddings": True, "use_sliding_window": True,
            "sliding_window": 5, "max_window_layers": 0,
        },
    ),
    "afmoe": (
        "Afmoe",
        {
            "hidden_size": 16, "num_hidden_layers": 7, "num_key_value_heads": 2, "head_dim": 6, "rope_parameters": PLAIN,
            "tie_word_embeddings": False, "num_dense_layers": 1, "global_attn_every_n_layers": 2, "sliding_window": 5, "num_experts": 4,
            "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 12, "route_scale": 1.7, "mup_enabled": True,
        },
    ),
}  # fmt: skip


def theirs(model: Any, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    torch: Any = import_module("torch")
    inputs = torch.from_numpy(tokens)
    found = model(input_ids=inputs, use_cache=False).logits
    torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), inputs[:, 1:].flatten()).backward()
    gradients = {
        name: np.zeros(tuple(weight.shape)) if weight.grad is None else weight.grad.numpy() for name, weight in model.named_parameters()
    }
    return found.detach().numpy(), as_stored(gradients)  # fmt: skip


def as_stored(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By the names in a folder, where each expert has tensors of its own; in memory they are stacked, gate and up in one."""
    stored: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, (gate, up) in enumerate(np.split(both, 2) for both in weight):
                stored |= {f"{stem}.{expert}.gate_proj.weight": gate, f"{stem}.{expert}.up_proj.weight": up}
        elif last == "down_proj":
            stored |= {f"{stem}.{expert}.down_proj.weight": down for expert, down in enumerate(weight)}
        else:
            stored[name] = weight
    return stored


def make(name: str, folder: Path) -> None:
    """One golden. The weights are rounded to float16 before anything is computed."""
    torch = import_module("torch")
    transformers = import_module("transformers")
    family, fields = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **fields}, attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    torch.manual_seed(sum(name.encode()))
    for weight_name, weight in model.named_parameters():
        torch.nn.init.uniform_(weight, 0.5, 1.5) if "norm" in weight_name else torch.nn.init.normal_(weight, std=0.2)
        weight.data.copy_(weight.data.half())  # the weights alone: model.half() would round the frequencies of RoPE too
    tokens = np.random.default_rng(sum(name.encode())).integers(0, VOCAB_SIZE, (2, 24))
    logits, gradients = theirs(model, tokens)
    kept = {kept_name: gradients[kept_name] for kept_name in GRADIENTS if kept_name in gradients}
    expected: dict[str, Any] = {"tokens": tokens, "logits": logits, **kept}
    model.half().save_pretrained(folder / name)
    (folder / name / "generation_config.json").unlink()
    np.savez_compressed(folder / name / "expected.npz", **expected)


if __name__ == "__main__":
    for golden in MODELS:
        if golden in sys.argv[1:] or len(sys.argv) == 1:
            make(golden, GOLDENS)
