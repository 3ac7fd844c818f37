"""Every policy gives the same numbers, and keeps what it says."""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Execution, Kept, ModelConfig, Remat
from phasewise.trainer.model.decoder import logits
from phasewise.trainer.model.params import Params, abstract_params, init_params
from phasewise.trainer.preflight.roofline import kept_names, products

POLICIES: tuple[Literal["none", "dots", "full", "offload"], ...] = get_args(get_args(Remat)[0])
NAMED: tuple[Kept, ...] = (
    Kept(on_device=("query", "gate")),
    Kept(on_device=("key", "value", ATTENTION, "output"), on_host=(BLOCK_INPUT, "up")),
    Kept(on_device=("query", "key", "value", "output", "gate", "up", "down")),
    Kept(on_host=("down",)),
)


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


@pytest.fixture(scope="module")
def params(config: ModelConfig) -> Params:
    return init_params(0, config)


@pytest.fixture(scope="module")
def without(config: ModelConfig, rows: np.ndarray, params: Params) -> tuple[jax.Array, Params]:
    """Loss and gradients where everything is kept."""
    return jax.jit(loss_and_gradients(config, rows, "none"))(params)


@pytest.mark.parametrize("policy", [*POLICIES[1:], *NAMED], ids=str)
def test_gradients_are_the_same(config: ModelConfig, rows: np.ndarray, params: Params, without: tuple[jax.Array, Params], policy: Remat):
    expected_loss, expected = without
    loss, found = jax.jit(loss_and_gradients(config, rows, policy))(params)
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


SHAPES = {"query": "64,32", "key": "64,16", "value": "64,16", "output": "64,32", "gate": "64,48", "up": "64,48", "down": "64,32"}


@pytest.mark.parametrize("name", SHAPES)
def test_a_name_keeps_the_product_with_that_weight_and_nothing_else(config: ModelConfig, rows: np.ndarray, name: str):
    carry = "float32[3,2,32,32]"
    of_name = f"float32[3,{SHAPES[name]}]"
    wanted = [carry] if name == "down" else sorted([of_name, carry])  # nothing needs down's product: it is not kept
    assert sorted(kept(config, rows, Kept(on_device=(name,)))) == wanted
    on_host = [carry] if name == "down" else sorted([of_name.replace("[", "<host>["), carry])
    assert sorted(kept(config, rows, Kept(on_host=(name,)))) == on_host


def test_what_goes_from_block_to_block_can_be_offloaded_beside_what_is_kept(config: ModelConfig, rows: np.ndarray):
    found = kept(config, rows, Kept(on_device=("gate",), on_host=(BLOCK_INPUT,)))
    assert sorted(found) == ["float32<host>[3,2,32,32]", "float32[3,64,48]"]


@pytest.mark.parametrize("name", ["gates", "attention_norm", "query_norm"])
def test_a_name_that_keeps_nothing_is_refused(config: ModelConfig, rows: np.ndarray, name: str):
    with pytest.raises(ConfigError, match=f"found {name}: take of attention, block_input, down, gate"):
        kept(config, rows, Kept(on_device=(name,)))


def test_a_product_is_kept_in_one_place():
    with pytest.raises(ValueError, match="found gate twice"):
        Kept(on_device=("gate",), on_host=("gate",))


def test_a_policy_comes_back_from_a_file():
    execution = Execution(remat=NAMED[1])
    assert Execution.model_validate_json(execution.model_dump_json()) == execution


def products_of(config: ModelConfig, rows: np.ndarray, policy: Remat) -> int:
    """Products without batch dimensions in the backward pass of a block: gradients of inputs and weights, and what is computed again."""
    jaxpr = jax.make_jaxpr(loss_and_gradients(config, rows, policy))(abstract_params(config))
    scans = [equation for equation in all_equations(jaxpr.jaxpr) if equation.primitive.name == "scan"]
    return max(_plain_products(scan) for scan in scans)


def _plain_products(scan: Any) -> int:
    found = [equation for equation in every_equation(scan.params["jaxpr"].jaxpr) if equation.primitive.name == "dot_general"]
    return sum(not equation.params["dimension_numbers"][1][0] for equation in found)


def every_equation(jaxpr: Any) -> Iterator[Any]:
    """Also of what is computed again, whose equations are given without constants."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                yield from every_equation(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize(
    ("policy", "again"),
    [("none", 0), ("dots", 0), ("full", 6), ("offload", 6), (NAMED[0], 4), (NAMED[1], 2), (NAMED[2], 0), (NAMED[3], 6)],
    ids=str,
)
def test_the_products_that_are_computed_again_are_those_that_preflight_counts(
    config: ModelConfig, rows: np.ndarray, policy: Remat, again: int
):
    """Six, not seven: nothing in the backward pass needs the last one."""
    assert products_of(config, rows, policy) == 2 * 7 + again
    assert len(set(products(config)) - kept_names(policy)) == again
