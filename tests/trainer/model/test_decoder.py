"""The forward pass against a slow reference in NumPy, and what must hold whatever the weights are."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from trainer.config import Llama3RopeScaling, ModelConfig, Rope
from trainer.model.decoder import BEGIN_OF_TEXT, logits
from trainer.model.params import Params, init_params

PLAIN = Rope(theta=10_000.0, scaling=None)
STRETCHED = Rope(
    theta=100.0, scaling=Llama3RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=64)
)
compiled_logits = jax.jit(logits, static_argnames="config")


def with_rope(model: ModelConfig, rope: Rope) -> ModelConfig:
    return ModelConfig.model_validate({**model.model_dump(), "rope": rope})


@pytest.fixture(scope="module")
def params(model: ModelConfig) -> Params:
    """Weights large enough that every part matters, and norm gains that are not ones."""
    drawn = init_params(3, ModelConfig.model_validate({**model.model_dump(), "initializer_std": 0.25}))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32) if "norm" in str(path) else leaf, drawn
    )


@pytest.fixture
def rows() -> np.ndarray:
    """Three packed rows: documents from the first token on, a tail of an earlier document first, one document throughout."""
    drawn = np.random.default_rng(1).integers(2, 256, (3, 32))
    drawn[0, [0, 9, 20]] = BEGIN_OF_TEXT
    drawn[1, [5, 6, 30]] = BEGIN_OF_TEXT
    return drawn


@pytest.fixture
def forward(model: ModelConfig, params: Params) -> Callable[[np.ndarray], np.ndarray]:
    """The logits of rows, compiled once."""
    return lambda tokens: np.asarray(compiled_logits(params, tokens, config=model))


# ── the reference: one row, one position, one head at a time, in float64 ──


def reference_frequencies(rope: Rope, head_dim: int) -> list[float]:
    """Llama 3.1's own words: wavelengths, and three cases."""
    frequencies: list[float] = []
    for plane in range(head_dim // 2):
        frequency = 1.0 / rope.theta ** (2 * plane / head_dim)
        if (scaling := rope.scaling) is not None:
            wavelength = 2 * np.pi / frequency
            if wavelength > scaling.original_max_positions / scaling.low_frequency_factor:
                frequency /= scaling.factor
            elif wavelength >= scaling.original_max_positions / scaling.high_frequency_factor:
                span = scaling.high_frequency_factor - scaling.low_frequency_factor
                smooth = (scaling.original_max_positions / wavelength - scaling.low_frequency_factor) / span
                frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency
        frequencies.append(frequency)
    return frequencies


def reference_norm(x: np.ndarray, gain: np.ndarray, epsilon: float) -> np.ndarray:
    return gain * x / np.sqrt(np.mean(x**2) + epsilon)


def reference_turn(x: np.ndarray, position: int, frequencies: list[float]) -> np.ndarray:
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * np.array(frequencies))
    return np.concatenate([turned.real, turned.imag])


def reference_attention(weights: dict[str, np.ndarray], x: np.ndarray, documents: list[int], config: ModelConfig) -> np.ndarray:
    frequencies = reference_frequencies(config.rope, config.head_dim)
    out = np.zeros_like(x)
    for head in range(config.num_query_heads):
        group = head // (config.num_query_heads // config.num_kv_heads)
        keys = [reference_turn(x[s] @ weights["key"][:, group], s, frequencies) for s in range(len(x))]
        values = [x[s] @ weights["value"][:, group] for s in range(len(x))]
        for t in range(len(x)):
            query = reference_turn(x[t] @ weights["query"][:, head], t, frequencies)
            visible = [s for s in range(t + 1) if documents[s] == documents[t]]
            scores = np.array([np.dot(query, keys[s]) for s in visible]) / np.sqrt(config.head_dim)
            attention = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            mixed = sum(weight * values[s] for weight, s in zip(attention, visible, strict=True))
            out[t] += mixed @ weights["output"][head]
    return out


