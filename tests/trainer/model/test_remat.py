"""Every policy gives the same numbers, and keeps what it says."""

from collections.abc import Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.config import Execution, ModelConfig
from trainer.model.decoder import logits
from trainer.model.params import Params, abstract_params, init_params
from trainer.model.remat import Remat

POLICIES: tuple[Remat, ...] = get_args(Remat)


@pytest.fixture(scope="module")
def config(model: ModelConfig) -> ModelConfig:
    return model.but(qk_norm=True, num_layers=3, initializer_std=0.1)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (2, 32))


def loss_and_gradients(config: ModelConfig, rows: np.ndarray, policy: Remat) -> Any:
    def loss(params: Params) -> jax.Array:
        return jnp.mean(jnp.square(logits(params, jnp.asarray(rows), config, execution=Execution(remat=policy))))

    return jax.value_and_grad(loss)


def test_the_policies_are_those_of_the_configuration():
    assert get_args(Execution.model_fields["remat"].annotation) == POLICIES


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_gradients_are_the_same(config: ModelConfig, rows: np.ndarray, policy: Remat):
    params = init_params(0, config)
    (expected_loss, expected), (loss, found) = (jax.jit(loss_and_gradients(config, rows, one))(params) for one in ("none", policy))
    assert loss == expected_loss
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(other).max() > 0
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


def kept(config: ModelConfig, rows: np.ndarray, policy: Remat) -> list[str]:
    """Type, place and shape of what the forward pass keeps for each block, as JAX writes them."""
    jaxpr = jax.make_jaxpr(loss_and_gradients(config, rows, policy))(abstract_params(config))
    forward = next(equation for equation in all_equations(jaxpr.jaxpr) if equation.primitive.name == "scan")
    return [str(variable.aval) for variable in forward.outvars[1:]]


def all_equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr"):
                yield from all_equations(inner.jaxpr)


def test_full_keeps_what_goes_from_block_to_block(config: ModelConfig, rows: np.ndarray):
    assert kept(config, rows, "full") == ["float32[3,2,32,32]"]


def test_offload_keeps_the_same_in_the_host_s_memory(config: ModelConfig, rows: np.ndarray):
    assert kept(config, rows, "offload") == ["float32<host>[3,2,32,32]"]


def test_dots_keeps_that_and_the_seven_products_with_weights_save_the_last(config: ModelConfig, rows: np.ndarray):
    """Down's product ends the block: it is the next one's input, less what is added to it."""
    query, other, output, wide = "float32[3,64,32]", "float32[3,64,16]", "float32[3,64,32]", "float32[3,64,48]"
    expected = [query, other, other, output, wide, wide, "float32[3,2,32,32]"]
    assert sorted(kept(config, rows, "dots")) == sorted(expected)


def test_none_keeps_more(config: ModelConfig, rows: np.ndarray):
    assert len(kept(config, rows, "none")) > 2 * len(kept(config, rows, "dots"))
