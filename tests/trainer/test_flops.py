import itertools

import pytest

from phasewise.trainer.config import ModelConfig, Rope
from phasewise.trainer.flops import peak_flops, step_flops


def build_model(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "vocab_size": 8192, "seq_len": 256, "num_layers": 4, "d_model": 256, "d_ff": 704, "num_query_heads": 4, "num_kv_heads": 2,
        "head_dim": 64, "rope": Rope(theta=1e4, scaling=None), "rms_norm_epsilon": 1e-5, "initializer_std": 0.02,
        "compute_dtype": "float32", "qk_norm": False, "tied_head": False, "sliding_window": None, "float32_attention": False,
    }  # fmt: skip
    return ModelConfig.model_validate({**values, **changes})


def products(model: ModelConfig) -> list[tuple[int, int, int]]:
    """Rows, inner size and columns of every product that a row of tokens goes through; attention sees all of the row."""
    t, d, e = model.seq_len, model.d_model, model.head_dim
    queries, keys = model.num_query_heads * e, model.num_kv_heads * e
    block = [(t, d, queries), (t, d, keys), (t, d, keys), (t, queries, d), (t, d, model.d_ff), (t, d, model.d_ff), (t, model.d_ff, d)]
    return (block + [(t, e, t), (t, t, e)] * model.num_query_heads) * model.num_layers + [(t, d, model.vocab_size)]


def test_full_attention_is_the_sum_of_all_products():
    for changes in ({}, {"num_kv_heads": 4, "head_dim": 32}, {"num_layers": 1, "d_ff": 100, "num_query_heads": 6, "head_dim": 20}):
        model = build_model(**changes)
        expected = 3 * sum(2 * m * k * n for m, k, n in products(model))
        assert step_flops(model, 5, causal=False).total == 5 * expected


@pytest.mark.parametrize(("length", "window"), [(2, None), (7, None), (7, 1), (7, 3), (7, 7), (7, 100)])
def test_visible_pairs_are_those_of_the_mask(length: int, window: int | None):
    seen = [1 for t, s in itertools.product(range(length), repeat=2) if s <= t and (window is None or t - s < window)]
    model = build_model(seq_len=length, sliding_window=window, num_layers=1)
    assert step_flops(model, 3).attention == 3 * 12 * model.num_query_heads * model.head_dim * len(seen)


def test_what_is_masked_is_not_counted():
    model = build_model()
    full, causal = step_flops(model, 1, causal=False), step_flops(model, 1)
    local = step_flops(build_model(sliding_window=32), 1)
    assert causal.matrices == full.matrices == local.matrices
    assert causal.attention / full.attention == pytest.approx(257 / 512)
    assert local.attention / full.attention == pytest.approx((32 * 33 // 2 + 224 * 32) / 256**2)


def test_a_peak_is_that_of_the_device():
    for kind, peak in {
        "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5p": 459e12, "TPU v5": 459e12, "TPU v6 lite": 918e12,
        "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H200": 989e12, "cpu": None, "TPU v2": None,
    }.items():  # fmt: skip
        assert (peak_flops(kind, "bfloat16"), peak_flops(kind, "float32")) == (peak, None)
