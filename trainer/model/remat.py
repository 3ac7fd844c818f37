"""What the backward pass computes again instead of keeping: time for memory, and no change to what is computed."""

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jaxtyping import Array

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, ModelConfig, Remat
from phasewise.trainer.model.params import EXPERT, Params, param_specs

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


Block = Callable[[Array, Params], tuple[Array, Any]]
"""From the residual stream and one layer's weights to the residual stream after it, and what was measured in the layer."""


def remat(block: Block, policy: Remat) -> Block:
    """The same block with another backward pass, for a scan over layers.

    * none: everything is kept.
    * dots: products with weights are kept; what lies between them, and attention, is computed again.
    * full: only what goes from block to block is kept.
    * offload: as full, and that is kept in the host's memory (Marin's carries on v4-2048).
    * names (`Kept`): these products are kept, on the device or in the host's memory; the others are computed again.
    """
    policies = jax.checkpoint_policies
    match policy:
        case "none":
            return block
        case "dots":
            return _checkpoint(block, policies.dots_with_no_batch_dims_saveable)
        case "full":
            return _checkpoint(block, policies.nothing_saveable)
        case "offload":
            return _keep(block, Kept(on_host=(BLOCK_INPUT,)))
        case Kept():
            return _keep(block, policy)


def _keep(block: Block, kept: Kept) -> Block:
    named = name_products(block) if set(kept.on_device + kept.on_host) - {BLOCK_INPUT, ATTENTION} else block
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(kept.on_device),
        names_which_can_be_offloaded=list(kept.on_host),
        offload_src="device",
        offload_dst="pinned_host",
    )

    def block_with_names(x: Array, weights: Params) -> tuple[Array, Any]:
        return named(checkpoint_name(x, BLOCK_INPUT) if BLOCK_INPUT in kept.on_host else x, weights)

    return _checkpoint(block_with_names, policy)


def check_names(kept: Kept, config: ModelConfig) -> None:
    """Refuse a name that no product of any layer has: it would keep nothing, without a word. Products of experts are in loops of their own.

    Raises:
        ConfigError: see above.
    """
    specs = jax.tree_util.tree_leaves_with_path(param_specs(config))
    products = (str(path[-1].key) for path, spec in specs if spec.layers and spec.inputs is not None and EXPERT not in spec.axes)
    there = {BLOCK_INPUT, ATTENTION, *products}
    if unknown := sorted({*kept.on_device, *kept.on_host} - there):
        raise ConfigError(
            f"execution.remat must name what a block computes, found {', '.join(unknown)}: take of {', '.join(sorted(there))}."
        )


def _checkpoint(block: Block, policy: Callable[..., Any]) -> Block:
    return jax.checkpoint(block, policy=policy, prevent_cse=False)
