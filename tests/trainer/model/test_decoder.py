from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import Execution, Llama3RopeScaling, ModelConfig, Rope
from phasewise.trainer.model.decoder import run_layers
from phasewise.trainer.model.params import Params, init_params
from tests.trainer.model.families import FAMILIES, logits

compiled_logits = jax.jit(logits, static_argnames=("config", "execution"))
of_llama = pytest.mark.parametrize("config", ["llama"], indirect=True)


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest, model: ModelConfig) -> ModelConfig:
    return model.but(initializer_std=0.25, **FAMILIES[request.param])


@pytest.fixture
def params(config: ModelConfig) -> Params:
    return init_params(3, config)


@pytest.mark.parametrize("float32_attention", [False, True])
def test_types_are_as_declared(config: ModelConfig, params: Params, rows: np.ndarray, float32_attention: bool):
    typed = config.but(compute_dtype="bfloat16", float32_attention=float32_attention)
    with jax.numpy_dtype_promotion("strict"):
        hidden = jax.eval_shape(partial(run_layers, config=typed), params, rows)[0]
        found, gradients = jax.eval_shape(
            jax.value_and_grad(lambda params: jnp.sum(logits(params, jnp.asarray(rows), typed, execution=Execution(remat="full")))), params
        )
    assert (hidden.dtype, found.dtype) == (jnp.bfloat16, jnp.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}


@of_llama
def test_attention_in_float32_is_nearer_to_the_exact_one(config: ModelConfig, params: Params, rows: np.ndarray):
    exact = np.asarray(compiled_logits(params, rows, config=config))
    coarse, finer = (
        np.asarray(compiled_logits(params, rows, config=config.but(compute_dtype="bfloat16", float32_attention=upcast)))
        for upcast in (False, True)
    )
    assert not np.array_equal(coarse, finer)
    products = jax.make_jaxpr(partial(logits, config=config.but(compute_dtype="bfloat16", float32_attention=True)))(params, rows)
    assert "preferred_element_type=float32" in str(products)
    assert np.abs(finer - exact).mean() < 1.05 * np.abs(coarse - exact).mean()


@of_llama
def test_nothing_is_widened_without_a_word(config: ModelConfig, params: Params, rows: np.ndarray):
    wrong = {**params, "final_norm": params["final_norm"].astype(jnp.bfloat16)}
    with pytest.raises(ValueError, match="no available implicit dtype promotion path"):
        run_layers(wrong, jnp.asarray(rows), config)


STRETCHED = Rope(
    theta=100.0, scaling=Llama3RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=64)
)
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3 rope, one query head a kv head": {"rope": STRETCHED, "num_kv_heads": 4},
    "qwen, one kv head": {"qk_norm": True, "num_kv_heads": 1, "head_dim": 16},
    "tied head, sliding window": {"tied_head": True, "sliding_window": 5},
    "everything": {"qk_norm": True, "tied_head": True, "sliding_window": 3, "rope": STRETCHED, "head_dim": 6},
}


def large_params(config: ModelConfig) -> Params:
    """Weights large enough that every part matters, and norm gains that are not ones."""
    drawn = init_params(3, config.but(initializer_std=0.25))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32) if "norm" in str(path) else leaf, drawn
    )


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, 32))


@pytest.fixture
def segment_ids() -> np.ndarray:
    """Three packed rows: a document behind two others, a short last one, one document throughout. Numbers need not be in order."""
    ids = np.full((3, 32), 7)
    ids[0, 9:20], ids[0, 20:] = 8, 2
    ids[1, 30:] = 1
    return ids


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


def reference_head(weights: dict[str, np.ndarray], name: str, x: np.ndarray, head: int, config: ModelConfig) -> list[np.ndarray]:
    """A head's queries or keys, normalised where the model does so, and turned."""
    frequencies = reference_frequencies(config.rope, config.head_dim)
    heads = [v @ weights[name][:, head] for v in x]
    if config.qk_norm:
        heads = [reference_norm(v, weights[f"{name}_norm"], config.rms_norm_epsilon) for v in heads]
    return [reference_turn(v, position, frequencies) for position, v in enumerate(heads)]


def reference_attention(weights: dict[str, np.ndarray], x: np.ndarray, documents: np.ndarray, config: ModelConfig) -> np.ndarray:
    out = np.zeros_like(x)
    for head in range(config.num_query_heads):
        group = head // (config.num_query_heads // config.num_kv_heads)
        queries, keys = reference_head(weights, "query", x, head, config), reference_head(weights, "key", x, group, config)
        values = [v @ weights["value"][:, group] for v in x]
        for t, query in enumerate(queries):
            first = 0 if config.sliding_window is None else max(0, t - config.sliding_window + 1)
            visible = [s for s in range(first, t + 1) if documents[s] == documents[t]]
            scores = np.array([np.dot(query, keys[s]) for s in visible]) / np.sqrt(config.head_dim)
            attention = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            mixed = sum(weight * values[s] for weight, s in zip(attention, visible, strict=True))
            out[t] += mixed @ weights["output"][head]
    return out


def reference_logits(params: Params, row: np.ndarray, documents: np.ndarray, config: ModelConfig) -> np.ndarray:
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = params["embedding"][row]
    for layer in range(config.num_layers):
        weights = {name: stacked[layer] for name, stacked in params["blocks"].items()}
        normed = np.stack([reference_norm(v, weights["attention_norm"], config.rms_norm_epsilon) for v in x])
        x = x + reference_attention(weights, normed, documents, config)
        for t in range(len(x)):
            v = reference_norm(x[t], weights["mlp_norm"], config.rms_norm_epsilon)
            gate = v @ weights["gate"]
            x[t] += (gate / (1 + np.exp(-gate)) * (v @ weights["up"])) @ weights["down"]
    head = params["embedding"].T if config.tied_head else params["head"]
    return np.stack([reference_norm(v, params["final_norm"], config.rms_norm_epsilon) @ head for v in x])


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_slow_reference(model: ModelConfig, rows: np.ndarray, segment_ids: np.ndarray, variant: str):
    config = model.but(**VARIANTS[variant])
    params = large_params(config)
    found = compiled_logits(params, rows, config=config, segment_ids=segment_ids)
    expected = np.stack([reference_logits(params, row, ids, config) for row, ids in zip(rows, segment_ids, strict=True)])
    assert found.dtype == np.float32
    assert expected.std() > 0.5  # else the tolerance would say little
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
