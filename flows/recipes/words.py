"""Everything that a recipe file imports (example: `docs/how-to/recipe.md`). `phasewise show` prints all default values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phasewise.flows.recipes.phase import (
    LOCAL_SLICE,
    EvaluationSettings,
    FromScratch,
    Gates,
    GraftFrom,
    HandOff,
    Phase,
    Pretrained,
    continued,
    phase_function,
)
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.written import keeps_call
from phasewise.tasks.data.conversation import AnswerColumn, Conversation
from phasewise.tasks.data.filters import FieldFilter, Filter, LengthBias, TextFilter
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.evaluation.settings import MADE_BENCHMARKS, Renderings
from phasewise.tasks.training.pretrained import chat_template_of, model_of
from phasewise.tasks.training.pretrained import tokenizer_of as source_tokenizer
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import (
    AdamC,
    AdamW,
    CheckpointPolicy,
    DataOrder,
    ExecutionSettings,
    Experts,
    Instrumentation,
    LearningRateSegment,
    Llama3RopeScaling,
    Mesh,
    MixtureShares,
    ModelConfig,
    Muon,
    NAdamW,
    Optimizer,
    RollingLimit,
    Rope,
    SignBalancing,
    SkipLimit,
    Smebu,
    Stability,
    Steps,
    always,
)
from phasewise.validations.limits import AcceptedWarning, DataLimits, GateLimits, HealthLimits, LeakageLimits, OrderLimits, PackingLimits


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
    """A model of the Llama 3 family.

    Args:
        vocab_size: at least the tokenizer's.
        num_query_heads: default `d_model / head_dim`, or 4 without `head_dim`.
        num_kv_heads: default `num_query_heads`.
        head_dim: default `d_model / num_query_heads`.
        d_ff: default 3.5 · `d_model`, as in Llama 3 8B.
        rope: default theta 10,000 without scaling.
        fields: other fields of `ModelConfig`, such as `qk_norm`, `tied_head`, `sliding_window`."""
    heads = num_query_heads or (d_model // head_dim if head_dim else 4)
    settings: dict[str, Any] = {
        "rms_norm_epsilon": 1e-5, "initializer_std": 0.02, "qk_norm": False, "tied_head": False, "sliding_window": None,
        "float32_attention": False, "vocab_size": vocab_size, "seq_len": seq_len, "num_layers": num_layers, "d_model": d_model,
        "d_ff": d_ff or round(3.5 * d_model), "num_query_heads": heads, "num_kv_heads": num_kv_heads or heads,
        "head_dim": head_dim or d_model // heads, "rope": rope or Rope(theta=10_000, scaling=None), "compute_dtype": compute_dtype,
    }  # fmt: skip
    return ModelConfig.model_validate(settings | fields)


def qwen(*, num_layers: int, d_model: int, **fields: Any) -> ModelConfig:
    """A model of the Qwen 3 family: `llama` with norms on queries and keys, and the arguments of `llama`."""
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
    """A sparse model of the Trinity family, AFMoE (Trinity Large report, §2).

    Experts behind a router. Local layers with RoPE and a window, and every few layers a global layer without RoPE. Norms on queries and
    keys, and before and after each part of a layer. A sigmoid gate after attention. Embeddings times √d_model. Initial weights with
    standard deviation 0.5 / √d_model, truncated at three standard deviations.

    Args:
        sliding_window: default half of `seq_len`.
        global_attention_every: layers per global layer.
        fields: arguments of `llama`, and other fields of `ModelConfig`."""
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


Rates = tuple[LearningRateSegment, ...]


def constant(start_step: int, end_step: int, rate: float) -> LearningRateSegment:
    """A constant rate."""
    return LearningRateSegment(kind="constant", start_step=start_step, end_step=end_step, start=rate, end=rate)


def linear(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """A straight line from `start` to `end`."""
    return LearningRateSegment(kind="linear", start_step=start_step, end_step=end_step, start=start, end=end)


def cosine(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """Half a period of a cosine from `start` to `end`."""
    return LearningRateSegment(kind="cosine", start_step=start_step, end_step=end_step, start=start, end=end)


def inverse(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """A curve from `start` to `end` with linear 1 / rate."""
    return LearningRateSegment(kind="inverse", start_step=start_step, end_step=end_step, start=start, end=end)


@keeps_call
def cooldown(start_step: int, end_step: int, peak: float, floor: float = 0.0) -> Rates:
    """A straight line down over the whole phase."""
    return (linear(start_step, end_step, peak, floor),)


@keeps_call
def wsd(*, stop_step: int, warmup: int, decay: int, peak: float, floor: float = 0.0) -> Rates:
    """Warm-up from 0, stable rate, and linear decay over the last `decay` steps. With `decay=0`, the next phase decays.

    With `decay=0`, the schedule may stop within the warm-up, at the rate reached.
    """
    if not decay and 0 < stop_step < warmup:
        return (linear(0, stop_step, 0.0, peak * (stop_step / warmup)),)
    if decay and stop_step - decay < warmup:
        raise RecipeError(
            f"the decay must start after the warm-up: expected stop_step - decay of at least {warmup}, found {stop_step} - {decay}. "
            "Shorten the decay or the warm-up."
        )
    segments = [linear(0, warmup, 0.0, peak)] if warmup else []
    if warmup < stop_step - decay:
        segments.append(constant(warmup, stop_step - decay, peak))
    return (*segments, *(cooldown(stop_step - decay, stop_step, peak, floor) if decay else ()))


@keeps_call
def wsd_s(*, stop_step: int, cycle: int, decay: int, warmup: int, peak: float, floor: float) -> Rates:
    """Cycles of a plateau and an inverse decay, back to the peak without a warm-up (Wen et al., 2024). The first cycle warms up from 0."""
    segments = [linear(0, warmup, 0.0, peak)]
    for end in range(cycle, stop_step + 1, cycle):
        segments.append(constant(segments[-1].end_step, end - decay, peak))
        segments.append(inverse(end - decay, end, peak, floor))
    return tuple(segments)


__all__ = [
    "AcceptedWarning", "AdamC", "AdamW", "AnswerColumn", "CheckpointPolicy", "Conversation", "DataLimits", "DataOrder",
    "EvaluationSettings", "ExecutionSettings", "Experts", "FieldFilter", "Filter", "FromScratch", "GateLimits", "Gates", "GraftFrom",
    "HandOff", "HealthLimits", "Instrumentation", "LeakageLimits", "LearningRateSegment", "LengthBias", "Llama3RopeScaling", "Mesh",
    "MixtureShares", "ModelConfig", "Muon", "NAdamW", "Optimizer", "OrderLimits", "Phase", "Pin", "Pretrained", "Recipe", "RollingLimit",
    "Rope", "SignBalancing", "SkipLimit", "Smebu", "Source", "Stability", "Steps", "TextFilter", "Tokenizer", "adamc", "adamw", "afmoe",
    "always", "chat_template", "checkpoints", "constant", "continued", "cooldown", "cosine", "evaluated", "first_phase", "from_scratch",
    "gates", "inverse", "like", "linear", "llama", "muon", "nadamw", "order", "pretrained", "qwen", "stability", "text", "tokenizer_of",
    "wsd", "wsd_s",
]  # fmt: skip

LEAKAGE = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
MIXING = OrderLimits(false_alarm_rate=1e-6, max_shift_deviations=0.5)
HEALTH = HealthLimits(
    spike_deviations=7.0, spike_window=1000, max_spike_percent=1.0, max_lm_head_growth=4.0, max_loss_rise=0.02, max_loss_shift=0.02,
    max_ema_gap=0.2, max_data_share=0.1,
)  # fmt: skip
WITHOUT_AVERAGE = HEALTH.but(max_ema_gap=None)
FLOOR_ERROR_RATE = 0.01  # share of models without any knowledge of a benchmark that may pass it
ANSWER_ERROR_RATE = 0.01  # share of checkpoints without the required answer gain that may pass
FALSE_REFUSAL_RATE = 0.05  # share of checkpoints as good as their parent that all benchmarks together may reject
MAX_SCORE_FALL = 0.01
"""One point. Marin continued after smaller losses: MMLU .653 → .651 in Jellyfish's dessert (Marin 8B retrospective)."""
MAX_SCORE_RISE = 0.25
"""More than any published phase gains: GSM8K gains 0.102 in Jellyfish's dessert (.509 → .611), and Mantis is 0.144 above the damaged Bison
(54.7, 69.1). At proxy scale, next_word gains 0.17 in a phase. A leak of all answers exceeds this limit, and a smaller leak can pass."""


