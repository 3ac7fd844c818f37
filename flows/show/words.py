"""Settings of a phase as text. `trainer/base/wording.py` has the text of single values."""

from collections.abc import Mapping
from typing import Any

from phasewise.trainer.base.wording import in_words, number

Values = dict[str, str]


def describe_model(phase: dict[str, Any]) -> Values:
    """The model of a phase, a line for each part."""
    model = phase["model"]
    active = f", of which a token meets {phase['active_parameters']:,}" if model["experts"] else ""
    cut_off = f", cut off at {number(model['initializer_cutoff'])} of them" if model["initializer_cutoff"] else ""
    post_norms = "; before and after each part of a layer" if model["post_norms"] else ""
    reach = "within documents" if model["attend_within_documents"] else "over the whole row, whatever documents are in it"
    if model["sliding_window"] is not None:
        reach += f", {model['sliding_window']:,} positions back"
    if model["global_attention_every"] is not None:
        reach += f"; in every {model['global_attention_every']}th layer all positions, without RoPE"
    return {
        "parameters": f"{phase['parameters']:,}{active}",
        "shape": f"{model['num_layers']} layers, d_model {model['d_model']:,}, d_ff {model['d_ff']:,}",
        **_experts(model),
        "heads": f"{model['num_query_heads']} query, {model['num_kv_heads']} kv, head_dim {model['head_dim']}",
        "vocabulary, sequence": f"{model['vocab_size']:,} tokens, {model['seq_len']:,} positions",
        "RoPE": rope_in_words(model["rope"]) + (", in local layers only" if model["global_attention_every"] else ""),
        "norms": f"RMS, epsilon {number(model['rms_norm_epsilon'])}; QK-norm {in_words(model['qk_norm'])}{post_norms}",
        "precision": f"weights float32, compute {model['compute_dtype']}; attention in float32 {in_words(model['float32_attention'])}",
        "attention": f"{reach}; gated" if model["attention_gate"] else reach,
        "initial standard deviation": number(model["initializer_std"]) + cut_off,
        **({"embeddings are multiplied by": number(model["embedding_scale"])} if model["embedding_scale"] != 1 else {}),
        "head tied to the embedding": in_words(model["tied_head"]),
    }


def _experts(model: dict[str, Any]) -> Values:
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


def model_in_words(model: dict[str, Any]) -> str:
    """The shape of a model in one line."""
    norms = f"RMS norms of epsilon {number(model['rms_norm_epsilon'])}{', QK-norm' if model['qk_norm'] else ''}"
    heads = f"{model['num_query_heads']} query and {model['num_kv_heads']} kv heads of {model['head_dim']}"
    sparse = f", {'; '.join(f'{name} {value}' for name, value in _experts(model).items())}"
    shape = f"{model['num_layers']} layers, d_model {model['d_model']:,}, d_ff {model['d_ff']:,}, {heads}, {norms}"
    return f"{shape}{sparse}" if model["experts"] else shape


def rope_in_words(rope: dict[str, Any]) -> str:
    """Base and scaling of RoPE."""
    stretch = f"Llama 3's scaling: {in_words(rope['scaling'])}" if rope["scaling"] else "no scaling"
    return f"theta {number(rope['theta'])}, {stretch}"


def by_steps(entries: list[list[Any]]) -> str:
    """A value that changes at steps: `1 from 0, 0.2 from 56,400`."""
    if len(entries) == 1:
        return in_words(entries[0][1])
    return ", ".join(f"{in_words(value)} from {step:,}" for step, value in entries)


def arrows(entries: list[list[Any]]) -> str:
    """A value that changes at steps, without the steps: `8,192 → 7,680 → 8,192`."""
    return " → ".join(in_words(value) for _, value in entries)


def rate_ends(segments: list[dict[str, Any]], start_step: int, stop_step: int) -> str:
    """First and last learning rate, with a higher rate between them, in four digits."""
    from phasewise.trainer.config import LearningRateSegment, turns_of

    turns = turns_of(tuple(map(LearningRateSegment.model_validate, segments)), start_step, stop_step)
    return " → ".join(f"{rate:.4g}" for rate in (turns[:1] if set(turns) == {turns[0]} else turns))


def shares(mixture: dict[str, float]) -> str:
    """All shares, largest first."""
    return ", ".join(f"{name} {share:.2f} %" for name, share in sorted(mixture.items(), key=lambda item: -item[1]))


def mixture_in_a_word(entries: list[list[Any]]) -> str:
    """The largest family of components, such as all of `nemotron_…`, and its share in each stage."""
    found: list[tuple[str, int]] = []
    for _, mixture in entries:
        families: dict[str, float] = {}
        for name, share in mixture.items():
            family = name.partition("_")[0]
            families[family] = families.get(family, 0.0) + share
        largest = max(families, key=lambda family: families[family])
        if (largest, round(families[largest])) not in found[-1:]:
            found.append((largest, round(families[largest])))
    if len({family for family, _ in found}) == 1:
        return f"{found[0][0]} {' → '.join(str(share) for _, share in found)} %"
    return " → ".join(f"{family} {share} %" for family, share in found)


PACKING_WORDS = {
    "chunk": "chunk: documents one after the other, cut into full rows",
    "pad": "pad: each document in a row of its own, cut after the row's length",
    "greedy": "greedy: whole documents in a row as long as they fit, cut after the row's length",
}
LOSS_WORDS = {"all": "all tokens", "answers": "answers alone"}


def rows_in_words(packing: str, loss_on: str) -> str:
    """Packing and predicted tokens. Empty for the defaults."""
    if (packing, loss_on) == ("chunk", "all"):
        return ""
    return f"packing {packing}, loss on {LOSS_WORDS[loss_on]}"


def bias_in_words(bias: Mapping[str, Any]) -> str:
    """The selection of documents by length."""
    seed = f", seed {bias['seed']}" if bias["seed"] else ""
    return (
        f"{100 * bias['ceiling']:g} % from {bias['full_tokens']:,} tokens on, of shorter ones in proportion to their length, and at least "
        f"{100 * bias['floor']:g} %{seed}"
    )