def reference_logits(params: Params, row: np.ndarray, config: ModelConfig) -> np.ndarray:
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    documents = [int(np.sum(row[: t + 1] == BEGIN_OF_TEXT)) for t in range(len(row))]
    x = params["embedding"][row]
    for layer in range(config.num_layers):
        weights = {name: stacked[layer] for name, stacked in params["blocks"].items()}
        normed = np.stack([reference_norm(v, weights["attention_norm"], config.rms_norm_epsilon) for v in x])
        x = x + reference_attention(weights, normed, documents, config)
        for t in range(len(x)):
            v = reference_norm(x[t], weights["mlp_norm"], config.rms_norm_epsilon)
            gate = v @ weights["gate"]
            x[t] += (gate / (1 + np.exp(-gate)) * (v @ weights["up"])) @ weights["down"]
    return np.stack([reference_norm(v, params["final_norm"], config.rms_norm_epsilon) @ params["head"] for v in x])


@pytest.mark.parametrize("rope", [PLAIN, STRETCHED], ids=["plain", "llama3"])
def test_logits_are_those_of_the_slow_reference(model: ModelConfig, params: Params, rows: np.ndarray, rope: Rope):
    config = with_rope(model, rope)
    found = compiled_logits(params, rows, config=config)
    expected = np.stack([reference_logits(params, row, config) for row in rows])
    assert found.dtype == np.float32
    assert expected.std() > 0.5  # else the tolerance would say little
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_a_position_sees_nothing_that_comes_after_it(forward: Callable[[np.ndarray], np.ndarray], rows: np.ndarray):
    before = forward(rows)
    for position in (0, 7, 19, 30):
        changed = rows.copy()
        changed[:, position + 1 :] = (changed[:, position + 1 :] * 7 + 3) % 256  # other tokens, document starts among them
        after = forward(changed)
        np.testing.assert_array_equal(after[:, : position + 1], before[:, : position + 1])
        assert not np.array_equal(after[:, position + 1 :], before[:, position + 1 :])


def test_an_earlier_document_of_the_row_changes_nothing_in_a_later_one(forward: Callable[[np.ndarray], np.ndarray], rows: np.ndarray):
    before = forward(rows)
    changed = rows.copy()
    changed[0, 1:9] = changed[0, 8:0:-1]
    after = forward(changed)
    np.testing.assert_array_equal(after[0, 9:], before[0, 9:])
    assert not np.array_equal(after[0, 1:9], before[0, 1:9])


def test_without_a_document_start_between_them_the_earlier_tokens_do_matter(forward: Callable[[np.ndarray], np.ndarray], rows: np.ndarray):
    joined = rows.copy()
    joined[0, 9] = 5
    changed = joined.copy()
    changed[0, 1:9] = changed[0, 8:0:-1]
    assert np.abs(forward(changed)[0, 9:20] - forward(joined)[0, 9:20]).max() > 1e-3


def test_a_packed_document_has_the_logits_that_it_has_alone(forward: Callable[[np.ndarray], np.ndarray], rows: np.ndarray):
    """Positions count on through the row and are not reset: only their differences enter the attention, so this holds to rounding."""
    packed = forward(rows)
    alone = np.full_like(rows, 3)
    alone[0, :11] = rows[0, 9:20]
    found = forward(alone)[0, :11]
    np.testing.assert_allclose(found, packed[0, 9:20], rtol=0, atol=2e-5 * np.abs(found).max())


def test_bfloat16_computes_coarsely_but_gives_float32(model: ModelConfig, params: Params, rows: np.ndarray):
    config = ModelConfig.model_validate({**model.model_dump(), "compute_dtype": "bfloat16"})
    exact = np.asarray(compiled_logits(params, rows, config=model))
    coarse = compiled_logits(params, rows, config=config)
    assert coarse.dtype == np.float32
    assert 1e-4 < np.abs(np.asarray(coarse) - exact).mean() / exact.std() < 0.05