def text(url: str, *include: str, **fields: Any) -> Source:
    """Text files of a folder as a component: `text("notes", "*.md", "*.txt")`.

    Args:
        url: a folder, or an fsspec URL.
        include: globs over relative paths, in which `*` matches slashes. Default: all files.
        fields: other fields of `Source`, such as `format="jsonl"`, `text_key`, `conversation`, `exclude`, `filters`."""
    return Source.model_validate({"url": url, "include": include or ("*",), "format": "text", **fields})


def adamw(*, weight_decay: float = 0.1, beta1: float = 0.9, beta2: float = 0.95, epsilon: float = 1e-8) -> AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    return AdamW(kind="adamw", beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)


def adamc(*, peak_learning_rate: float, weight_decay: float = 0.1, beta1: float = 0.9, beta2: float = 0.95, epsilon: float = 1e-8) -> AdamC:
    """AdamW with a decay that falls with the learning rate (Defazio, 2025). `peak_learning_rate` is the peak of the whole schedule."""
    adam = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
    return AdamC(kind="adamc", peak_learning_rate=peak_learning_rate, **adam)


def nadamw(*, weight_decay: float = 0.1, beta1: float = 0.9, beta2: float = 0.95, epsilon: float = 1e-8) -> NAdamW:
    """AdamW with Nesterov momentum (Dozat, 2016)."""
    return NAdamW(kind="nadamw", beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)


