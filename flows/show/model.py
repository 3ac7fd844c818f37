"""The shape of a model as a person reads it."""

from typing import Any

from phasewise.trainer.base.wording import in_words, number

Values = dict[str, str]


def describe_model(phase: dict[str, Any]) -> Values:
    """What a phase's page says of its model, a line a part."""
    model = phase["model"]
    return {
        "parameters": parameters_in_words(phase),
        "shape": f"{model['num_layers']} layers, d_model {model['d_model']:,}, d_ff {model['d_ff']:,}",
        **experts_in_words(model),
        "heads": f"{model['num_query_heads']} query, {model['num_kv_heads']} kv, head_dim {model['head_dim']}",
        "vocabulary, sequence": f"{model['vocab_size']:,} tokens, {model['seq_len']:,} positions",
        "RoPE": rope_in_words(model["rope"]) + (", in local layers only" if model["global_attention_every"] else ""),
        "norms": norms_in_words(model),
        "precision": f"weights float32, compute {model['compute_dtype']}; attention in float32 {in_words(model['float32_attention'])}",
        "attention": attention_in_words(model),
        "initial standard deviation": number(model["initializer_std"]) + _cut_off(model),
        **({"embeddings are multiplied by": number(model["embedding_scale"])} if model["embedding_scale"] != 1 else {}),
        "head tied to the embedding": in_words(model["tied_head"]),
    }


def parameters_in_words(phase: dict[str, Any]) -> str:
    """All weights; of a sparse model also those that a token meets."""
    active = f", of which a token meets {phase['active_parameters']:,}" if phase["model"]["experts"] else ""
    return f"{phase['parameters']:,}{active}"


def experts_in_words(model: dict[str, Any]) -> Values:
    """How many there are, which layers have them, and how the load on them is balanced; nothing of a dense model."""
    experts = model["experts"]
    if experts is None:
        return {}
    first, rule = experts["num_dense_layers"], experts["balancing"]
    settings = ", ".join(f"{name} {number(value)}" for name, value in (rule or {}).items() if name != "kind")
    return {
        "experts": f"{experts['num_experts']:,}, of which a token has {experts['num_active']}, and {experts['num_shared']} shared; "
        f"each {experts['d_expert']:,} wide; gates sum to {number(experts['route_scale'])}",
        "dense layers": f"the first {first}, with an MLP of {model['d_ff']:,}" if first else "none",
        "balancing": f"{rule['kind']}: {settings}" if rule else "off",
        "sequence-wise balance loss": number(experts["sequence_loss"]) if experts["sequence_loss"] else "off",
    }


def norms_in_words(model: dict[str, Any]) -> str:
    """Which there are."""
    post = "; before and after each part of a layer" if model["post_norms"] else ""
    return f"RMS, epsilon {number(model['rms_norm_epsilon'])}; QK-norm {in_words(model['qk_norm'])}{post}"


def attention_in_words(model: dict[str, Any]) -> str:
    """How far a position sees, in which layers, and whether a gate follows."""
    reach = "within documents" if model["attend_within_documents"] else "over the whole row, whatever documents are in it"
    window, every = model["sliding_window"], model["global_attention_every"]
    if window is not None:
        reach += f", {window:,} positions back"
    if every is not None:
        reach += f"; in every {every}th layer all positions, without RoPE"
    return f"{reach}; gated" if model["attention_gate"] else reach


def _cut_off(model: dict[str, Any]) -> str:
    return f", cut off at {number(model['initializer_cutoff'])} of them" if model["initializer_cutoff"] else ""


def model_in_words(model: dict[str, Any]) -> str:
    """The shape in one line."""
    norms = f"RMS norms of epsilon {number(model['rms_norm_epsilon'])}{', QK-norm' if model['qk_norm'] else ''}"
    heads = f"{model['num_query_heads']} query and {model['num_kv_heads']} kv heads of {model['head_dim']}"
    sparse = f", {'; '.join(f'{name} {value}' for name, value in experts_in_words(model).items())}"
    shape = f"{model['num_layers']} layers, d_model {model['d_model']:,}, d_ff {model['d_ff']:,}, {heads}, {norms}"
    return f"{shape}{sparse}" if model["experts"] else shape


def rope_in_words(rope: dict[str, Any]) -> str:
    """Its base and its stretch."""
    stretch = f"Llama 3's scaling: {in_words(rope['scaling'])}" if rope["scaling"] else "no scaling"
    return f"theta {number(rope['theta'])}, {stretch}"
