"""Rematerialisation: recomputing activations in the backward pass instead of keeping them. It does not change the results."""

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
"""After these operations a weight is still the same weight."""
INLINED = ("jit", "closed_call")  # calls whose equations count as the block's equations. Other calls, such as kernels, are not opened
Named = tuple[Any, str | None]  # a value, and the name of the weight that it is
Block = Callable[[Array, Params], tuple[Array, Any]]
"""From the residual stream and one layer's weights to the residual stream after it, and the layer's measurements."""


def remat(block: Block, policy: Remat) -> Block:
    """Return the block with another backward pass, for a scan over layers.

    * none: keep everything.
    * dots: keep products with weights. Recompute attention and all operations between.
    * full: keep only the blocks' inputs.
    * offload: as full, with the blocks' inputs in the host's memory (Marin's carries on v4-2048).
    * names (`Kept`): keep these products on the device or in the host's memory, and recompute the others.
    """
    if policy == "none":
        return block
    if policy == "offload":
        policy = Kept(on_host=(BLOCK_INPUT,))
    policies = jax.checkpoint_policies
    if not isinstance(policy, Kept):
        saved = policies.nothing_saveable if policy == "full" else policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(block, policy=saved, prevent_cse=False)

    named = name_products(block) if set(policy.on_device + policy.on_host) - {BLOCK_INPUT, ATTENTION} else block
    saved = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(policy.on_device),
        names_which_can_be_offloaded=list(policy.on_host),
        offload_src="device",
        offload_dst="pinned_host",
    )
    if BLOCK_INPUT in policy.on_host:
        return jax.checkpoint(lambda x, weights: named(checkpoint_name(x, BLOCK_INPUT), weights), policy=saved, prevent_cse=False)
    return jax.checkpoint(named, policy=saved, prevent_cse=False)


def check_names(kept: Kept, config: ModelConfig) -> None:
    """Raise ConfigError for a name that no product of any layer has. Products of experts run in loops of their kernels."""
    specs = jax.tree_util.tree_leaves_with_path(param_specs(config))
    products = (str(path[-1].key) for path, spec in specs if spec.layers and spec.inputs is not None and EXPERT not in spec.axes)
    possible = {BLOCK_INPUT, ATTENTION, *products}
    if unknown := sorted({*kept.on_device, *kept.on_host} - possible):
        raise ConfigError(
            f"execution.remat must name what a block computes, found {', '.join(unknown)}: take of {', '.join(sorted(possible))}."
        )


def name_products(block: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function of (x, weights), with the weight's name (the last key of its path) on each product with a weight."""

    def named(x: Any, weights: Any) -> Any:
        closed, shapes = jax.make_jaxpr(block, return_shape=True)(x, weights)
        paths = jax.tree_util.tree_leaves_with_path((None, weights))
        names = [None] * len(jax.tree.leaves(x)) + [str(path[-1].key) for path, _ in paths]
        results = _run_named(closed, list(zip(jax.tree.leaves((x, weights)), names, strict=True)))
        return jax.tree.unflatten(jax.tree.structure(shapes), [value for value, _ in results])

    return named


def _run_named(closed: core.ClosedJaxpr, arguments: list[Named]) -> list[Named]:
    """Evaluate the operations of a block one by one, with the names of its weights."""
    jaxpr = closed.jaxpr
    known: dict[Any, Named] = dict(zip(jaxpr.invars, arguments, strict=True))
    known.update(zip(jaxpr.constvars, ((value, None) for value in closed.consts), strict=True))
    for equation in jaxpr.eqns:
        primitive, params = equation.primitive, equation.params
        inputs = [(place.val, None) if isinstance(place, core.Literal) else known[place] for place in equation.invars]
        if primitive.name in INLINED:
            outputs = _run_named(params.get("jaxpr") or params.get("call_jaxpr"), inputs)
        else:
            with equation.ctx.manager:
                found = primitive.bind(*(value for value, _ in inputs), **primitive.get_bind_params(params))
            results = list(found) if primitive.multiple_results else [found]
            name = next((name for _, name in inputs if name is not None), None)
            if name is not None and primitive.name in PRODUCTS:
                outputs = [(checkpoint_name(result, name), None) for result in results]
            else:
                outputs = [(result, name if primitive.name in PASSED_ON else None) for result in results]
        known.update(zip(equation.outvars, outputs, strict=True))
    return [(place.val, None) if isinstance(place, core.Literal) else known[place] for place in jaxpr.outvars]
