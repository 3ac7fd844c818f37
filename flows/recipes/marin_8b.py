"""Marin 8B, "Tootsie": Kestrel → Ocelot → Jellyfish → Phoenix → Starling → Deeper Starling.

The values are those of the experiment code (exp600) as it was run; where the retrospective says otherwise, `discrepancies` has both.
"""

from flows.recipes.recipe import Discrepancy, Evaluation, FromScratch, Gates, HandOff, Phase, Recipe, Tokenizer
from trainer.config import (
    AdamW,
    CheckpointPolicy,
    DataOrder,
    LearningRateSegment,
    Llama3RopeScaling,
    MixtureShares,
    ModelConfig,
    Rope,
    Stability,
    Steps,
    always,
)
from validations.limits import DataLimits, GateLimits, HealthLimits, LeakageLimits, OrderLimits

OLD_ROPE = Rope(theta=10_000, scaling=None)
LLAMA3_ROPE = Rope(
    theta=500_000,
    scaling=Llama3RopeScaling(factor=8, low_frequency_factor=1, high_frequency_factor=4, original_max_positions=8192),
)
TOKENIZER = Tokenizer(name="meta-llama/Meta-Llama-3.1-8B", vocab_size=128_256)


def llama_8b(rope: Rope) -> ModelConfig:
    """Llama 3.1 8B's shape: 8.030 B parameters."""
    return ModelConfig(
        vocab_size=TOKENIZER.vocab_size,
        seq_len=4096,
        num_layers=32,
        d_model=4096,
        d_ff=14_336,
        num_query_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rope=rope,
        rms_norm_epsilon=1e-5,
        initializer_std=0.02,
        compute_dtype="bfloat16",
        qk_norm=False,
        tied_head=False,
        sliding_window=None,
        float32_attention=False,
    )


ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.05)
BATCH = Steps[int](((0, 1024), (660_001, 3072), (1_320_001, 4096)))
ORDER = DataOrder(seed=0, permutation="linear", block_sequences=2048)
CHECKPOINTS = CheckpointPolicy(every_steps=20_000, every_minutes=10, keep_all=True)
CORE_BENCHMARKS = (
    "agieval_lsat_ar:3", "arc_easy:10", "arc_challenge:10", "boolq:10", "commonsense_qa:10", "copa:0", "hellaswag:0", "hellaswag:10",
    "lambada_openai:0", "openbookqa:0", "piqa:10", "wsc273:0", "winogrande:0",
)  # fmt: skip
WITH_MMLU = (*CORE_BENCHMARKS, "mmlu:0", "mmlu:5")
LOSS_SEQUENCES = 64
"""Rows of each component; the record's cadence, on this project's held-out split in place of its 16 and more outside sets."""
LEAKAGE = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
MIXING = OrderLimits(false_alarm_rate=1e-6, max_shift_deviations=0.5)
HEALTH = HealthLimits(
    spike_deviations=7.0, spike_window=1000, max_spike_percent=0.1, max_lm_head_growth=4.0, max_loss_rise=0.02, max_loss_shift=0.02,
    max_ema_gap=0.2, max_data_share=0.1,
)  # fmt: skip


def gates(*, max_increase_bits_per_byte: float, max_epochs: float) -> Gates:
    """Shares within one point of what was intended; no item leaks; every benchmark above its dumb baseline."""
    return Gates(
        data=DataLimits(max_share_error_points=1.0, max_epochs=max_epochs, leakage=LEAKAGE, order=MIXING),
        health=HEALTH,
        model=GateLimits(max_increase_bits_per_byte=max_increase_bits_per_byte, must_beat_baseline=True),
    )


def stability(*, z_loss: float | None, ema: float | None) -> Stability:
    """Clipped at 1.0 throughout."""
    return Stability(
        max_grad_norm=always(1.0),
        max_update_rms=always(None),
        max_update_norm=always(None),
        skip_step=always(None),
        z_loss=always(z_loss),
        ema_decay=always(ema),
    )


def percent(weights: dict[str, float], of: float = 100.0) -> MixtureShares:
    """Weights as shares that sum to `of` percent."""
    total = sum(weights.values())
    return {name: of * weight / total for name, weight in weights.items()}


# Trillions of NeoX tokens.
DCLM_MIX = {"dclm_baseline": 3.8, "starcoderdata": 0.25, "proofpile_2": 0.055}

# Billions of tokens; 70 % web and code, 30 % high quality.
JELLYFISH_WEB = {"dolmino_dclm": 700, "starcoderdata": 230 * 0.1}
JELLYFISH_HIGH_QUALITY = {
    "algebraic_stack": 11.5,
    "dolma_arxiv": 27.9,
    "megawika": 4.44,
    "open_web_math": 5.06,
    "dolma_pes2o": 58.1,
    "dolma_stackexchange": 17.1,
    "dolma_wiki": 3.65,
    "finemath_3_plus": 34,
}