def muon(*, adam_learning_rate_scale: float, adam: AdamW | None = None, weight_decay: float = 0.1, momentum: float = 0.95) -> Muon:
    """Muon for the matrices of the blocks, and AdamW at the rate times `adam_learning_rate_scale` for the rest (Jordan et al., 2024)."""
    return Muon(
        kind="muon",
        momentum=momentum,
        nesterov=True,
        newton_schulz_steps=5,
        epsilon=1e-8,
        weight_decay=weight_decay,
        adam=adam or adamw(),
        adam_learning_rate_scale=adam_learning_rate_scale,
    )


def stability(
    *,
    z_loss: float | None = None,
    ema: float | None = None,
    max_grad_norm: Steps[float | None] | None = None,
    max_update_rms: Steps[float | None] | None = None,
    max_update_norm: Steps[RollingLimit | None] | None = None,
    skip_step: RollingLimit | SkipLimit | None = None,
) -> Stability:
    """Limits and regularisation of a run. By default, gradients are clipped at norm 1, and all other settings are off.

    Args:
        ema: decay of the moving average of the weights."""
    return Stability(
        max_grad_norm=max_grad_norm or always(1.0),
        max_update_rms=max_update_rms or always(None),
        max_update_norm=max_update_norm or always(None),
        skip_step=always(None if skip_step is None else SkipLimit(**skip_step.model_dump())),
        z_loss=always(z_loss),
        ema_decay=always(ema),
    )


