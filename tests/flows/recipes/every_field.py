"""Every field of a recipe with another valid value, and what must move then."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, RootModel

Raw = dict[str, Any]
Edit = Callable[[Any], Any]
"""The value of before → another one; or, for `Whole`, the recipe as JSON, changed in place."""


class Row(NamedTuple):
    """What one field does.

    Attributes:
        edit: makes the other value of the old one.
        moves: the key that must move; `refused` is none, but the reason that is given; `nothing` is none on purpose.
        why: for `refused` a part of the reason, for `nothing` why it moves no key.
        whole: `edit` is given the recipe, because another field must change with this one.
    """

    edit: Edit
    moves: str
    why: str = ""
    whole: bool = False


def leaves(kind: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields that have no fields of their own. Where one of several models is possible, its name is in the path."""
    models = list(dict.fromkeys(_models(kind)))
    if not models:
        yield path
    for model in models:
        here = f"{path}<{model.__name__}>" if len(models) > 1 else path
        for name, field in model.model_fields.items():
            yield from leaves(field.annotation, f"{here}.{name}" if here else name)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The models that a type is made of; what only changes by steps is what it changes."""
    if isinstance(kind, type) and issubclass(kind, RootModel):
        yield from _models(kind.model_fields["root"].annotation)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    else:
        for part in get_args(kind):
            yield from _models(part)


def edited(raw: Raw, path: str, row: Row) -> Raw:
    """The recipe with the field changed, in its first place."""
    if row.whole:
        row.edit(raw)
        return raw
    *before, last = path.replace("<", ".<").split(".")
    holder: Any = raw
    for part in before:
        holder = _within(holder, part)
    holder = _first(holder, last)
    holder[last] = row.edit(holder[last])
    return raw


def _within(holder: Any, part: str) -> Any:
    if part.startswith("<"):
        return next(one for one in holder if one["kind"] == KINDS[part]) if isinstance(holder, list) else holder
    return _first(holder, part)[part]


def _first(holder: Any, name: str) -> Any:
    """What has a field of that name: the value itself, or the first of a list, of a table by names or of values by steps."""
    while not (isinstance(holder, dict) and name in holder):
        values = list(holder.values()) if isinstance(holder, dict) else holder
        holder = next(value for value in values if isinstance(value, dict | list))
    return holder


KINDS = {"<FieldFilter>": "field", "<TextFilter>": "text"}


def to(value: Any) -> Edit:
    return lambda before: value


def times(factor: float) -> Edit:
    return lambda before: type(before)(before * factor)


def plus(number: float) -> Edit:
    return lambda before: before + number


def _end_first_segment_later(raw: Raw) -> None:
    first, second = raw["phases"][0]["learning_rate"][:2]
    first["end_step"] += 1
    second["start_step"] += 1


def _stop_earlier(raw: Raw) -> None:
    phase = raw["phases"][0]
    phase["stop_step"] -= 1
    phase["learning_rate"][-1]["end_step"] -= 1


def _average_afresh(raw: Raw) -> None:
    raw["phases"][0]["start"] |= {"fresh": ["ema"], "declares": ["optimizer_state", "ema"]}


def _average_grafted(raw: Raw) -> None:
    start = raw["phases"][0]["start"]
    start["graft"][0]["part"] = "ema"
    start["declares"] = ["ema"]


FLIP: Edit = lambda before: not before  # noqa: E731  # one of the edits, which all are functions
WATCHED = "it says how training is watched, and training does the same"
EXPLAINS = "it explains the recipe, which follows the code"
RUN, EVALUATION, DATA, TRAINING, GATE, CACHES = "run", "evaluation", "data verdict", "training verdict", "gate verdict", "caches"
ADAM = {"beta1": Row(times(0.5), RUN), "beta2": Row(times(0.5), RUN), "epsilon": Row(times(2), RUN), "weight_decay": Row(plus(0.1), RUN)}
KIND, OTHER_KIND = Row(to("other"), "refused", "expected tags"), Row(to("other"), "refused", "Input should be 'adamw'")

MODEL: dict[str, Row] = {
    "vocab_size": Row(plus(8), RUN),
    "seq_len": Row(times(0.5), RUN),
    "num_layers": Row(plus(1), RUN),
    "d_model": Row(times(2), RUN),
    "d_ff": Row(plus(8), RUN),
    "num_query_heads": Row(times(2), RUN),
    "num_kv_heads": Row(lambda before: 2 if before == 1 else 1, RUN),
    "head_dim": Row(times(2), RUN),
    "rope.theta": Row(times(2), RUN),
    "rope.scaling.factor": Row(times(2), RUN),
    "rope.scaling.low_frequency_factor": Row(times(2), RUN),
    "rope.scaling.high_frequency_factor": Row(times(2), RUN),
    "rope.scaling.original_max_positions": Row(times(2), RUN),
    "rms_norm_epsilon": Row(times(2), RUN),
    "initializer_std": Row(times(2), RUN),
    "compute_dtype": Row(lambda before: "float32" if before == "bfloat16" else "bfloat16", RUN),
    "qk_norm": Row(FLIP, RUN),
    "tied_head": Row(FLIP, RUN),
    "sliding_window": Row(to(16), RUN),
    "float32_attention": Row(FLIP, RUN),
    "attend_within_documents": Row(FLIP, RUN),
    "global_attention_every": Row(to(2), RUN),
    "attention_gate": Row(FLIP, RUN),
    "post_norms": Row(FLIP, RUN),
    "embedding_scale": Row(times(2), RUN),
    "initializer_cutoff": Row(to(2.5), RUN),
    "experts.num_experts": Row(plus(4), RUN),
    "experts.num_active": Row(plus(1), RUN),
    "experts.num_shared": Row(plus(1), RUN),
    "experts.d_expert": Row(plus(8), RUN),
    "experts.route_scale": Row(times(2), RUN),
    "experts.num_dense_layers": Row(to(0), RUN),
    "experts.sequence_loss": Row(plus(0.5), RUN),
    "experts.balancing<SignBalancing>.kind": KIND,
    "experts.balancing<SignBalancing>.rate": Row(times(2), RUN),
    "experts.balancing<Smebu>.kind": KIND,
    "experts.balancing<Smebu>.rate": Row(times(2), RUN),
    "experts.balancing<Smebu>.sharpness": Row(times(2), RUN),
    "experts.balancing<Smebu>.momentum": Row(times(0.5), RUN),
}
STABILITY: dict[str, Row] = {
    "max_grad_norm": Row(to([[0, 3.0]]), RUN),
    "max_update_rms": Row(to([[0, 3.0]]), RUN),
    "z_loss": Row(to([[0, 0.5]]), RUN),
    "ema_decay": Row(to([[0, 0.5]]), RUN),
    **{f"{name}.window": Row(plus(1), RUN) for name in ("max_update_norm", "skip_step")},
    **{f"{name}.min_samples": Row(plus(1), RUN) for name in ("max_update_norm", "skip_step")},
    **{f"{name}.sigmas": Row(plus(1), RUN) for name in ("max_update_norm", "skip_step")},
}
RECOVERY: dict[str, Row] = {
    "action": Row(to("ask"), RUN),
    "max_loss.window": Row(plus(1), RUN),
    "max_loss.min_samples": Row(plus(1), RUN),
    "max_loss.sigmas": Row(plus(1), RUN),
    "checkpoints_back": Row(plus(1), RUN),
    "steps_more": Row(plus(1000), RUN),
    "max_times": Row(plus(1), RUN),
}
ORDER: dict[str, Row] = {
    "seed": Row(plus(1), RUN),
    "permutation": Row(to("feistel"), RUN),
    "block_sequences": Row(times(2), RUN),
    "first_step": Row(to(3), "refused", "must begin at step 0"),
    "rounding": Row(to("floor"), RUN),
    "cut_blocks": Row(FLIP, RUN),
    "buffer_documents": Row(to(16), RUN),
}
GATES: dict[str, Row] = {
    "data.max_share_error_points": Row(plus(1), DATA),
    "data.max_share_error_percent": Row(to(90.0), DATA),
    "data.max_left_out_percent": Row(to(50.0), DATA),
    "data.max_epochs": Row(to(7.0), DATA),
    "data.leakage.min_words": Row(plus(1), DATA),
    "data.leakage.min_score": Row(times(0.5), DATA),
    "data.leakage.min_copy_share": Row(times(0.5), DATA),
    "data.leakage.max_items": Row(plus(1), DATA),
    "data.order.false_alarm_rate": Row(times(0.5), DATA),
    "data.order.max_shift_deviations": Row(to(None), DATA),
    **{f"data.packing.{name}": Row(to(50.0), DATA) for name in ("min_counted_percent", "max_cut_percent", "max_padding_percent")},
    "health.spike_deviations": Row(plus(1), TRAINING),
    "health.spike_window": Row(plus(1), TRAINING),
    "health.max_spike_percent": Row(plus(1), TRAINING),
    "health.max_lm_head_growth": Row(to(None), TRAINING),
    "health.max_loss_rise": Row(to(None), TRAINING),
    "health.max_loss_shift": Row(to(None), TRAINING),
    "health.max_ema_gap": Row(to(None), TRAINING),
    "health.max_data_share": Row(to(None), TRAINING),
    "health.max_violation": Row(plus(1), TRAINING),
    "model.max_increase_bits_per_byte": Row(plus(0.5), GATE),
    "model.must_beat_baseline": Row(FLIP, GATE),
    "model.floor_error_rate": Row(times(0.5), GATE),
    "model.false_refusal_rate": Row(times(0.5), GATE),
    "model.max_score_fall": Row(times(0.5), GATE),
    "model.max_score_rise": Row(times(0.5), GATE),
    "model.needle_error_rate": Row(times(0.5), GATE),
    "model.exposure_error_rate": Row(times(0.5), GATE),
    "model.min_answer_gain_nats": Row(to(0.5), GATE),
    "model.answer_error_rate": Row(times(0.5), GATE),
}
PHASE: dict[str, Row] = {
    "name": Row(to("other"), RUN),
    "start<FromScratch>.seed": Row(plus(1), RUN),
    "stop_step": Row(_stop_earlier, RUN, whole=True),
    "learning_rate.kind": Row(to("cosine"), RUN),
    "learning_rate.start_step": Row(_end_first_segment_later, RUN, whole=True),
    "learning_rate.end_step": Row(_end_first_segment_later, RUN, whole=True),
    "learning_rate.start": Row(plus(1e-5), RUN),
    "learning_rate.end": Row(plus(1e-5), RUN),
    "batch": Row(to([[0, 8]]), RUN),
    "mixture": Row(to([[0, {"proofpile_2": 50.0, "starcoderdata": 50.0}]]), RUN),
    "slice": Row(to([[0, "v5p-512"]]), "preflight"),
    "checkpoints.every_steps": Row(plus(1), RUN),
    "checkpoints.every_minutes": Row(to(7.0), RUN),
    "checkpoints.keep_all": Row(FLIP, RUN),
    "checkpoints.at_steps": Row(to([5]), RUN),
    "evaluation.benchmarks": Row(to(["next_word"]), EVALUATION),
    "evaluation.held_out_tokens": Row(to(100), EVALUATION),
    **{
        f"evaluation.renderings.{name}": Row(lambda before: before.replace("items", "others"), EVALUATION)
        for name in ("items", "reference")
    },
    "evaluation.renderings.prompt": Row(to("Q: {text}"), EVALUATION),
    "evaluation.renderings.answer": Row(to("other"), "refused", "must have the field other with text"),
    "evaluation.renderings.left_out": Row(to("<<.*>>"), EVALUATION),
    "evaluation.loss_every_steps": Row(plus(1), "nothing", WATCHED),
    "evaluation.loss_sequences": Row(plus(1), "nothing", WATCHED),
    "instrumentation.layer_norms_every": Row(to(7), "nothing", WATCHED),
    "instrumentation.tensorboard": Row(FLIP, "nothing", WATCHED),
    "instrumentation.wandb": Row(to("offline"), "nothing", WATCHED),
    **{f"discrepancies.{name}": Row(to("other"), "nothing", EXPLAINS) for name in ("field", "code", "retrospective", "source", "place")},
    "discrepancies.severity": Row(to("low"), "nothing", EXPLAINS),
    **{f"notes.{name}": Row(to("other"), "nothing", EXPLAINS) for name in ("field", "text", "source", "place")},
    "packing": Row(to("greedy"), RUN),
    "loss_on": Row(to("answers"), RUN),
    "branch": Row(FLIP, "phases"),
    "abandoned": Row(FLIP, "nothing", "it allows a schedule that goes on after the phase's end, and changes no step"),
    "schedule_goes_on": Row(FLIP, "refused", "must begin before step"),
    **{f"model.{name}": row for name, row in MODEL.items()},
    **{f"stability.{name}": row for name, row in STABILITY.items()},
    **{f"recovery.{name}": row for name, row in RECOVERY.items()},
    **{f"order.{name}": row for name, row in ORDER.items()},
    **{f"gates.{name}": row for name, row in GATES.items()},
    **{f"optimizer<{kind}>.{name}": row for kind in ("AdamW", "AdamC", "NAdamW") for name, row in (ADAM | {"kind": KIND}).items()},
    "optimizer<AdamC>.peak_learning_rate": Row(times(2), RUN),
    **{f"optimizer<Muon>.adam.{name}": row for name, row in (ADAM | {"kind": OTHER_KIND}).items()},
    "optimizer<Muon>.kind": KIND,
    "optimizer<Muon>.momentum": Row(times(0.5), RUN),
    "optimizer<Muon>.nesterov": Row(FLIP, RUN),
    "optimizer<Muon>.newton_schulz_steps": Row(plus(1), RUN),
    "optimizer<Muon>.epsilon": Row(times(2), RUN),
    "optimizer<Muon>.weight_decay": Row(plus(0.1), RUN),
    "optimizer<Muon>.adam_learning_rate_scale": Row(times(2), RUN),
    "optimizer<Muon>.max_adam_grad_norm": Row(times(2), RUN),
}
HAND_OFF: dict[str, Row] = {
    "parent": Row(to("third"), RUN),
    "step": Row(to(50), RUN),
    "fresh": Row(_average_afresh, RUN, whole=True),
    "graft.part": Row(_average_grafted, RUN, whole=True),
    "graft.phase": Row(to("second"), RUN),
    "graft.step": Row(to(50), RUN),
    "declares": Row(lambda before: [*before, "z_loss"], "refused", "declares z_loss, and changes no such thing"),
}
SOURCE: dict[str, Row] = {
    "url": Row(lambda before: before + "-2", CACHES),
    "revision": Row(to("main"), "refused", "a revision belongs to a Hugging Face data set"),
    "listing": Row(lambda before: "LISTING", CACHES),
    "include": Row(to(["a.jsonl"]), CACHES),
    "exclude": Row(to(["b.jsonl"]), CACHES),
    "format": Row(to("markdown"), CACHES),
    "text_key": Row(to("body"), CACHES),
    "filters<FieldFilter>.kind": KIND,
    "filters<FieldFilter>.key": Row(to("other"), CACHES),
    "filters<FieldFilter>.keep": Row(to(["other"]), CACHES),
    "filters<TextFilter>.kind": KIND,
    "filters<TextFilter>.measure": Row(to("characters"), CACHES),
    "filters<TextFilter>.min": Row(to(2.0), CACHES),
    "filters<TextFilter>.max": Row(to(9e9), CACHES),
    "conversation.messages": Row(to("other"), CACHES),
    "conversation.role": Row(to("from"), CACHES),
    "conversation.content": Row(to("value"), CACHES),
    "conversation.roles": Row(to({"human": "user", "gpt": "assistant"}), CACHES),
    "conversation.prompt": Row(to("other"), CACHES),
    "conversation.context": Row(to("other"), CACHES),
    "conversation.answer.key": Row(to("other"), CACHES),
    "conversation.answer.content": Row(to("other"), CACHES),
    "conversation.answer.best_by": Row(to(None), CACHES),
    "conversation.system": Row(to(None), CACHES),
    "conversation.template": Row(to("trinity"), CACHES),
    "conversation.special_tokens": Row(to(["[INST]"]), CACHES),
    "conversation.leave_out": Row(to(["name"]), CACHES),
    "normalization.unicode": Row(to(None), CACHES),
    "normalization.line_ends": Row(to("keep"), CACHES),
    "normalization.trailing_spaces": Row(to("strip"), CACHES),
    "max_bad_fraction": Row(to(0.5), "data verdict"),
    "max_empty_fraction": Row(to(0.25), "data verdict"),
}
LENGTH_BIAS: dict[str, Row] = {
    "floor": Row(times(2), CACHES),
    "ceiling": Row(times(0.5), CACHES),
    "full_tokens": Row(times(2), CACHES),
    "seed": Row(plus(1), CACHES),
}
PIN: dict[str, Row] = {
    "component": Row(to("starcoderdata"), RUN),
    "split": Row(to("held_out"), EVALUATION),
    "url": Row(lambda before: before + "-moved", "nothing", "a place: the digest says what must be there"),
    "digest": Row(to("1" * 64), RUN),
}
ACCEPT: dict[str, Row] = {
    "table": Row(to("leakage"), "refused", "expect_order_to_mix"),
    "check": Row(to("expect_bananas"), "refused", "expect_bananas"),
    "where": Row(to({"permutation": "feistel"}), DATA),
    "phases": Row(to(["first"]), DATA),
    "reason": Row(to("another"), DATA),
    "source": Row(to("another"), DATA),
}
APPROVE: dict[str, Row] = {
    "table": Row(to("leakage"), "refused", "expect_epochs_within_limit"),
    "check": Row(to("expect_share_error_within_limit"), DATA),
    "phases": Row(to(["first"]), DATA),
}
FIELDS: dict[str, Row] = {
    "name": Row(to("another"), RUN),
    "scale": Row(lambda before: "full" if before == "proxy" else "proxy", RUN),
    "tokenizer.name": Row(to("somebody/something"), CACHES),
    "tokenizer.vocab_size": Row(plus(-8), CACHES),
    "tokenizer.components": Row(to(["starcoderdata"]), CACHES),
    "tokenizer.special_tokens": Row(to(["<|more|>"]), CACHES),
    **{f"phases.{name}": row for name, row in PHASE.items()},
    **{f"phases.start<HandOff>.{name}": row for name, row in HAND_OFF.items()},
    **{f"sources.{name}": row for name, row in SOURCE.items()},
    **{f"length_bias.{name}": row for name, row in LENGTH_BIAS.items()},
    **{f"pins.{name}": row for name, row in PIN.items()},
    **{f"accepts.{name}": row for name, row in ACCEPT.items()},
    **{f"approvable.{name}": row for name, row in APPROVE.items()},
    "max_tokens": Row(to(1), CACHES),
    "warnings_ask_people": Row(FLIP, GATE),
}
AT_SCALE: dict[tuple[str, str], Row] = {
    ("full", "scale"): Row(to("proxy"), "refused", "so far only this machine can be trained on"),
    ("proxy", "phases.slice"): Row(to([[0, "v5p-512"]]), "refused", "so far only this machine can be trained on"),
    ("full", "tokenizer.components"): Row(to(["starcoderdata"]), "refused", "is taken as it is"),
    ("full", "tokenizer.special_tokens"): Row(to(["<|more|>"]), "refused", "has the special tokens that it has"),
}
"""Where a field does something else at one scale."""