# Compressed TiB, which the record takes for trillions of tokens.
GIB = 1 / 1024
NEMOTRON = {
    "nemotron_hq_actual": 935.43 * GIB,
    "nemotron_hq_synth": 2.72,
    "nemotron_medium_high": 844.51 * GIB,
    "nemotron_medium": 3.38,
    "nemotron_medium_low": 1.54,
    "nemotron_low_actual": 718.06 * GIB,
    "nemotron_low_synth": 642.78 * GIB,
}

# Trillions of tokens × how often they are repeated.
STARLING_HIGH_QUALITY = {
    "starcoderdata": 0.25,
    "proofpile_2": 0.25,
    "flan": 0.017 * 10,
    "dolmino_pes2o": 0.0581 * 5,
    "dolmino_stackexchange": 0.0171 * 5,
    "dolmino_wiki": 0.00365 * 5,
    "all_math": 0.00422 * 10,
    "arxiv_markdownified": 0.0581 * 5,
    "stackexchange_custom": 0.0171 * 5,
    "wikipedia_markdown": 0.00365 * 5,
    "medu_science_qa": 0.0012 * 5,
    "finemath_3_plus": 0.034 * 5,
}

KESTREL_MIXTURE = percent(DCLM_MIX)
JELLYFISH_MIXTURE = percent(JELLYFISH_WEB, 70) | percent(JELLYFISH_HIGH_QUALITY, 30)
PHOENIX_BRIDGE = percent(DCLM_MIX | NEMOTRON)
PHOENIX_MIXTURE = percent(NEMOTRON | {"starcoderdata": 0.25})
STARLING_MIXTURE = percent(NEMOTRON, 70) | percent(STARLING_HIGH_QUALITY, 30)


