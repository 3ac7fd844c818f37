"""`config.json` both ways, in the words of two versions, and what is refused."""

from typing import Any

import pytest

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.config import Llama3RopeScaling, ModelConfig, Rope
from phasewise.trainer.model.hugging_face_config import Computation, from_hugging_face, to_hugging_face

LLAMA3 = Rope(
    theta=500_000.0, scaling=Llama3RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=8192)
)
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tied_head": True, "rope": LLAMA3},
    "qwen": {"qk_norm": True, "head_dim": 6},
    "qwen window": {"qk_norm": True, "sliding_window": 5, "rope": LLAMA3},
}
LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
"""What the folder of Llama 3.1 8B says, in the words of version 4."""


def changed(model: ModelConfig, **fields: Any) -> ModelConfig:
    return model.but(**fields)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_survives_the_way_there_and_back(model: ModelConfig, variant: str):
    config = changed(model, **VARIANTS[variant])
    assert from_hugging_face(to_hugging_face(config, "float32"), Computation()) == config


@pytest.mark.parametrize("left_out", [("rope_parameters",), ("rope_theta", "rope_scaling")], ids=["version 4", "version 5"])
def test_the_words_of_either_version_suffice(model: ModelConfig, left_out: tuple[str, ...]):
    config = changed(model, rope=LLAMA3)
    written = {name: value for name, value in to_hugging_face(config, "float32").items() if name not in left_out}
    assert from_hugging_face(written, Computation()) == config


def test_a_published_model_is_understood():
    config = from_hugging_face(LLAMA_3_8B, Computation("bfloat16", float32_attention=True))
    assert config.rope == LLAMA3
    assert (config.num_layers, config.d_model, config.d_ff, config.head_dim) == (32, 4096, 14336, 128)
    assert (config.compute_dtype, config.float32_attention, config.qk_norm, config.tied_head) == ("bfloat16", True, False, False)


def test_what_is_left_out_has_its_default():
    short = {name: value for name, value in LLAMA_3_8B.items() if name not in ("architectures", "rope_scaling", "num_key_value_heads")}
    config = from_hugging_face(short, Computation())
    assert (config.num_kv_heads, config.rope.scaling, config.qk_norm) == (32, None, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "found MistralForCausalLM"),
        ({"architectures": None, "model_type": "gemma"}, "found gemma"),
        ({"hidden_act": "gelu"}, "hidden_act 'silu', found 'gelu'"),
        ({"attention_bias": True}, "attention_bias False, found True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "default or llama3"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "needs low_freq_factor, high_freq_factor"),
        ({"rope_theta": None}, "must name rope_theta"),
        ({"vocab_size": None, "hidden_size": None}, "must name hidden_size, vocab_size"),
        ({"num_key_value_heads": 5}, "multiple of num_kv_heads, found 32 and 5"),
    ],
)
def test_other_models_are_refused(change: dict[str, Any], said: str):
    with pytest.raises(CheckpointError, match=said):
        from_hugging_face({**LLAMA_3_8B, **change}, Computation())


def test_a_window_in_some_layers_is_refused(model: ModelConfig):
    written = to_hugging_face(changed(model, qk_norm=True, sliding_window=5), "float32")
    with pytest.raises(CheckpointError, match="in 1 of 2"):
        from_hugging_face({**written, "layer_types": ["full_attention", "sliding_attention"]}, Computation())
    with pytest.raises(CheckpointError, match="in 1 of 2"):
        from_hugging_face({**written, "layer_types": None, "max_window_layers": 1}, Computation())
    assert from_hugging_face({**written, "use_sliding_window": False}, Computation()).sliding_window is None


@pytest.mark.parametrize(
    ("change", "said"),
    [({"sliding_window": 5}, "no sliding window"), ({"num_query_heads": 6, "num_kv_heads": 3}, "multiple of num_query_heads")],
)
def test_what_their_llama_cannot_do_is_not_exported(model: ModelConfig, change: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        to_hugging_face(changed(model, **change), "float32")
