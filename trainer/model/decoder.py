"""The whole forward pass of the decoder: Llama 3, Qwen3 (norms on queries and keys) and AFMoE.

Shape letters: b batch, t query position, s key position, d d_model, h query head, k kv head, e head_dim, f d_ff, v vocab.
Weights are float32 and are cast when they are used. Products run in `compute_dtype`. Norms, RoPE, softmax and logits are float32.
Rematerialisation recomputes activations in the backward pass instead of keeping them, and does not change the results.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Execution, Kept, ModelConfig, Remat, Rope
from phasewise.trainer.kernels.attention import attend
from phasewise.trainer.kernels.xla import Ids, Query
from phasewise.trainer.model.params import EXPERT, Cycle, LayerKind, Params, Stack, cycles, param_specs
from phasewise.trainer.model.router import Routing, mix_experts
from phasewise.trainer.sharding import constrain, join_rows

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


Tokens = Int[Array, "b t"]
Hidden = Float[Array, "b t d"]
Mask = Bool[Array, "b t"] | None  # False for padding, which does not count for the balance of experts. None counts all tokens
PLAIN = Execution()
MAX_UNROLLED_LAYERS = 4
"""A model with at most so many layers is compiled layer by layer. That compiles as fast, and stacks nothing for the backward pass."""
strictly_typed = jax.numpy_dtype_promotion("strict")  # implicit type promotion is an error
Rotation = tuple[Float[Array, "*b t e2"], Float[Array, "*b t e2"]]
"""Cosines and sines of every position and plane, float32, optionally for each row of a batch."""
Attend = Callable[[LayerKind, Params, Array, Array, Array], tuple[Array, Any]]
"""From a layer's kind and weights, and its queries, keys and values (after norms and RoPE), to the attention output and kept arrays."""


class Measured(NamedTuple):
    """Results of a layer, or of several layers with a first axis."""

    routing: Routing | None  # sums of its router. None for a layer without experts
    kept: Any  # arrays of its attention for later tokens, or None


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Return radians per position for each of the `head_dim / 2` planes: theta^(-2i / head_dim) (Su et al., 2021, §3.2.2).

    With Llama 3.1's scaling, slow planes turn `factor` times slower, fast planes are unchanged, and planes between are interpolated.
    """
    plain = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.scaling is None:
        return plain
    turns = rope.scaling.original_max_positions * plain / (2 * math.pi)
    low = rope.scaling.low_frequency_factor
    high = rope.scaling.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (keep + (1 - keep) / rope.scaling.factor)


def rotations(rope: Rope, length: int, head_dim: int, positions: Int[Array, "b t"] | None = None) -> Rotation:
    """Return the table for positions 0 to `length` - 1, computed in float64, or for other positions in each row, all below `length`."""
    angles = np.outer(np.arange(length), frequencies(rope, head_dim))
    cosine, sine = jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)
    return (cosine, sine) if positions is None else (cosine[positions], sine[positions])


def rotate(x: Query, rotation: Rotation) -> Query:
    """Turn each pair (first half, second half) of a head's dimensions, in float32."""
    cosine, sine = (table[None, :, None, :] if table.ndim == 2 else table[:, :, None, :] for table in rotation)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


