"""The decoder of Llama 3, with norms on queries and keys of Qwen3, and with all its parts of AFMoE: the whole forward pass.

Shape letters: b batch, t query position, s key position, d d_model, h query head, k kv head, e head_dim, f d_ff, v vocab.
Weights are float32 and are cast where they are used: products run in `compute_dtype`; norms, RoPE, softmax and logits are float32.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Execution, Kept, Llama3RopeScaling, ModelConfig, Rope
from phasewise.trainer.kernels.attention import attend
from phasewise.trainer.model.params import Cycle, LayerKind, Params, Stack, cycles
from phasewise.trainer.model.remat import Block, check_names, remat
from phasewise.trainer.model.router import Routing, in_layer_order, mix_experts
from phasewise.trainer.sharding import constrain, constrain_activation, join_rows

Rotation = tuple[Float[Array, "*b t e2"], Float[Array, "*b t e2"]]
"""Cosines and sines of every position and plane, float32; with a first axis, of each row."""


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians a position for each of the `head_dim / 2` planes: theta^(-2i / head_dim) (Su et al., 2021, §3.2.2), then the stretch."""
    plain = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return plain if rope.scaling is None else stretch(plain, rope.scaling)


def stretch(plain: np.ndarray, scaling: Llama3RopeScaling) -> np.ndarray:
    """Slow planes turn `factor` times slower, fast ones as before, and those between are interpolated (Llama 3.1)."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)
    low = scaling.low_frequency_factor
    high = scaling.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (keep + (1 - keep) / scaling.factor)


def rotations(rope: Rope, length: int, head_dim: int) -> Rotation:
    """The table for positions 0 to `length` - 1; computed in float64."""
    angles = np.outer(np.arange(length), frequencies(rope, head_dim))
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def rotations_at(rope: Rope, positions: Int[Array, "b t"], length: int, head_dim: int) -> Rotation:
    """The rotation at positions of each row's own; they are below `length`."""
    cosine, sine = rotations(rope, length, head_dim)
    return cosine[positions], sine[positions]


def rotate(x: Float[Array, "b t h e"], rotation: Rotation) -> Float[Array, "b t h e"]:
    """Turn each pair (first half, second half) of a head's dimensions; float32 inside."""
    cosine, sine = (table[None, :, None, :] if table.ndim == 2 else table[:, :, None, :] for table in rotation)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


PLAIN = Execution()
MAX_UNROLLED_LAYERS = 4
"""A model of so few layers is compiled layer by layer: no slower to compile, and nothing is stacked for the backward pass."""
strictly_typed = jax.numpy_dtype_promotion("strict")
"""No type is widened without a word: where two meet, one of them was cast."""
Attend = Callable[[LayerKind, Params, Array, Array, Array], tuple[Array, Any]]
"""From a layer's kind and weights, and its queries, keys and values (after norms and RoPE), to what attention mixes, and what is kept."""


class Measured(NamedTuple):
    """What a layer gives beside the residual stream; with a first axis, what several layers give.

    Attributes:
        routing: what its router did; None where it has no experts.
        kept: what its attention keeps for tokens to come; None where nothing is kept.
    """

    routing: Routing | None
    kept: Any


def logits(
    params: Params,
    tokens: Int[Array, "b t"],
    config: ModelConfig,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    execution: Execution = PLAIN,
) -> Float[Array, "b t v"]:
    """Next-token logits. A position sees itself and what comes before it within its own document."""
    return project(params, hidden_states(params, tokens, config, segment_ids=segment_ids, execution=execution), config)


def hidden_states(
    params: Params,
    tokens: Int[Array, "b t"],
    config: ModelConfig,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    execution: Execution = PLAIN,
) -> Float[Array, "b t d"]:
    """What the head reads: the residual stream after the last block and the final norm, in `compute_dtype`.

    Args:
        segment_ids: equal numbers mark tokens that see one another, of one document of the row; None is one document a row. The trainer
            gives None where the model does not attend within documents; code that scores texts always gives them. Positions count through
            the row: RoPE sees only their differences, so that a document among others has the values that it has alone.
        execution: its kernels and `remat` are used here; they change time and memory, not what is computed.
    """
    return run_layers(params, tokens, config, segment_ids=segment_ids, execution=execution)[0]


@strictly_typed
def run_layers(
    params: Params,
    tokens: Int[Array, "b t"],
    config: ModelConfig,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    counted: Bool[Array, "b t"] | None = None,
    execution: Execution = PLAIN,
) -> tuple[Float[Array, "b t d"], Routing | None]:
    """`hidden_states`, and what the routers did: of each layer with experts, in the order of the layers; None where there are no experts.

    Args:
        counted: False for padding, which moves no balance; None counts all tokens.
    """

    def attend_row(kind: LayerKind, _weights: Params, query: Array, key: Array, value: Array) -> tuple[Array, None]:
        return attend(query, key, value, segment_ids, kernel=execution.attention, sliding_window=kind.window), None

    rotation = rotations(config.rope, tokens.shape[1], config.head_dim)
    x, measured = run_stacks(params, tokens, config, rotation=rotation, attend=attend_row, counted=counted, execution=execution)
    return x, in_layer_order({layers: of_stack.routing for layers, of_stack in measured.items() if of_stack.routing is not None})


