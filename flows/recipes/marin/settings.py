"""Settings that both Marin runs share: model family, optimizer, limits, and recipe words with the published values."""

from typing import Any

from phasewise.flows.recipes import words
from phasewise.flows.recipes.benchmarks import CORE_BENCHMARKS
from phasewise.flows.recipes.phase import EvaluationSettings, Gates
from phasewise.flows.recipes.recipe import Tokenizer
from phasewise.trainer.config import AdamW, DataOrder, Llama3RopeScaling, ModelConfig, Rope

OLD_ROPE = Rope(theta=10_000, scaling=None)
LLAMA3_ROPE = Rope(
    theta=500_000, scaling=Llama3RopeScaling(factor=8, low_frequency_factor=1, high_frequency_factor=4, original_max_positions=8192)
)
TOKENIZER = Tokenizer(name="meta-llama/Meta-Llama-3.1-8B", vocab_size=128_256)
ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.05)
ORDER = DataOrder(seed=0, permutation="linear", block_sequences=2048)

LOSS_SEQUENCES = 64
"""Rows of each component. The cadence is the published one, on held-out text instead of 16 and more outside sets."""
HEALTH = words.HEALTH.but(max_spike_percent=0.1)


def llama(
    *, num_layers: int, d_model: int, d_ff: int, num_query_heads: int, rope: Rope = LLAMA3_ROPE, qk_norm: bool = False
) -> ModelConfig:
    """The Llama 3 family at the published sequence length. With QK-norm, the Qwen 3 family."""
    return words.llama(
        num_layers=num_layers,
        d_model=d_model,
        seq_len=4096,
        vocab_size=TOKENIZER.vocab_size,
        num_query_heads=num_query_heads,
        num_kv_heads=8,
        head_dim=128,
        d_ff=d_ff,
        rope=rope,
        compute_dtype="bfloat16",
        qk_norm=qk_norm,
    )


def evaluated(*, loss_every_steps: int, benchmarks: tuple[str, ...] = CORE_BENCHMARKS) -> EvaluationSettings:
    """The held-out loss during training, and benchmarks at the end."""
    return words.evaluated(loss_every_steps=loss_every_steps, benchmarks=benchmarks, held_out_tokens=None, loss_sequences=LOSS_SEQUENCES)


def gates(*, max_increase_bits_per_byte: float, max_epochs: float | None, max_items: int = 0, **more: Any) -> Gates:
    """Shares within one point, and within a quarter of their value. No leaked item. Benchmarks above the floor."""
    return words.gates(
        max_increase_bits_per_byte=max_increase_bits_per_byte,
        max_epochs=max_epochs,
        max_items=max_items,
        max_share_error_points=1.0,
        max_share_error_percent=25.0,
        must_beat_baseline=True,
        health=HEALTH,
        **more,
    )
