"""Names of products, found in the equations of any function of (x, weights)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from phasewise.trainer.model.remat import name_products

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


def test_values_and_gradients_are_the_same_bit_for_bit() -> None:
    for function in (block, name_products(block)):
        assert function(X, WEIGHTS).shape == (5, 4)
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


def test_a_weight_that_was_changed_is_not_the_weight_any_more() -> None:
    """What is computed of a weight, such as its square, may be a product's operand: nobody would look for it under the weight's name."""
    assert names_in(name_products(lambda x, weights: x @ (weights["inner"]["b"].T ** 2))) == []


def test_names_of_the_block_itself_stay() -> None:
    own = name_products(lambda x, weights: checkpoint_name(x @ weights["inner"]["b"].T, "mine"))
    assert names_in(own) == ["b", "mine"]
