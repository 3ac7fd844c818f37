"""Our `ModelConfig` to and from the `config.json` of the Llama, Mistral, Qwen3 and AFMoE classes of `transformers`."""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.frozen import join_problems
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.config import Experts, Llama3RopeScaling, ModelConfig, Rope

DTypeName = Literal["float32", "bfloat16"]
LLAMA, MISTRAL, QWEN3, AFMOE = "LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM", "AfmoeForCausalLM"
MODEL_TYPES = {LLAMA: "llama", MISTRAL: "mistral", QWEN3: "qwen3", AFMOE: "afmoe"}
NOT_IN_DECODER = {
    "Qwen2ForCausalLM": "biases in the query, key and value projections",
    "Olmo2ForCausalLM": "norms only after attention and MLP, and a query norm over all heads",
    "Olmo3ForCausalLM": "norms only after attention and MLP, and a query norm over all heads",
    "GemmaForCausalLM": "gains of norms that are added to 1, and a GELU in the MLP",
    "Gemma2ForCausalLM": "gains of norms that are added to 1, and caps on logits",
    "Gemma3ForCausalLM": "gains of norms that are added to 1, and another RoPE in local layers",
    "Gemma3ForConditionalGeneration": "images, and gains of norms that are added to 1",
    "Phi3ForCausalLM": "one matrix for query, key and value",
    "MixtralForCausalLM": "a softmax over the chosen experts",
    "Qwen3MoeForCausalLM": "a softmax over experts without shared experts",
    "DeepseekV3ForCausalLM": "latent attention",
    "GptOssForCausalLM": "attention sinks and biases",
    "GPT2LMHeadModel": "learned positions and layer norms",
    "GPTNeoXForCausalLM": "parallel attention and MLP, and layer norms",
}
"""Architecture → the parts that this decoder lacks."""
LOCAL, GLOBAL = "sliding_attention", "full_attention"
FIELDS = {
    "vocab_size": "vocab_size", "seq_len": "max_position_embeddings", "num_layers": "num_hidden_layers", "d_model": "hidden_size",
    "d_ff": "intermediate_size", "num_query_heads": "num_attention_heads", "rms_norm_epsilon": "rms_norm_eps",
    "initializer_std": "initializer_range",
}  # fmt: skip
"""Required fields with the same meaning: our name → their name."""
EXPERT_FIELDS = {
    "num_experts": "num_experts", "num_active": "num_experts_per_tok", "num_shared": "num_shared_experts",
    "d_expert": "moe_intermediate_size", "route_scale": "route_scale", "num_dense_layers": "num_dense_layers",
}  # fmt: skip
ROPE_SCALING = {
    "factor": "factor", "low_frequency_factor": "low_freq_factor", "high_frequency_factor": "high_freq_factor",
    "original_max_positions": "original_max_position_embeddings",
}  # fmt: skip
MUST_BE = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
"""The only values that the decoder supports. They are also the defaults."""
AFMOE_MUST_BE = {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1, "attention_dropout": 0.0}


class Computation(NamedTuple):
    """Settings of a model that its folder lacks: types, and attention in rows of several documents."""

    compute_dtype: DTypeName = "float32"
    float32_attention: bool = False
    attend_within_documents: bool = True


FREE_FIELDS = {"vocab_size", *Computation._fields, "seq_len", "initializer_std", "initializer_cutoff"}
"""Fields of a model that may differ from a folder whose weights it takes over. They change no weight's shape and no result of a layer."""
FREE_IN_EXPERTS = {"balancing", "sequence_loss"}


def layer_types(num_layers: int, every: int) -> list[str]:
    """Return their names of the layers' attention."""
    return [GLOBAL if (layer + 1) % every == 0 else LOCAL for layer in range(num_layers)]


def to_hugging_face(config: ModelConfig, dtype: DTypeName) -> dict[str, Any]:
    """Return `config.json`, with RoPE for `transformers` 4 and 5. Raises ConfigError if their classes do not support the model."""
    architecture, fields = _class_and_fields(config)
    scaling = {}
    if (found := config.rope.scaling) is not None:
        scaling = {"rope_type": "llama3", **{theirs: getattr(found, ours) for ours, theirs in ROPE_SCALING.items()}}
    return {
        "architectures": [architecture],
        "model_type": MODEL_TYPES[architecture],
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_theta": config.rope.theta, **(scaling or {"rope_type": "default"})},
        "tie_word_embeddings": config.tied_head,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        **fields,
        "use_cache": True,
        "torch_dtype": dtype,
    }


