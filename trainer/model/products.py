"""The products of a block, named after their weights: what a policy of rematerialisation keeps or offloads by name.

The names are not written in the block. Its equations are walked once, when it is traced: a product with a weight, however the weight was
reshaped or cast before, is called as the weight is. So every weight that a block has can be named, and a new one needs nothing here.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

PRODUCTS = ("dot_general", "ragged_dot_general")
PASSED_ON = ("convert_element_type", "reshape", "transpose", "squeeze", "broadcast_in_dim", "sharding_constraint", "copy")
"""What is left of a weight after these is still the weight."""
INLINED = ("jit", "closed_call")
"""Calls whose equations are walked as if they were the block's own. Others, such as kernels, are taken as they are."""
Function = Callable[..., Any]


def name_products(block: Function) -> Function:
    """The same function of (x, weights), each of its products with a weight under the weight's name: the last key of its path."""

    def named(x: Any, weights: Any) -> Any:
        closed, shapes = jax.make_jaxpr(block, return_shape=True)(x, weights)
        paths = jax.tree_util.tree_leaves_with_path((None, weights))
        origins = [None] * len(jax.tree.leaves(x)) + [str(path[-1].key) for path, _ in paths]
        results = _walk(closed, jax.tree.leaves((x, weights)), origins)
        return jax.tree.unflatten(jax.tree.structure(shapes), [value for value, _ in results])

    return named


def _walk(closed: core.ClosedJaxpr, arguments: list[Any], origins: list[str | None]) -> list[tuple[Any, str | None]]:
    """Evaluate: each result, and the name of the weight that it is (None: it is none)."""
    jaxpr = closed.jaxpr
    known: dict[Any, tuple[Any, str | None]] = {}

    def read(place: Any) -> tuple[Any, str | None]:
        return (place.val, None) if isinstance(place, core.Literal) else known[place]

    known.update(zip(jaxpr.constvars, ((value, None) for value in closed.consts), strict=True))
    known.update(zip(jaxpr.invars, zip(arguments, origins, strict=True), strict=True))
    for equation in jaxpr.eqns:
        values = [read(place) for place in equation.invars]
        known.update(zip(equation.outvars, _evaluate(equation, values), strict=True))
    return [read(place) for place in jaxpr.outvars]


def _evaluate(equation: Any, inputs: list[tuple[Any, str | None]]) -> list[tuple[Any, str | None]]:
    values = [value for value, _ in inputs]
    origins = [origin for _, origin in inputs]
    kind = equation.primitive.name
    if kind in INLINED:
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        return _walk(inner, values, origins)
    with equation.ctx.manager:
        found = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    results = list(found) if equation.primitive.multiple_results else [found]
    name = next((origin for origin in origins if origin is not None), None)
    if name is not None and kind in PRODUCTS:
        return [(checkpoint_name(result, name), None) for result in results]
    return [(result, name if kind in PASSED_ON else None) for result in results]