@strictly_typed
def run_layers(
    params: Params, tokens: Tokens, config: ModelConfig, *, segment_ids: Ids = None, counted: Mask = None, execution: Execution = PLAIN
) -> tuple[Hidden, Routing | None]:
    """Return the input of the head, and the routers' sums of each layer with experts in layer order, or None without experts.

    The input of the head is the residual stream after the last block and the final norm, in `compute_dtype`.

    Args:
        segment_ids: tokens of a row with equal numbers see one another. None is one document per row. The trainer gives None if the model
            does not attend within documents, and code that scores texts always gives them. Positions count through the row: RoPE sees only
            differences of positions, so that a document has the same values as in a separate row.
        execution: kernels and `remat`. They change time and memory, not the results.
    """
    x, measured = run_stacks(
        params,
        tokens,
        config,
        rotation=rotations(config.rope, tokens.shape[1], config.head_dim),
        attend=lambda kind, _, q, k, v: (attend(q, k, v, segment_ids, kernel=execution.attention, sliding_window=kind.window), None),
        counted=counted,
        execution=execution,
    )
    routings = {layers: of_stack.routing for layers, of_stack in measured.items() if of_stack.routing is not None}
    if not routings:
        return x, None
    numbers = [layer for layers in routings for layer in layers]
    order = jnp.asarray(sorted(range(len(numbers)), key=numbers.__getitem__), jnp.int32)
    return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *routings.values())


def run_stacks(
    params: Params,
    tokens: Tokens,
    config: ModelConfig,
    *,
    rotation: Rotation,
    attend: Attend,
    counted: Mask = None,
    execution: Execution = PLAIN,
) -> tuple[Hidden, dict[tuple[int, ...], Measured]]:
    """Return the decoder's output before the head, for any attention, and the results of each stack of layers by the layers' numbers.

    `attend`: attention. Its weights are all weights of the layer, to which a caller may add more.
    """
    if isinstance(execution.remat, Kept):
        check_names(execution.remat, config)

    def layer(kind: LayerKind, x: Hidden, weights: Params) -> tuple[Hidden, Measured]:
        added, kept = attention(x, weights, kind, config, rotation=rotation, attend=attend)
        x = x + added
        added, routing = mlp(x, weights, kind, config, counted=counted, kernel=execution.expert_kernel)
        return x + added, Measured(routing, kept)

    looked_up = params["embedding"][tokens]
    if config.embedding_scale != 1.0:
        looked_up = config.embedding_scale * looked_up
    looked_up = constrain(looked_up.astype(config.compute_dtype), "looked_up_batch", None, "d_model")
    looked_up = constrain(looked_up, "looked_up_batch", "position", "looked_up_d_model")
    x = constrain(looked_up, "batch", "position", None)
    measured: dict[tuple[int, ...], Measured] = {}
    for cycle in cycles(config):
        layers = {stack: remat(partial(layer, stack.kind), execution.remat) for stack, _ in cycle.runs}
        x, of_cycle = run_cycle(x, cycle, params, layers, unroll=config.num_layers <= MAX_UNROLLED_LAYERS)
        measured |= of_cycle
    return rms_norm(x, params["final_norm"], config), measured


def run_cycle(
    x: Hidden, cycle: Cycle, params: Params, layers: dict[Stack, Block], *, unroll: bool
) -> tuple[Hidden, dict[tuple[int, ...], Measured]]:
    """Run the layers of a cycle: a loop over a row of equal layers, and a loop over periods around several rows."""

    def run_period(x: Hidden, weights: tuple[Params, ...]) -> tuple[Hidden, tuple[Measured, ...]]:
        measured: list[Measured] = []
        for layer, of_stack in zip(layers.values(), weights, strict=True):
            x, of_row = jax.lax.scan(layer, x, of_stack, unroll=unroll)
            measured.append(of_row)
        return x, tuple(measured)

    if len(layers) == 1:
        [(stack, layer)] = layers.items()
        x, measured = jax.lax.scan(layer, x, params[stack.name], unroll=unroll)
        return x, {stack.layers: measured}
    stacked = tuple(params[stack.name] for stack in layers)
    by_period = jax.tree.map(lambda leaf: leaf.reshape(cycle.repeats, -1, *leaf.shape[1:]), stacked)
    x, of_periods = jax.lax.scan(run_period, x, by_period)
    of_stacks = {stack.layers: measured for stack, measured in zip(layers, of_periods, strict=True)}
    return x, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), of_stacks)