def run_stacks(
    params: Params,
    tokens: Int[Array, "b t"],
    config: ModelConfig,
    *,
    rotation: Rotation,
    attend: Attend,
    counted: Bool[Array, "b t"] | None = None,
    execution: Execution = PLAIN,
) -> tuple[Float[Array, "b t d"], dict[tuple[int, ...], Measured]]:
    """The whole decoder but its head, for any way in which tokens see one another; and what each stack of layers measured, by its layers.

    Args:
        rotation: of each position, for all rows or for each.
        attend: how queries meet keys. It also has the layer's weights, among which a caller may have put more that belongs to the layer.
    """
    if isinstance(execution.remat, Kept):
        check_names(execution.remat, config)

    def run_layer(kind: LayerKind) -> Block:
        def layer(x: Float[Array, "b t d"], weights: Params) -> tuple[Float[Array, "b t d"], Measured]:
            added, kept = attention(x, weights, kind, config, rotation=rotation, attend=attend)
            x = x + added
            added, routing = mlp(x, weights, kind, config, counted=counted, kernel=execution.expert_kernel)
            return x + added, Measured(routing, kept)

        return remat(layer, execution.remat)

    looked_up = params["embedding"][tokens]
    if config.embedding_scale != 1.0:
        looked_up = config.embedding_scale * looked_up
    looked_up = constrain(looked_up.astype(config.compute_dtype), "looked_up_batch", None, "d_model")
    looked_up = constrain(looked_up, "looked_up_batch", "position", "looked_up_d_model")
    x = constrain_activation(looked_up, "btd")
    measured: dict[tuple[int, ...], Measured] = {}
    for cycle in cycles(config):
        x, of_cycle = run_cycle(x, cycle, params, run_layer, unroll=config.num_layers <= MAX_UNROLLED_LAYERS)
        measured |= of_cycle
    return rms_norm(x, params["final_norm"], config), measured


def run_cycle(
    x: Float[Array, "b t d"], cycle: Cycle, params: Params, run_layer: Callable[[LayerKind], Block], *, unroll: bool
) -> tuple[Float[Array, "b t d"], dict[tuple[int, ...], Measured]]:
    """The layers of a cycle, one after the other: a row of layers of one kind is a loop, a period of several rows a loop around them.

    Beside the residual stream: the layers of each stack, and what was measured in them.
    """

    def run_row(x: Float[Array, "b t d"], stack: Stack, weights: Params) -> tuple[Float[Array, "b t d"], Measured]:
        return jax.lax.scan(run_layer(stack.kind), x, weights, unroll=unroll)

    def run_period(x: Float[Array, "b t d"], weights: tuple[Params, ...]) -> tuple[Float[Array, "b t d"], tuple[Measured, ...]]:
        measured: list[Measured] = []
        for (stack, _), of_stack in zip(cycle.runs, weights, strict=True):
            x, of_row = run_row(x, stack, of_stack)
            measured.append(of_row)
        return x, tuple(measured)

    if len(cycle.runs) == 1:
        [(stack, _)] = cycle.runs
        x, measured = run_row(x, stack, params[stack.name])
        return x, {stack.layers: measured}
    x, by_period = jax.lax.scan(run_period, x, tuple(in_periods(params[stack.name], cycle.repeats) for stack, _ in cycle.runs))
    of_stacks = {stack.layers: measured for (stack, _), measured in zip(cycle.runs, by_period, strict=True)}
    return x, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), of_stacks)


def in_periods(weights: Params, repeats: int) -> Params:
    """Stacked weights with a further axis before that of the layers, of so many periods."""
    return jax.tree.map(lambda leaf: leaf.reshape(repeats, -1, *leaf.shape[1:]), weights)


@strictly_typed
def project(params: Params, x: Float[Array, "b t d"], config: ModelConfig) -> Float[Array, "b t v"]:
    """Logits: products in `compute_dtype`, sums and result in float32."""
    return jnp.einsum("btd,dv->btv", x, head_weight(params, config).astype(x.dtype), preferred_element_type=jnp.float32)


def head_weight(params: Params, config: ModelConfig) -> Float[Array, "d v"]:
    """What projects onto the vocabulary: a weight of its own, or the embedding transposed (Press and Wolf, 2017)."""
    return params["embedding"].T if config.tied_head else params["head"]


def attention(
    x: Float[Array, "b t d"], weights: Params, kind: LayerKind, config: ModelConfig, *, rotation: Rotation, attend: Attend
) -> tuple[Float[Array, "b t d"], Any]:
    """What attention adds to the residual stream, its norms included; and what `attend` keeps."""
    x = rms_norm(x, weights["attention_norm"], config)
    # Queries, keys and values of every head; queries and keys normalised over the head's dimensions where the model does so
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


def mlp(
    x: Float[Array, "b t d"], weights: Params, kind: LayerKind, config: ModelConfig, *, counted: Bool[Array, "b t"] | None, kernel: str
) -> tuple[Float[Array, "b t d"], Routing | None]:
    """What the MLP or the experts add to the residual stream, their norms included; and what the router did, where there is one."""
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
    """down(silu(gate(x)) · up(x)) (Shazeer, 2020, eq. 6)."""
    return multiply(jax.nn.silu(multiply(x, gate)) * multiply(x, up), down)


def multiply(x: Float[Array, "*b n"], weight: Float[Array, "n *m"]) -> Array:
    """The product over the last axis of `x` and the first of `weight`, in the type of `x`: [*b *m].

    Written as a product of two matrices: with more axes, XLA copies operands of the weight's gradient on a CPU.
    """
    columns = weight.shape[1:]
    product = join_rows(x) @ weight.reshape(-1, math.prod(columns)).astype(x.dtype)
    return product.reshape(*x.shape[:-1], *columns)


def rms_norm(x: Float[Array, "*b n"], gain: Float[Array, " n"], config: ModelConfig) -> Float[Array, "*b n"]:
    """x / rms(x) · gain over the last axis, computed in float32 and returned in the type of `x` (Zhang and Sennrich, 2019, eq. 4)."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + config.rms_norm_epsilon)
    return (x32 * scale * gain).astype(x.dtype)
