from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Execution, Kept, ModelConfig, Remat
from phasewise.trainer.model.decoder import name_products
from phasewise.trainer.model.params import Params, abstract_params, init_params
from phasewise.trainer.preflight.roofline import kept_names, products
from tests.trainer.model.families import logits

WEIGHTS = {"a": jnp.ones((4, 2, 3)), "inner": {"b": jnp.full((6, 4), 0.5)}, "gain": jnp.ones(4)}
X = jnp.arange(20.0).reshape(5, 4)


def names_in(function: Any) -> list[str]:
    jaxpr = jax.make_jaxpr(function)(X, WEIGHTS)
    return sorted(equation.params["name"] for equation in jaxpr.eqns if equation.primitive.name == "name")


def block(x: jax.Array, weights: Any) -> jax.Array:
    """`a` is cast and reshaped before the product, `b` is transposed twice within a jitted function."""
    a, b, gain = weights["a"], weights["inner"]["b"], weights["gain"]
    wide = (x * gain) @ a.astype(jnp.bfloat16).reshape(4, 6).astype(jnp.float32)
    return jax.jit(lambda y, w: jnp.tanh(y) @ w.T.T)(wide, b) @ (x.T @ x)


def test_each_product_with_a_weight_has_its_name_and_no_other_product_has_one() -> None:
    assert names_in(block) == []
    assert names_in(name_products(block)) == ["a", "b"]
    assert names_in(name_products(lambda x, weights: x @ (weights["inner"]["b"].T ** 2))) == []  # changed: not the weight any more


def test_values_and_gradients_are_the_same_bit_for_bit() -> None:
    assert name_products(block)(X, WEIGHTS).shape == (5, 4)
    plain, named = (
        jax.jit(jax.value_and_grad(lambda weights, of=of: jnp.sum(of(X, weights) ** 2)))(WEIGHTS) for of in (block, name_products(block))
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, plain, named))


def test_what_has_its_own_backward_pass_keeps_it() -> None:
    @jax.custom_vjp
    def twice(x: jax.Array) -> jax.Array:
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, g: (7 * g,))
    named = name_products(lambda x, weights: twice(x @ weights["inner"]["b"].T))
    gradient = jax.grad(lambda x: jnp.sum(named(x, WEIGHTS)))(jnp.ones((1, 4)))
    np.testing.assert_allclose(gradient, jnp.full((1, 4), 7 * 6 * 0.5))


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


def test_gradients_are_the_same(config: ModelConfig, rows: np.ndarray):
    params = init_params(0, config)
    expected_loss, expected = jax.jit(loss_and_gradients(config, rows, "none"))(params)
    for policy in (*POLICIES[1:], NAMED[1]):
        loss, found = jax.jit(loss_and_gradients(config, rows, policy))(params)
        assert loss == expected_loss, policy
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert np.abs(other).max() > 0
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max(), err_msg=str(policy))


def kept(config: ModelConfig, rows: np.ndarray, policy: Remat) -> list[str]:
    """Type, place and shape of what the forward pass keeps for each block, as JAX writes them."""
    return [str(variable.aval) for variable in scans_of(config, rows, policy)[0].outvars[1:]]


def scans_of(config: ModelConfig, rows: np.ndarray, policy: Remat) -> list[Any]:
    jaxpr = jax.make_jaxpr(loss_and_gradients(config, rows, policy))(abstract_params(config))
    return [equation for equation in every_equation(jaxpr.jaxpr) if equation.primitive.name == "scan"]


def test_dots_keeps_that_and_the_seven_products_with_weights_save_the_last(config: ModelConfig, rows: np.ndarray):
    products = [f"float32[3,{shape}]" for name, shape in SHAPES.items() if name != "down"]
    assert sorted(kept(config, rows, "dots")) == sorted([*products, "float32[3,2,32,32]"])


SHAPES = {"query": "64,32", "key": "64,16", "value": "64,16", "output": "64,32", "gate": "64,48", "up": "64,48", "down": "64,32"}


@pytest.mark.parametrize("name", SHAPES)
def test_a_name_keeps_the_product_with_that_weight_and_nothing_else(config: ModelConfig, rows: np.ndarray, name: str):
    for where, policy in (("", Kept(on_device=(name,))), ("<host>", Kept(on_host=(name,)))):
        of_name = [] if name == "down" else [f"float32{where}[3,{SHAPES[name]}]"]  # nothing needs down's product: it is not kept
        assert sorted(kept(config, rows, policy)) == sorted([*of_name, "float32[3,2,32,32]"])


@pytest.mark.parametrize("name", ["gates", "attention_norm", "query_norm"])
def test_a_name_that_keeps_nothing_is_refused(config: ModelConfig, rows: np.ndarray, name: str):
    with pytest.raises(ConfigError, match=f"found {name}: take of attention, block_input, down, gate"):
        kept(config, rows, Kept(on_device=(name,)))


def test_a_product_is_kept_in_one_place():
    with pytest.raises(ValueError, match="found gate twice"):
        Kept(on_device=("gate",), on_host=("gate",))


def products_of(config: ModelConfig, rows: np.ndarray, policy: Remat) -> int:
    """Products without batch dimensions in the backward pass of a block: gradients of inputs and weights, and what is computed again."""
    scans = [equation.params["jaxpr"].jaxpr for equation in scans_of(config, rows, policy)]
    products = [[one for one in every_equation(scan) if one.primitive.name == "dot_general"] for scan in scans]
    return max(sum(not one.params["dimension_numbers"][1][0] for one in of_scan) for of_scan in products)


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
    assert products_of(config, rows, policy) == 2 * 7 + again
    assert len(set(products(config)) - kept_names(policy)) == again
