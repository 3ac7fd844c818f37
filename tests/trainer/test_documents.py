"""Attention within documents, and over the whole row: training's loss, its gradients, whole updates, and the loss on held-out text."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import AdamW, Execution, ModelConfig
from phasewise.trainer.interventions import Scheduled
from phasewise.trainer.loop import build_mean_loss
from phasewise.trainer.model.params import Params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.state import TrainState
from phasewise.trainer.step import build_objective, build_train_step
from tests.trainer.model.test_decoder import changed, large_params, reference_logits

ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
ROWS = np.random.default_rng(1).integers(0, 256, (2, 32)).astype(np.int32)
DOCUMENTS = np.repeat([[1, 1, 2, 3], [1, 2, 2, 2]], 8, axis=1).astype(np.int32)
ONE = np.ones_like(DOCUMENTS)


def reference_loss(params: Params, documents: np.ndarray, config: ModelConfig) -> float:
    """Mean cross-entropy of the rows in float64, where these numbers say what sees what. The last token of a row predicts nothing."""
    losses: list[float] = []
    for row, ids in zip(ROWS, documents, strict=True):
        z = reference_logits(params, row, ids, config)[:-1]
        losses += list(np.log(np.exp(z).sum(axis=-1)) - z[np.arange(len(z)), row[1:]])
    return float(np.mean(losses))


def loss_and_gradients(config: ModelConfig, params: Params, documents: np.ndarray | None, **execution: Any) -> tuple[float, Params]:
    objective = build_objective(config, Execution(**execution))
    rows = jnp.asarray(ROWS)

    def mean(params: Params) -> jax.Array:
        total, sums = objective(params, rows, None if documents is None else jnp.asarray(documents), 0.0)
        return total / sums.tokens

    loss, gradients = jax.jit(jax.value_and_grad(mean))(params)
    return float(loss), gradients


@pytest.fixture(params=[{}, {"sliding_window": 6, "qk_norm": True}], ids=["llama", "sliding window"])
def both(model: ModelConfig, request: pytest.FixtureRequest) -> tuple[ModelConfig, ModelConfig]:
    """The model with attention within documents, and over the whole row."""
    within = changed(model, **request.param)
    return within, changed(within, attend_within_documents=False)


def test_the_loss_is_that_of_the_reference(both: tuple[ModelConfig, ModelConfig]):
    """Off is the whole row in one; on is document by document, as without a word it always was."""
    within, across = both
    params = large_params(within)
    documents = reference_loss(params, DOCUMENTS, within)
    whole = reference_loss(params, ONE, within)
    assert abs(documents - whole) > 1e-3  # else the test would say nothing
    assert loss_and_gradients(within, params, DOCUMENTS)[0] == pytest.approx(documents, rel=1e-5)
    assert loss_and_gradients(across, params, DOCUMENTS)[0] == pytest.approx(whole, rel=1e-5)
    mean_loss = build_mean_loss(across, Execution())
    assert float(mean_loss(params, ROWS, DOCUMENTS)) == pytest.approx(whole, rel=1e-5)


def test_the_gradients_off_are_those_of_rows_without_documents(both: tuple[ModelConfig, ModelConfig]):
    within, across = both
    params = large_params(within)
    off = loss_and_gradients(across, params, DOCUMENTS)[1]
    plain = loss_and_gradients(within, params, None)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), off, plain)
    on = loss_and_gradients(within, params, DOCUMENTS)[1]
    assert any(not np.allclose(a, b, rtol=1e-3) for a, b in zip(jax.tree.leaves(on), jax.tree.leaves(off), strict=True))


@pytest.mark.parametrize("execution", [{"remat": "full"}, {"loss_chunk_tokens": 16}], ids=["remat", "loss in chunks"])
def test_however_it_is_carried_out(model: ModelConfig, execution: dict[str, Any]):
    across = changed(model, attend_within_documents=False)
    params = large_params(across)
    assert loss_and_gradients(across, params, DOCUMENTS, **execution)[0] == pytest.approx(reference_loss(params, ONE, model), rel=1e-5)


def test_padding_is_predicted_and_seen_by_nothing_either_way(model: ModelConfig):
    across = changed(model, attend_within_documents=False)
    params = large_params(across)
    padded = np.where(np.arange(32) < 20, DOCUMENTS, 0)
    objective = jax.jit(build_objective(across, Execution()))
    sums = [objective(params, rows, padded, 0.0)[1] for rows in (ROWS, np.where(padded == 0, 9, ROWS).astype(np.int32))]
    assert float(sums[0].cross_entropy) == float(sums[1].cross_entropy)
    assert float(sums[0].tokens) == float(sums[1].tokens) == 2 * 19


def test_a_whole_update_obeys(model: ModelConfig):
    def update(config: ModelConfig, documents: np.ndarray | None) -> float:
        params = large_params(config)
        state = TrainState(params, build_optimizer(ADAMW, config).init(params), None)
        scheduled = Scheduled(1e-3, z_loss=0.0, max_grad_norm=1.0, ema_decay=0.0)
        return float(build_train_step(config, ADAMW)(state, ROWS, documents, scheduled)[1].grad_norm)

    across = changed(model, attend_within_documents=False)
    assert update(across, DOCUMENTS) == pytest.approx(update(model, ONE), rel=1e-5)
    assert update(model, DOCUMENTS) != pytest.approx(update(model, ONE), rel=1e-3)
