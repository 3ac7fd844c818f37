"""What holds of the forward and backward pass whatever the weights are."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import Execution, ModelConfig
from phasewise.trainer.model.decoder import head_weight, hidden_states, logits
from phasewise.trainer.model.params import Params, init_params
from tests.trainer.model.families import FAMILIES

of_dense_models = pytest.mark.parametrize("config", ["llama", "qwen"], indirect=True)
"""For what is of one window, or of types so small that a router chooses otherwise for them."""
compiled_logits = jax.jit(logits, static_argnames=("config", "execution"))


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest, model: ModelConfig) -> ModelConfig:
    return changed(model, initializer_std=0.25, **FAMILIES[request.param])


@pytest.fixture
def params(config: ModelConfig) -> Params:
    return init_params(3, config)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, 32))


@pytest.fixture
def segment_ids() -> np.ndarray:
    """Documents of 9, 11 and 12 tokens, of 30 and 2, of 32."""
    ids = np.ones((3, 32), np.int32)
    ids[0, 9:] += 1
    ids[0, 20:] += 1
    ids[1, 30:] += 1
    return ids


def changed(model: ModelConfig, **fields: Any) -> ModelConfig:
    return model.but(**fields)


def other_tokens(rows: np.ndarray) -> np.ndarray:
    return (rows * 7 + 3) % 256


def test_a_position_sees_nothing_that_comes_after_it(config: ModelConfig, params: Params, rows: np.ndarray):
    before = np.asarray(compiled_logits(params, rows, config=config))
    for position in (0, 7, 19, 30):
        later = rows.copy()
        later[:, position + 1 :] = other_tokens(later[:, position + 1 :])
        after = np.asarray(compiled_logits(params, later, config=config))
        np.testing.assert_array_equal(after[:, : position + 1], before[:, : position + 1])
        assert (after[:, position + 1 :] != before[:, position + 1 :]).any(axis=-1).all()


def test_another_document_of_the_row_changes_nothing(config: ModelConfig, params: Params, rows: np.ndarray, segment_ids: np.ndarray):
    before = np.asarray(compiled_logits(params, rows, config=config, segment_ids=segment_ids))
    others = rows.copy()
    others[0, :9] = other_tokens(rows[0, :9])
    others[0, 20:] = other_tokens(rows[0, 20:])
    after = np.asarray(compiled_logits(params, others, config=config, segment_ids=segment_ids))
    np.testing.assert_array_equal(after[0, 9:20], before[0, 9:20])
    together = np.asarray(compiled_logits(params, rows, config=config)), np.asarray(compiled_logits(params, others, config=config))
    assert np.abs(together[0][0, 9:20] - together[1][0, 9:20]).max() > 1e-3  # in one document they would matter


def test_packed_documents_have_the_logits_that_they_have_alone(
    config: ModelConfig, params: Params, rows: np.ndarray, segment_ids: np.ndarray
):
    """Positions count on through the row and are not reset: only their differences enter the attention, so this holds to rounding."""
    packed = np.asarray(compiled_logits(params, rows, config=config, segment_ids=segment_ids))
    for row, start, stop in ((0, 0, 9), (0, 9, 20), (0, 20, 32), (1, 0, 30), (1, 30, 32)):
        alone = np.zeros((1, 32), rows.dtype)
        alone[0, : stop - start] = rows[row, start:stop]
        found = np.asarray(compiled_logits(params, alone, config=config))[0, : stop - start]
        np.testing.assert_allclose(found, packed[row, start:stop], rtol=0, atol=3e-5 * np.abs(found).max())


def test_the_gradients_of_a_packed_row_are_the_sum_of_those_of_its_documents(config: ModelConfig, params: Params, rows: np.ndarray):
    ids = np.where(np.arange(32) < 12, 1, 2)[None]
    weights = np.random.default_rng(2).normal(size=(1, 32, 256)).astype(np.float32)

    @jax.jit
    def gradients(tokens: jax.Array, segment_ids: jax.Array, weights: jax.Array) -> Params:
        return jax.grad(lambda params: jnp.sum(weights * logits(params, tokens, config, segment_ids=segment_ids)))(params)

    def alone(start: int, stop: int) -> Params:
        tokens = np.zeros((1, 32), rows.dtype)
        of_document = np.zeros_like(weights)
        tokens[0, : stop - start], of_document[0, : stop - start] = rows[0, start:stop], weights[0, start:stop]
        return gradients(tokens, np.ones_like(tokens), of_document)

    expected = jax.tree.map(jnp.add, alone(0, 12), alone(12, 32))
    for found, wanted in zip(jax.tree.leaves(gradients(rows[:1], ids, weights)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@of_dense_models
def test_a_sliding_window_sees_so_many_positions_and_no_more(config: ModelConfig, params: Params, rows: np.ndarray):
    """A layer each: of two layers, position t depends on the 2 · (window - 1) before it."""
    narrow = changed(config, sliding_window=4)
    before = np.asarray(compiled_logits(params, rows, config=narrow))
    first = rows.copy()
    first[:, 10] = other_tokens(first[:, 10])
    differs = (np.asarray(compiled_logits(params, first, config=narrow)) != before).any(axis=-1)
    assert differs[:, 10:17].all()
    assert not differs[:, 17:].any()
    assert not differs[:, :10].any()


@of_dense_models
def test_a_window_as_long_as_the_row_changes_nothing(config: ModelConfig, params: Params, rows: np.ndarray):
    wide = compiled_logits(params, rows, config=changed(config, sliding_window=32))
    np.testing.assert_array_equal(wide, compiled_logits(params, rows, config=config))


def test_a_tied_head_s_gradients_reach_the_embedding_both_ways(model: ModelConfig, rows: np.ndarray):
    tied = changed(model, tied_head=True)
    untied = model
    params = init_params(0, tied)
    apart = {**params, "head": params["embedding"].T}
    assert "head" not in params

    def loss(params: Params, config: ModelConfig) -> jax.Array:
        return jnp.mean(jnp.square(logits(params, jnp.asarray(rows), config)))

    found = jax.grad(partial(loss, config=tied))(params)
    of_parts = jax.grad(partial(loss, config=untied))(apart)
    assert np.abs(of_parts["head"]).max() > 0.01 * np.abs(of_parts["embedding"]).max() > 0
    expected = of_parts["embedding"] + of_parts["head"].T
    np.testing.assert_allclose(found["embedding"], expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(head_weight(params, tied), params["embedding"].T)


def test_gains_of_queries_and_keys_scale_the_scores(model: ModelConfig, rows: np.ndarray):
    """Lengths of queries and keys do not matter any more; their gains do."""
    config = changed(model, qk_norm=True, rms_norm_epsilon=1e-12)
    params = init_params(3, config)

    def with_block(**weights: Any) -> np.ndarray:
        return np.asarray(compiled_logits({**params, "blocks": {**params["blocks"], **weights}}, rows, config=config))

    before = with_block()
    blocks = params["blocks"]
    np.testing.assert_allclose(with_block(query=8 * blocks["query"], key=blocks["key"] / 4), before, rtol=0, atol=1e-6)
    halved_and_doubled = with_block(query_norm=2 * blocks["query_norm"], key_norm=blocks["key_norm"] / 2)
    np.testing.assert_allclose(halved_and_doubled, before, rtol=0, atol=1e-6)
    assert np.abs(with_block(query_norm=4 * blocks["query_norm"]) - before).max() > 1e-4


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("float32_attention", [False, True])
def test_types_are_as_declared(config: ModelConfig, params: Params, rows: np.ndarray, compute_dtype: str, float32_attention: bool):
    """The decoder is traced under strict promotion, in itself and here around it: what meets was cast."""
    typed = changed(config, compute_dtype=compute_dtype, float32_attention=float32_attention)
    with jax.numpy_dtype_promotion("strict"):
        hidden = jax.eval_shape(partial(hidden_states, config=typed), params, rows)
        found, gradients = jax.eval_shape(
            jax.value_and_grad(lambda params: jnp.sum(logits(params, jnp.asarray(rows), typed, execution=Execution(remat="full")))), params
        )
    assert hidden.dtype == compute_dtype
    assert found.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}


@of_dense_models
def test_attention_in_float32_is_nearer_to_the_exact_one(config: ModelConfig, params: Params, rows: np.ndarray):
    exact = np.asarray(compiled_logits(params, rows, config=config))
    coarse, finer = (
        np.asarray(compiled_logits(params, rows, config=changed(config, compute_dtype="bfloat16", float32_attention=upcast)))
        for upcast in (False, True)
    )
    assert not np.array_equal(coarse, finer)
    products = jax.make_jaxpr(partial(logits, config=changed(config, compute_dtype="bfloat16", float32_attention=True)))(params, rows)
    assert "preferred_element_type=float32" in str(products)
    assert np.abs(finer - exact).mean() < 1.05 * np.abs(coarse - exact).mean()


def test_nothing_is_widened_without_a_word(config: ModelConfig, params: Params, rows: np.ndarray):
    wrong = {**params, "final_norm": params["final_norm"].astype(jnp.bfloat16)}
    with pytest.raises(ValueError, match="no available implicit dtype promotion path"):
        hidden_states(wrong, jnp.asarray(rows), config)