def evaluated(
    *,
    loss_every_steps: int | None = 50,
    benchmarks: Sequence[str] = MADE_BENCHMARKS,
    held_out_tokens: int | None = 2048,
    loss_sequences: int = 4,
    renderings: Renderings | None = None,
    include: str | None = None,
    held_out: str | None = None,
    every_steps: int | None = None,
) -> EvaluationSettings:
    """Benchmarks and held-out bits per byte at the end of a phase and of kept checkpoints, and the held-out loss during training.

    Args:
        held_out_tokens: text of each component for bits per byte. None is all held-out text.
        loss_sequences: held-out rows of each component for the loss.
        renderings: test items under two renderings, together with `exposure_error_rate` in `gates`.
        include: folder of own benchmarks, as YAML of lm-eval or as JSON lines with question and answer.
        held_out: file or folder of own text outside the training data, for the gate.
        every_steps: also evaluate the kept checkpoints at multiples of this number."""
    return EvaluationSettings(
        benchmarks=tuple(benchmarks),
        held_out_tokens=held_out_tokens,
        loss_every_steps=loss_every_steps,
        loss_sequences=loss_sequences,
        renderings=renderings,
        include=include,
        held_out=held_out,
        every_steps=every_steps,
    )


def gates(
    *,
    max_increase_bits_per_byte: float = 0.0,
    max_epochs: float | None = 4.0,
    max_items: int = 0,
    max_held_out_percent: float | None = None,
    max_share_error_points: float = 1.0,
    max_share_error_percent: float | None = None,
    max_left_out_percent: float | None = 90.0,
    must_beat_baseline: bool = True,
    false_refusal_rate: float | None = FALSE_REFUSAL_RATE,
    max_score_fall: float | None = MAX_SCORE_FALL,
    max_score_rise: float | None = MAX_SCORE_RISE,
    exposure_error_rate: float | None = None,
    max_violation: float | None = None,
    health: HealthLimits = WITHOUT_AVERAGE,
    packing: PackingLimits | None = None,
    min_answer_gain_nats: float | None = None,
) -> Gates:
    """The limits of a phase: mixture shares, epochs, leaked test items, a healthy loss, and a model that is not worse than the parent.

    Args:
        max_increase_bits_per_byte: of held-out text, relative to the parent.
        max_epochs: epochs of each component since step 0. None is unlimited.
        max_items: leaked test items in the data of a component.
        max_held_out_percent: leaked held-out documents of a component, in percent. None applies `max_items` to them as well.
        max_share_error_points: error of a component's share over a stretch of steps, in percentage points.
        max_share_error_percent: error of a share within a block, in percent of the share. None is unlimited.
        max_left_out_percent: excluded documents of a component before a warning. None is unlimited.
        must_beat_baseline: each benchmark must be better than a trivial baseline.
        false_refusal_rate: probability that the scores reject a model as good as its parent. None, with None for `max_score_fall` and
            `max_score_rise`, compares no scores.
        max_score_fall, max_score_rise: true change of a score relative to the parent, as a share of the items. A rise of None is unlimited.
        exposure_error_rate: probability that a model without exposure to the items of `evaluated(renderings=…)` is rejected.
        max_violation: lasting excess of the busiest expert over the mean load, as a share of the mean load. None uses `health`.
        health: limits on the training metrics. Default: `HEALTH` without the gap to a moving average.
        packing: limits on padding, cut documents and predicted tokens of packed rows.
        min_answer_gain_nats: gain in the likelihood of answers over the parent, in nats per token, with `loss_on` answers."""
    return Gates(
        data=DataLimits(
            max_share_error_points=max_share_error_points,
            max_share_error_percent=max_share_error_percent,
            max_epochs=max_epochs,
            leakage=LEAKAGE.but(max_items=max_items, max_held_out_percent=max_held_out_percent),
            order=MIXING,
            packing=packing or PackingLimits(),
            max_left_out_percent=max_left_out_percent,
        ),
        health=health if max_violation is None else health.but(max_violation=max_violation),
        model=GateLimits(
            max_increase_bits_per_byte=max_increase_bits_per_byte,
            must_beat_baseline=must_beat_baseline,
            floor_error_rate=FLOOR_ERROR_RATE,
            false_refusal_rate=false_refusal_rate,
            max_score_fall=max_score_fall,
            max_score_rise=max_score_rise,
            exposure_error_rate=exposure_error_rate,
            min_answer_gain_nats=min_answer_gain_nats,
            answer_error_rate=None if min_answer_gain_nats is None else ANSWER_ERROR_RATE,
        ),
    )


