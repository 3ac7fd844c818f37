"""Settings that the three Trinity models share, their context extension and their fine-tuning."""

from collections.abc import Mapping, Sequence
from typing import Any

from phasewise.flows.recipes import words
from phasewise.flows.recipes.benchmarks import WITH_MMLU
from phasewise.flows.recipes.marin.mixtures import percent
from phasewise.flows.recipes.phase import Change, EvaluationSettings, Gates, Phase, continued
from phasewise.flows.recipes.recipe import Tokenizer
from phasewise.flows.recipes.words import linear
from phasewise.tasks.data.filters import LengthBias
from phasewise.trainer.config import DataOrder, LearningRateSegment, ModelConfig, Muon, always
from phasewise.validations.limits import PackingLimits

SMALL_MIX: Mapping[str, tuple[float, ...]] = {
    "web_trinity": (2.6, 0.4, 0.15),
    "web_trinity_synthetic": (2.2, 0.45, 0.25),
    "code_trinity": (1.0, 0.4, 0.3),
    "code_trinity_synthetic": (0.3, 0.15, 0.12),
    "mathematics_trinity": (0.4, 0.2, 0.2),
    "stem_trinity": (0.4, 0.13, 0.11),
    "stem_trinity_synthetic": (0.1, 0.07, 0.07),
}
"""Nano and Mini, by mixture of the schedule: AFM-4.5B's data with much more mathematics and code."""
LARGE_MIX: Mapping[str, tuple[float, ...]] = {
    "web_trinity": (4.5, 0.8, 0.3),
    "web_trinity_synthetic": (4.6, 1.2, 0.7),
    "multilingual_trinity_synthetic": (0.7, 0.2, 0.1),
    "code_trinity": (1.3, 0.7, 0.6),
    "code_trinity_synthetic": (0.4, 0.2, 0.2),
    "mathematics_trinity": (0.6, 0.4, 0.6),
    "stem_trinity": (0.7, 0.35, 0.35),
    "stem_trinity_synthetic": (0.2, 0.15, 0.15),
}
"""Large, by mixture of the schedule."""

LONG_MIX: Mapping[str, float] = {
    "pretraining_trinity_long": 0.40,
    "pdf_trinity": 0.20,
    "repositories_trinity": 0.15,
    "books_trinity": 0.10,
    "instruction_trinity_long": 0.10,
    "mathematics_trinity_long": 0.05,
}
"""The context extension of all three models. The report has the kinds (§3.5), and the shares are this project's."""

SMALL_MIXTURES, LARGE_MIXTURES = (
    tuple(percent(dict(zip(table, weights, strict=True))) for weights in zip(*table.values(), strict=True))
    for table in (SMALL_MIX, LARGE_MIX)
)
LONG_MIXTURE = percent(LONG_MIX)
LENGTH_BIAS = {"pretraining_trinity_long": LengthBias(floor=0.01, ceiling=0.90, full_tokens=131_072)}
"""Pre-training text in the context extension: 1 % of the shortest documents, 90 % from 128 K tokens (§3.5)."""

TRILLION = 10**12
TOKENIZER = Tokenizer(name="arcee-ai/Trinity-Large-Base", vocab_size=200_192)
ORDER = DataOrder(seed=0, permutation="feistel", block_sequences=2048)
BUFFER_DOCUMENTS = 4_096  # document buffer of Large's third phase by public notes: per device there, per component here
WARMUP_STEPS = 2_000
EXTENSION_TOKENS = 117e9
MAX_VIOLATION = 5.0  # limit on MaxVio by public notes: healthy runs stay below 1, and the failed run rose to 7 to 10


def steps_for(tokens: float, *, sequences: int, seq_len: int) -> int:
    """The number of steps that train the tokens, rounded."""
    return round(tokens / (sequences * seq_len))


def muon(*, adam_learning_rate_scale: float) -> Muon:
    """Muon for the matrices of the layers, with each expert as a matrix. AdamW for embedding, head and gains."""
    return words.muon(adam_learning_rate_scale=adam_learning_rate_scale).but(epsilon=1e-7)