def _class_and_fields(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    """Return the class for a model, and the fields that only this class has."""
    if (experts := config.experts) is not None:
        lacking = [name for name in ("attention_gate", "post_norms", "qk_norm") if not getattr(config, name)]
        lacking += ["global_attention_every"] if config.global_attention_every is None else []
        if lacking:
            raise ConfigError(f"{AFMOE} always has {', '.join(lacking)}, and the model has not: it cannot be exported.")
        if config.embedding_scale != 1.0 and not math.isclose(config.embedding_scale, math.sqrt(config.d_model), rel_tol=1e-6):
            raise ConfigError(
                f"{AFMOE} multiplies embeddings by 1 or √d_model = {math.sqrt(config.d_model):g}, found embedding_scale "
                f"{config.embedding_scale:g}: such a model cannot be exported."
            )
        return AFMOE, {
            **{theirs: getattr(experts, ours) for ours, theirs in EXPERT_FIELDS.items()},
            "global_attn_every_n_layers": config.global_attention_every,
            "sliding_window": config.sliding_window,
            "layer_types": layer_types(config.num_layers, config.global_attention_every or 1),
            "mup_enabled": config.embedding_scale != 1.0,
        }

    only_afmoe = {"global_attention_every": None, "attention_gate": False, "post_norms": False, "embedding_scale": 1.0}
    if found := [name for name, value in only_afmoe.items() if getattr(config, name) != value]:
        raise ConfigError(f"only {AFMOE}, which has experts, has {', '.join(found)}: a model without experts cannot be exported with it.")
    if config.qk_norm:
        on = config.sliding_window is not None
        return QWEN3, {
            "use_sliding_window": on,
            "sliding_window": config.sliding_window,
            "max_window_layers": 0 if on else config.num_layers,
            "layer_types": [LOCAL if on else GLOBAL] * config.num_layers,
        }
    if config.sliding_window is not None:
        return MISTRAL, {"sliding_window": config.sliding_window}
    if config.d_model % config.num_query_heads:
        raise ConfigError(
            f"{LLAMA} needs a d_model that is a multiple of num_query_heads, found {config.d_model} and {config.num_query_heads}: "
            "such a model cannot be exported."
        )
    return LLAMA, {"mlp_bias": False}


def from_hugging_face(found: dict[str, Any], computation: Computation) -> ModelConfig:
    """Return the model that a `config.json` describes. Raises CheckpointError if it is incomplete, impossible or not supported."""
    by_type = {kind: architecture for architecture, kind in MODEL_TYPES.items()}
    kind = str(found.get("model_type"))
    named: list[str] = found.get("architectures") or [by_type.get(kind, kind)]
    if len(named) != 1 or named[0] not in MODEL_TYPES:
        lacking = f"{NOT_IN_DECODER[named[0]]}, which this decoder lacks" if named[0] in NOT_IN_DECODER else "another architecture"
        raise CheckpointError(
            f"the architecture must be {', '.join(MODEL_TYPES)}, found {', '.join(named)} in config.json: it has {lacking}."
        )
    architecture = named[0]
    _check_fields(found, MUST_BE, FIELDS.values())
    heads = found["num_attention_heads"]
    own_fields: dict[str, Any] = {"sliding_window": None}
    try:
        if architecture == AFMOE:
            own_fields = _from_afmoe(found)
        elif architecture == QWEN3 and found.get("use_sliding_window") and found.get("sliding_window") is not None:
            layers, first = found["num_hidden_layers"], found.get("max_window_layers", 28)
            kinds = found.get("layer_types") or [LOCAL if layer >= first else GLOBAL for layer in range(layers)]
            if set(kinds) not in ({GLOBAL}, {LOCAL}):
                raise CheckpointError(
                    f"a sliding window must be in every layer or in none, found it in {kinds.count(LOCAL)} of {layers} in config.json."
                )
            own_fields = {"sliding_window": found["sliding_window"] if set(kinds) == {LOCAL} else None}
        elif architecture == MISTRAL:
            own_fields = {"sliding_window": found.get("sliding_window")}

        stated = found.get("rope_parameters") or found.get("rope_scaling") or {}
        rope_kind = stated.get("rope_type") or stated.get("type") or "default"
        theta = stated.get("rope_theta", found.get("rope_theta"))
        if rope_kind not in {"default", "llama3"} or stated.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(f"RoPE must be of the kind default or llama3 over the whole head, found {stated} in config.json.")
        if missing := [name for name in ROPE_SCALING.values() if rope_kind == "llama3" and name not in stated]:
            raise CheckpointError(f"RoPE of the kind llama3 needs {', '.join(missing)}, found {stated} in config.json.")
        if theta is None:
            raise CheckpointError("config.json must name rope_theta, and does not.")
        scaling = Llama3RopeScaling(**{ours: stated[theirs] for ours, theirs in ROPE_SCALING.items()}) if rope_kind == "llama3" else None
        return ModelConfig(
            **{ours: found[theirs] for ours, theirs in FIELDS.items()},
            num_kv_heads=found.get("num_key_value_heads") or heads,
            head_dim=found.get("head_dim") or found["hidden_size"] // heads,
            rope=Rope(theta=theta, scaling=scaling),
            qk_norm=architecture not in (LLAMA, MISTRAL),
            tied_head=found.get("tie_word_embeddings", False),
            **own_fields,
            **computation._asdict(),
        )
    except ValidationError as error:
        raise CheckpointError(f"config.json describes no possible model: {join_problems(error)}.") from None


def _check_fields(found: dict[str, Any], must_be: Mapping[str, Any], required: Iterable[str]) -> None:
    for name, value in must_be.items():
        if found.get(name, value) != value:
            raise CheckpointError(f"config.json must have {name} {value!r}, found {found[name]!r}: this decoder has no other.")
    if missing := sorted(name for name in required if found.get(name) is None):
        raise CheckpointError(f"config.json must name {', '.join(missing)}, and does not.")


def _from_afmoe(found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that only this class has. Balancing, its loss and the truncation of fresh weights are not in a folder, and off."""
    _check_fields(found, AFMOE_MUST_BE, (*EXPERT_FIELDS.values(), "sliding_window"))
    experts = Experts(**{ours: found[theirs] for ours, theirs in EXPERT_FIELDS.items()}, balancing=None, sequence_loss=0.0)
    kinds = found.get("layer_types")
    every = found.get("global_attn_every_n_layers")
    if every is None:
        every = (kinds or [GLOBAL]).index(GLOBAL) + 1
    if kinds is not None and kinds != layer_types(found["num_hidden_layers"], every):
        raise CheckpointError(f"one layer in {every} must be {GLOBAL} and the others {LOCAL}, found {kinds} in config.json.")
    return {
        "experts": experts,
        "global_attention_every": every,
        "sliding_window": found["sliding_window"],
        "embedding_scale": math.sqrt(found["hidden_size"]) if found.get("mup_enabled") else 1.0,
        "attention_gate": True,
        "post_norms": True,
    }


def differences_from_source(found: ModelConfig, model: ModelConfig, *, new_rows: int = 0, declares: Collection[str] = ()) -> list[str]:
    """Return the fields in which a phase's model differs from the folder whose weights it takes over, with both values.

    `declares`: fields whose change is stated.
    """
    before, after = (one.model_dump(exclude=FREE_FIELDS | set(declares)) for one in (found, model))
    for one in (before, after):
        one["experts"] = one["experts"] and {name: value for name, value in one["experts"].items() if name not in FREE_IN_EXPERTS}
    different = [f"{name} is {before[name]} in the folder and {after[name]} in the phase" for name in before if before[name] != after[name]]
    if model.vocab_size != found.vocab_size + new_rows:
        different.append(
            f"vocab_size is {model.vocab_size:,} in the phase, and the folder has {found.vocab_size:,} rows and new_rows is {new_rows:,}"
        )
    return different


def read_model(folder: Path, computation: Computation = Computation()) -> ModelConfig:  # noqa: B008  # a frozen tuple
    """Return the model that the `config.json` of a folder describes. Raises CheckpointError as `from_hugging_face`."""
    return from_hugging_face(read_settings(folder / "config.json"), computation)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of the folder, also with NaN. Raises CheckpointError if it is missing or not one object."""
    if not path.exists():
        raise CheckpointError(f"there is no {path.name} in {path.parent}: a Hugging Face folder has one.")
    try:
        found = parse_json(path.read_bytes(), allows_nan=True)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold one JSON object, found {type(found).__name__}.")
    return found