@strictly_typed
def project(params: Params, x: Hidden, config: ModelConfig) -> Float[Array, "b t v"]:
    """Return logits: products in `compute_dtype`, sums and result in float32."""
    return jnp.einsum("btd,dv->btv", x, head_weight(params, config).astype(x.dtype), preferred_element_type=jnp.float32)


def head_weight(params: Params, config: ModelConfig) -> Float[Array, "d v"]:
    """Return the projection onto the vocabulary: a separate weight, or the transposed embedding (Press and Wolf, 2017)."""
    return params["embedding"].T if config.tied_head else params["head"]


def attention(
    x: Hidden, weights: Params, kind: LayerKind, config: ModelConfig, *, rotation: Rotation, attend: Attend
) -> tuple[Hidden, Any]:
    """Return attention's addition to the residual stream, with its norms, and the arrays that `attend` keeps."""
    x = rms_norm(x, weights["attention_norm"], config)
    query, key, value = (multiply(x, weights[name]) for name in ("query", "key", "value"))
    if kind.has_qk_norm:
        query = rms_norm(query, weights["query_norm"], config)
        key = rms_norm(key, weights["key_norm"], config)
    if kind.has_rope:
        query = rotate(query, rotation)
        key = rotate(key, rotation)
    if config.float32_attention:
        query, key, value = (part.astype(jnp.float32) for part in (query, key, value))
    mixed, kept = attend(kind, weights, query, key, value)
    mixed = mixed.astype(x.dtype)
    if kind.has_attention_gate:
        mixed = mixed * jax.nn.sigmoid(multiply(x, weights["attention_gate"]))
    added = multiply(mixed.reshape(*x.shape[:2], -1), weights["output"].reshape(-1, config.d_model))
    return rms_norm(added, weights["attention_post_norm"], config) if kind.has_post_norms else added, kept


def mlp(x: Hidden, weights: Params, kind: LayerKind, config: ModelConfig, *, counted: Mask, kernel: str) -> tuple[Hidden, Routing | None]:
    """Return the MLP's or experts' addition to the residual stream, with its norms, and the router's sums."""
    x = rms_norm(x, weights["mlp_norm"], config)
    routing = None
    if kind.has_experts:
        assert config.experts is not None
        added, routing = mix_experts(x, weights, config.experts, counted=counted, kernel=kernel)
        if config.experts.num_shared:
            added = added + swiglu(x, weights["shared_gate"], weights["shared_up"], weights["shared_down"])
    else:
        added = swiglu(x, weights["gate"], weights["up"], weights["down"])
    return rms_norm(added, weights["mlp_post_norm"], config) if kind.has_post_norms else added, routing


def swiglu(x: Float[Array, "*b d"], gate: Float[Array, "d f"], up: Float[Array, "d f"], down: Float[Array, "f d"]) -> Float[Array, "*b d"]:
    """Return down(silu(gate(x)) · up(x)) (Shazeer, 2020, eq. 6)."""
    return multiply(jax.nn.silu(multiply(x, gate)) * multiply(x, up), down)


def multiply(x: Float[Array, "*b n"], weight: Float[Array, "n *m"]) -> Array:
    """Return the product over the last axis of `x` and the first axis of `weight`, in the type of `x`: [*b *m].

    It is a product of two matrices: with more axes, XLA copies operands of the weight's gradient on a CPU.
    """
    columns = weight.shape[1:]
    product = join_rows(x) @ weight.reshape(-1, math.prod(columns)).astype(x.dtype)
    return product.reshape(*x.shape[:-1], *columns)


def rms_norm(x: Float[Array, "*b n"], gain: Float[Array, " n"], config: ModelConfig) -> Float[Array, "*b n"]:
    """Return x / rms(x) · gain over the last axis, computed in float32, in the type of `x` (Zhang and Sennrich, 2019, eq. 4)."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + config.rms_norm_epsilon)
    return (x32 * scale * gain).astype(x.dtype)