def segment(kind: str, start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """One stretch of the schedule."""
    return LearningRateSegment.model_validate({"kind": kind, "start_step": start_step, "end_step": end_step, "start": start, "end": end})


def wsd_s(*, stop_step: int, cycle: int, decay: int, warmup: int, peak: float, floor: float) -> tuple[LearningRateSegment, ...]:
    """Cycles of a plateau and an inverse decay, back to the peak without a warm-up (Wen et al., 2024); the first cycle warms up from 0."""
    segments = [segment("linear", 0, warmup, 0.0, peak)]
    for end in range(cycle, stop_step + 1, cycle):
        segments.append(segment("constant", segments[-1].end_step, end - decay, peak, peak))
        segments.append(segment("inverse", end - decay, end, peak, floor))
    return tuple(segments)


KESTREL = Phase(
    name="kestrel",
    start=FromScratch(seed=0),
    stop_step=660_000,
    model=llama_8b(OLD_ROPE),
    optimizer=ADAMW,
    learning_rate=wsd_s(stop_step=660_000, cycle=10_000, decay=1_000, warmup=1_000, peak=1e-3, floor=1e-4),
    batch=BATCH,
    mixture=always(KESTREL_MIXTURE),
    order=ORDER,
    stability=stability(z_loss=None, ema=None),
    slice=always("2x v5e-256"),
    checkpoints=CHECKPOINTS,
    evaluation=Evaluation(benchmarks=CORE_BENCHMARKS, held_out_tokens=None, loss_every_steps=10_000, loss_sequences=LOSS_SEQUENCES),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
    discrepancies=(
        Discrepancy(
            field="learning_rate",
            code="66 cycles of 10,000 steps, each with 1,000 steps of inverse decay to 1e-4 and no warm-up after it",
            retrospective="cycles of 20,000 steps with 2,000 of decay from step 200,000 on; decay shape and jump back not stated",
            source="Marin 8B retrospective, WSD-S and WSD Cycle Change; exp600",
        ),
    ),
)

OCELOT = Phase(
    name="ocelot",
    start=HandOff(
        parent="kestrel",
        step=660_000,
        fresh=("ema",),
        declares=("rope", "batch", "learning_rate", "schedule", "ema", "slice"),
    ),
    stop_step=740_500,
    model=llama_8b(LLAMA3_ROPE),
    optimizer=ADAMW,
    learning_rate=(segment("constant", 660_000, 740_500, 1.7e-3, 1.7e-3),),
    batch=BATCH,
    mixture=always(KESTREL_MIXTURE),
    order=ORDER,
    stability=stability(z_loss=None, ema=0.995),
    slice=always("v4-2048"),
    checkpoints=CHECKPOINTS,
    evaluation=Evaluation(benchmarks=CORE_BENCHMARKS, held_out_tokens=None, loss_every_steps=1_000, loss_sequences=LOSS_SEQUENCES),
    gates=gates(max_increase_bits_per_byte=0.3, max_epochs=2),
    discrepancies=(
        Discrepancy(
            field="learning_rate",
            code="1e-4 → 1.7e-3 in one step, a 17-fold jump with the new RoPE and the threefold batch, without a warm-up",
            retrospective="1.7e-3, about √3 times the old rate",
            source="Marin 8B retrospective, Phase 2; exp600",
        ),
        Discrepancy(
            field="batch",
            code="3072 sequences, three times Kestrel's",
            retrospective="the summary says 50 % more, the text three times",
            source="Marin 8B retrospective, Training Phases and Phase 2",
        ),
    ),
)

JELLYFISH = Phase(
    name="jellyfish",
    start=HandOff(parent="ocelot", step=740_500, fresh=(), declares=("schedule", "mixture")),
    stop_step=820_000,
    model=llama_8b(LLAMA3_ROPE),
    optimizer=ADAMW,
    learning_rate=(segment("linear", 740_500, 820_000, 1.7e-3, 1.7e-4),),
    batch=BATCH,
    mixture=always(JELLYFISH_MIXTURE),
    order=ORDER,
    stability=stability(z_loss=None, ema=0.995),
    slice=always("v4-2048"),
    checkpoints=CHECKPOINTS,
    evaluation=Evaluation(benchmarks=CORE_BENCHMARKS, held_out_tokens=None, loss_every_steps=1_000, loss_sequences=LOSS_SEQUENCES),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
    discrepancies=(
        Discrepancy(
            field="start",
            code="declared as step 738,376 of Kestrel, a step that Kestrel never had; the file is Ocelot's",
            retrospective="continues Ocelot",
            source="exp600; Marin 8B retrospective, Phase 3",
        ),
    ),
)

PHOENIX = Phase(
    name="phoenix",
    start=HandOff(parent="jellyfish", step=820_000, fresh=(), declares=("schedule", "mixture")),
    stop_step=1_320_000,
    model=llama_8b(LLAMA3_ROPE),
    optimizer=ADAMW,
    learning_rate=(segment("linear", 820_000, 822_000, 1.7e-4, 1.7e-3), segment("constant", 822_000, 1_320_000, 1.7e-3, 1.7e-3)),
    batch=BATCH,
    mixture=Steps(((820_000, PHOENIX_BRIDGE), (822_000, PHOENIX_MIXTURE))),
    order=ORDER,
    stability=stability(z_loss=None, ema=0.995),
    slice=always("v4-2048"),
    checkpoints=CHECKPOINTS,
    evaluation=Evaluation(benchmarks=WITH_MMLU, held_out_tokens=None, loss_every_steps=1_000, loss_sequences=LOSS_SEQUENCES),
    gates=gates(max_increase_bits_per_byte=0.3, max_epochs=2),
    discrepancies=(
        Discrepancy(
            field="mixture",
            code="no Proof-Pile 2 after the bridge",
            retrospective="the 32B retrospective calls its mixture, which has Proof-Pile 2, the Phoenix recipe",
            source="exp600; Marin 32B retrospective",
        ),
    ),
)

STARLING = Phase(
    name="starling",
    start=HandOff(parent="phoenix", step=1_320_000, fresh=(), declares=("batch", "schedule", "mixture", "z_loss")),
    stop_step=1_400_000,
    model=llama_8b(LLAMA3_ROPE),
    optimizer=ADAMW,
    learning_rate=(segment("linear", 1_320_000, 1_400_000, 1.7e-3, 1.7e-5),),
    batch=BATCH,
    mixture=always(STARLING_MIXTURE),
    order=ORDER,
    stability=stability(z_loss=1e-4, ema=0.995),
    slice=always("v4-2048"),
    checkpoints=CHECKPOINTS,
    evaluation=Evaluation(benchmarks=WITH_MMLU, held_out_tokens=None, loss_every_steps=1_000, loss_sequences=LOSS_SEQUENCES),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=5),
    discrepancies=(
        Discrepancy(
            field="mixture",
            code="Proof-Pile 2 has weight 0.25 for 55 B tokens, about 4.5 times its size",
            retrospective="the table says once",
            source="exp600; Marin 8B retrospective, Phase 5",
        ),
        Discrepancy(
            field="mixture",
            code="all_math reads the cache all_math-9d507c, the one that held GSM8K test items in Bison; here its test split is left out",
            retrospective="names contamination for the 32B's Bison only",
            source="exp600; exp1529; Marin 32B retrospective",
        ),
    ),
)

DEEPER_STARLING = Phase(
    name="deeper-starling",
    start=HandOff(parent="starling", step=1_400_000, fresh=(), declares=("schedule",)),
    stop_step=1_420_000,
    model=llama_8b(LLAMA3_ROPE),
    optimizer=ADAMW,
    learning_rate=(segment("constant", 1_400_000, 1_420_000, 1.7e-5, 1.7e-5),),
    batch=BATCH,
    mixture=always(STARLING_MIXTURE),
    order=ORDER,
    stability=stability(z_loss=1e-4, ema=0.995),
    slice=always("v4-2048"),
    checkpoints=CHECKPOINTS,
    evaluation=Evaluation(benchmarks=WITH_MMLU, held_out_tokens=None, loss_every_steps=1_000, loss_sequences=LOSS_SEQUENCES),
    gates=gates(max_increase_bits_per_byte=0.02, max_epochs=5),
    discrepancies=(
        Discrepancy(
            field="tokens",
            code="335.5 B tokens (20,000 steps)",
            retrospective="a comment says about 250 B",
            source="exp600",
        ),
    ),
)

MARIN_8B = Recipe(
    name="marin-8b",
    scale="full",
    tokenizer=TOKENIZER,
    phases=(KESTREL, OCELOT, JELLYFISH, PHOENIX, STARLING, DEEPER_STARLING),
)