def trinity(*, seq_len: int, within_documents: bool, **fields: Any) -> ModelConfig:
    """A model with the report's vocabulary: heads of 128, windows of half a sequence, one global layer in four.

    `fields`: sizes and experts, as in `words.afmoe`.
    """
    return words.afmoe(
        **fields,
        head_dim=128,
        seq_len=seq_len,
        sliding_window=seq_len // 2,
        vocab_size=TOKENIZER.vocab_size,
        compute_dtype="bfloat16",
        attend_within_documents=within_documents,
    )


def evaluated(*, needles: Sequence[int] = ()) -> EvaluationSettings:
    """The held-out loss every 1,000 steps, and Marin's benchmarks at the end."""
    benchmarks = (*WITH_MMLU, *(f"niah:{length}" for length in needles))
    return words.evaluated(loss_every_steps=1_000, benchmarks=benchmarks, held_out_tokens=None, loss_sequences=64)


def gates(*, max_increase_bits_per_byte: float = 0.0, max_epochs: float | None = 2, **more: Any) -> Gates:
    """Shares within one point, and within a quarter of their value. No leaked item. Benchmarks above the floor."""
    return words.gates(
        max_increase_bits_per_byte=max_increase_bits_per_byte,
        max_epochs=max_epochs,
        max_share_error_points=1.0,
        max_share_error_percent=25.0,
        must_beat_baseline=True,
        health=words.WITHOUT_AVERAGE.but(max_spike_percent=0.1, max_violation=MAX_VIOLATION),
        **more,
    )


def context_extension(
    parent: Phase, *, seq_len: int, learning_rate: Sequence[LearningRateSegment], declares: tuple[Change, ...] = ()
) -> Phase:
    """The context extension (report, §3.5): longer rows of other text with the parent's tokens per step, and needles in both lengths.

    Windows and RoPE of the local layers stay, and global layers have no positions, so every weight keeps its meaning. `seq_len`: a multiple
    of the parent's. `declares`: changes in addition to rows, text and order.
    """
    return continued(
        parent,
        name="context-extension",
        stop_step=learning_rate[-1].end_step,
        declares=("seq_len", *declares, "mixture", "order"),
        model=parent.model.but(seq_len=seq_len),
        learning_rate=tuple(learning_rate),
        batch=always(parent.batch.at(parent.stop_step - 1) * parent.model.seq_len // seq_len),
        mixture=always(LONG_MIXTURE),
        order=parent.order.but(first_step=parent.stop_step),
        evaluation=parent.evaluation.but(benchmarks=(*parent.evaluation.benchmarks, f"niah:{seq_len}")),
        gates=gates(max_increase_bits_per_byte=0.05),  # the rate rises again, or the text changes
    )


def instruction(parent: Phase, *, peak: float) -> Phase:
    """Supervised fine-tuning (report, §4): conversations of up to 64 K tokens, packed greedily, with a loss on answers only.

    `peak`: the peak learning rate of pre-training.
    """
    start, stop = parent.stop_step, parent.stop_step + 10_000
    top, rate = start + int(0.03 * 10_000), 0.1 * peak
    changes: tuple[Change, ...] = ("learning_rate",) if parent.learning_rate[-1].end else ()
    return continued(
        parent,
        name="sft",
        stop_step=stop,
        fresh=("optimizer",),
        declares=(*changes, "batch", "schedule", "optimizer_state", "mixture", "order", "packing", "loss_on", "seq_len"),
        branch=True,
        model=parent.model.but(seq_len=65_536),
        learning_rate=(linear(start, top, 0.0, rate), linear(top, stop, rate, 0.0)),
        batch=always(64),
        mixture=always({"instruction_trinity": 100.0}),
        order=parent.order.but(first_step=start, buffer_documents=None),
        packing="greedy",
        loss_on="answers",
        evaluation=evaluated(),
        gates=gates(
            max_increase_bits_per_byte=0.5,
            max_epochs=None,
            packing=PackingLimits(min_counted_percent=1.0, max_cut_percent=25.0),
            min_answer_gain_nats=0.0,
        ),
    )
