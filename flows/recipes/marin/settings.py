"""What both runs have in common: model family, optimizer, limits, and the shapes of their learning rates."""

from flows.recipes.benchmarks import CORE_BENCHMARKS
from flows.recipes.phase import Evaluation, Gates
from flows.recipes.recipe import Tokenizer
from trainer.config import (
    AdamW,
    DataOrder,
    LearningRateSegment,
    Llama3RopeScaling,
    ModelConfig,
    RollingLimit,
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
ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.05)
ORDER = DataOrder(seed=0, permutation="linear", block_sequences=2048)

LOSS_SEQUENCES = 64
"""Rows of each component; the record's cadence, on this project's held-out split in place of its 16 and more outside sets."""
LEAKAGE = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
MIXING = OrderLimits(false_alarm_rate=1e-6, max_shift_deviations=0.5)
HEALTH = HealthLimits(
    spike_deviations=7.0, spike_window=1000, max_spike_percent=0.1, max_lm_head_growth=4.0, max_loss_rise=0.02, max_loss_shift=0.02,
    max_ema_gap=0.2, max_data_share=0.1,
)  # fmt: skip

FLOOR_ERROR_RATE = 0.01
"""One in a hundred models that know nothing of what a benchmark asks may pass it."""


def llama(
    *, num_layers: int, d_model: int, d_ff: int, num_query_heads: int, rope: Rope = LLAMA3_ROPE, qk_norm: bool = False
) -> ModelConfig:
    """Llama 3's family at the record's sequence length; with QK-norm it is Qwen 3's."""
    return ModelConfig(
        vocab_size=TOKENIZER.vocab_size,
        seq_len=4096,
        num_layers=num_layers,
        d_model=d_model,
        d_ff=d_ff,
        num_query_heads=num_query_heads,
        num_kv_heads=8,
        head_dim=128,
        rope=rope,
        rms_norm_epsilon=1e-5,
        initializer_std=0.02,
        compute_dtype="bfloat16",
        qk_norm=qk_norm,
        tied_head=False,
        sliding_window=None,
        float32_attention=False,
    )


def evaluated(*, loss_every_steps: int, benchmarks: tuple[str, ...] = CORE_BENCHMARKS) -> Evaluation:
    """The loss on held-out text so often, and these benchmarks at the end."""
    return Evaluation(benchmarks=benchmarks, held_out_tokens=None, loss_every_steps=loss_every_steps, loss_sequences=LOSS_SEQUENCES)


def gates(*, max_increase_bits_per_byte: float, max_epochs: float | None, max_items: int = 0) -> Gates:
    """Shares within one point of what was intended, and within a quarter of themselves; no item leaks; benchmarks above the floor."""
    return Gates(
        data=DataLimits(
            max_share_error_points=1.0,
            max_share_error_percent=25.0,
            max_epochs=max_epochs,
            leakage=LEAKAGE.model_copy(update={"max_items": max_items}),
            order=MIXING,
        ),
        health=HEALTH,
        model=GateLimits(max_increase_bits_per_byte=max_increase_bits_per_byte, must_beat_baseline=True, floor_error_rate=FLOOR_ERROR_RATE),
    )


def stability(
    *,
    z_loss: float | None,
    ema: float | None,
    max_grad_norm: Steps[float | None] | None = None,
    max_update_rms: Steps[float | None] | None = None,
    max_update_norm: Steps[RollingLimit | None] | None = None,
    skip_step: RollingLimit | None = None,
) -> Stability:
    """Gradients clipped at 1.0, where nothing else is said."""
    return Stability(
        max_grad_norm=max_grad_norm or always(1.0),
        max_update_rms=max_update_rms or always(None),
        max_update_norm=max_update_norm or always(None),
        skip_step=always(skip_step),
        z_loss=always(z_loss),
        ema_decay=always(ema),
    )


def constant(start_step: int, end_step: int, rate: float) -> LearningRateSegment:
    """One rate throughout."""
    return LearningRateSegment(kind="constant", start_step=start_step, end_step=end_step, start=rate, end=rate)


def linear(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """From one rate to another in a straight line."""
    return LearningRateSegment(kind="linear", start_step=start_step, end_step=end_step, start=start, end=end)


def wsd_s(*, stop_step: int, cycle: int, decay: int, warmup: int, peak: float, floor: float) -> tuple[LearningRateSegment, ...]:
    """Cycles of a plateau and an inverse decay, back to the peak without a warm-up (Wen et al., 2024); the first cycle warms up from 0."""
    segments = [linear(0, warmup, 0.0, peak)]
    for end in range(cycle, stop_step + 1, cycle):
        segments.append(constant(segments[-1].end_step, end - decay, peak))
        segments.append(LearningRateSegment(kind="inverse", start_step=end - decay, end_step=end, start=peak, end=floor))
    return tuple(segments)