def order(*, seed: int = 0, permutation: str = "feistel", block_sequences: int = 32, **fields: Any) -> DataOrder:
    """The data order: a permutation per component, and exact counts of a mixture in each block of `block_sequences`.

    A mixture may start inside a block, which is then cut short. `buffer_documents` fills rows from document buffers."""
    given = {"seed": seed, "permutation": permutation, "block_sequences": block_sequences, "cut_blocks": True, **fields}
    return DataOrder.model_validate(given)


def checkpoints(
    *, every_steps: int = 100, every_minutes: float | None = None, keep_all: bool = False, at_steps: Sequence[int] = ()
) -> CheckpointPolicy:
    """A checkpoint every `every_steps`, of which the last one is kept. Checkpoints of `at_steps` and of the end stay."""
    return CheckpointPolicy(every_steps=every_steps, every_minutes=every_minutes, keep_all=keep_all, at_steps=tuple(at_steps))


def pretrained(source: str, *, revision: str | None = None, new_rows: int = 0, declares: Sequence[str] = ()) -> Pretrained:
    """The start of a first phase from the weights of a model. The optimizer and all other state are fresh.

    Args:
        source: a Hugging Face folder (`./folder`), a model of the Hub (`owner/name`), or a trained phase
            (`HOME/runs/RECIPE-SCALE/PHASE`).
        revision: branch, tag or commit of a Hub model.
        new_rows: rows that are added to the vocabulary.
        declares: `rope` if the phase's RoPE differs from the source."""
    given = {"pretrained": source, "revision": revision, "new_rows": new_rows, "declares": tuple(declares)}
    return Pretrained.model_validate(given)


def like(source: str, *, revision: str | None = None, **fields: Any) -> ModelConfig:
    """The model of a source as in `pretrained`, with other `fields` such as `seq_len` or `compute_dtype`."""
    return model_of(source, revision).but(**fields)


def tokenizer_of(source: str, *, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a source as in `pretrained`, with the tokens that its files name for begin and end of a document."""
    name, vocab_size, around = source_tokenizer(source, revision)
    return Tokenizer(name=name, vocab_size=vocab_size, begin=around.begin, end=around.end)


def chat_template(source: str, *, revision: str | None = None) -> str:
    """The chat template of a source as in `pretrained`, for `Conversation(template=…)`."""
    return chat_template_of(source, revision)


@phase_function
def first_phase(
    *,
    name: str,
    start: FromScratch | Pretrained,
    stop_step: int,
    learning_rate: Sequence[LearningRateSegment],
    batch: int | Steps[int],
    mixture: Mapping[str, float] | Steps[MixtureShares],
    model: ModelConfig | None = None,
    **fields: Any,
) -> Phase:
    """The first phase. Later phases are `continued` from it.

    Args:
        batch: sequences per step, of `model.seq_len` tokens.
        mixture: component → share in percent, with a sum of 100.
        model: may be left out for a pretrained start. Rows then have at most 4,096 tokens.
        fields: other fields of `Phase`. Defaults of `optimizer`, `order`, `stability`, `checkpoints`, `evaluation` and `gates` are the
            functions of the same name, and the default slice is this machine."""
    others: dict[str, Any] = {
        "optimizer": adamw(),
        "order": order(),
        "stability": stability(),
        "slice": LOCAL_SLICE,
        "checkpoints": checkpoints(),
        "evaluation": evaluated(),
        "gates": gates(),
    }
    given = {"name": name, "stop_step": stop_step, "model": model, "learning_rate": learning_rate, "batch": batch, "mixture": mixture}
    return Phase.model_validate({**others, **given, "start": start, **fields})


@phase_function
def from_scratch(*, seed: int = 0, **fields: Any) -> Phase:
    """The first phase, with fresh weights from a seed. `fields`: the arguments of `first_phase`."""
    return first_phase(start=FromScratch(seed=seed), **fields)
