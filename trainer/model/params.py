"""One declaration per weight: the table says all of a weight once, and whatever needs to know of it reads the table.

A new weight is one more line here, and its use in the decoder.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phasewise.trainer.config import ModelConfig

ONLY_STACK = "blocks"
"""The stack of a model whose layers are all alike."""


class LayerKind(NamedTuple):
    """What a layer is made of.

    Attributes:
        window: a position sees so many positions, itself included; None is all before it.
        has_rope: whether queries and keys are turned by their position.
        has_qk_norm: norms on the queries and keys of each head.
        has_attention_gate: what the heads give is multiplied by a sigmoid of the attention's input (Qiu et al., 2025).
        has_post_norms: a norm behind attention and one behind the MLP as well.
        has_experts: experts in place of the dense MLP.
    """

    window: int | None
    has_rope: bool
    has_qk_norm: bool
    has_attention_gate: bool
    has_post_norms: bool
    has_experts: bool


class Stack(NamedTuple):
    """Layers of one kind whose weights are stacked along a first axis, in this order; `name` is its key in the tree of weights."""

    name: str
    kind: LayerKind
    layers: tuple[int, ...]


class Cycle(NamedTuple):
    """Layers that come `repeats` times over: from each stack so many in a row, one stack after the other."""

    repeats: int
    runs: tuple[tuple[Stack, int], ...]


Group = Literal["embedding", "attention", "mlp", "experts", "router", "norms", "lm_head"]

UpdatedBy = Literal["muon", "adam", "balancing"]

LAYER, EXPERT = "layer", "expert"

STACKING_AXES = (LAYER, EXPERT)
"""Axes that count matrices; the matrix itself is behind them."""

MIN_DRAWN, LARGE = 2**12, 2**20
"""Weights between them are drawn in lengths that are powers of two."""


@dataclass(frozen=True)
class Normal:
    """N(0, `std`²), cut off at ± `cutoff` standard deviations (and not made wider for it); None is not cut off."""

    std: float
    cutoff: float | None

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Fresh values."""
        size = math.prod(shape)
        return self._flat(key, round_up(size))[:size].reshape(shape)

    def _flat(self, key: jax.Array, size: int) -> Float[Array, " size"]:
        if self.cutoff is None:
            return self.std * jax.random.normal(key, (size,), jnp.float32)
        return self.std * jax.random.truncated_normal(key, -self.cutoff, self.cutoff, (size,), jnp.float32)


@dataclass(frozen=True)
class Constant:
    """The same number everywhere."""

    value: float

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Fresh values; the key is not used."""
        return jnp.full(shape, self.value, jnp.float32)


@dataclass(frozen=True)
class ParamSpec:
    """A weight before it has values.

    Attributes:
        axes: a logical axis for each dimension of `shape` (`trainer.sharding.RULES`).
        init: how fresh values are drawn.
        drawn_as: what their keys are made of: one name for all of it, or one for each layer. A name stays when the weight moves in the
            tree, so that a seed goes on to mean the same model.
        tensor: its name in a Hugging Face folder, with `{layer}` and `{expert}` where each has a tensor of its own.
        group: the one of `trainer.metrics.ALL_GROUPS` that its norms are counted in.
        inputs: for a matrix that tokens are multiplied by, how many axes behind `STACKING_AXES` it reads from; it writes to the others.
            None is no matrix.
        decays: whether weight decay applies.
        updated_by: "muon" for the matrices of the layers, where the optimizer is Muon; "balancing" for what has no gradient and moves with
            the load of the experts; "adam" for all else.
        layers: the numbers of the layers that it is stacked of; empty is a weight outside the layers.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Normal | Constant
    drawn_as: tuple[str, ...]
    tensor: str
    group: Group
    inputs: int | None = None
    decays: bool = False
    updated_by: UpdatedBy = "adam"
    layers: tuple[int, ...] = ()

    @property
    def num_stacking_axes(self) -> int:
        """How many leading axes count layers and experts."""
        return sum(axis in STACKING_AXES for axis in self.axes)


Params = dict[str, Any]
"""A nested dictionary of float32 arrays; the layers of a stack (`trainer.model.layers`) are stacked along the first axis."""

Sizes = dict[str, int]
"""The axes of a weight in their order: logical axis → size."""


class _Declare:
    """Declares weights of one stack, or with None those outside the layers. `tensor` is a name in a Hugging Face folder's words."""

    def __init__(self, config: ModelConfig, stack: Stack | None) -> None:
        self._normal = Normal(config.initializer_std, config.initializer_cutoff)
        self._stack = stack

    def gain(self, name: str, tensor: str, sizes: Sizes, start: float = 1.0) -> ParamSpec:
        """What a norm multiplies by."""
        return self._spec(name, f"{tensor}.weight", sizes, init=Constant(start), group="norms")

    def matrix(self, name: str, tensor: str, sizes: Sizes, group: Group, *, inputs: int = 1) -> ParamSpec:
        """What tokens are multiplied by."""
        by = "adam" if self._stack is None else "muon"
        return self._spec(name, f"{tensor}.weight", sizes, init=self._normal, group=group, inputs=inputs, decays=True, updated_by=by)

    def embedding(self, name: str, tensor: str, sizes: Sizes) -> ParamSpec:
        """What is looked up."""
        return self._spec(name, f"{tensor}.weight", sizes, init=self._normal, group="embedding")

    def balanced(self, name: str, tensor: str, sizes: Sizes) -> ParamSpec:
        """What moves with the load of the experts, from 0."""
        return self._spec(name, tensor, sizes, init=Constant(0.0), group="router", updated_by="balancing")

    def _spec(self, name: str, tensor: str, sizes: Sizes, **more: Any) -> ParamSpec:
        shape = tuple(sizes.values())
        axes = tuple(sizes)
        if self._stack is None:
            return ParamSpec(shape, axes, drawn_as=(f"['{name}']",), tensor=tensor, **more)
        layers = self._stack.layers
        is_only = self._stack.name == ONLY_STACK
        drawn_as = (f"['{ONLY_STACK}']['{name}']",) if is_only else tuple(f"layer {layer} {name}" for layer in layers)
        tensor = f"model.layers.{{layer}}.{tensor}"
        return ParamSpec((len(layers), *shape), (LAYER, *axes), drawn_as=drawn_as, tensor=tensor, layers=layers, **more)


def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """What each layer is, the first one first."""
    every = config.global_attention_every
    dense = config.num_layers if config.experts is None else config.experts.num_dense_layers

    def kind(layer: int) -> LayerKind:
        is_global = every is not None and (layer + 1) % every == 0
        return LayerKind(
            window=None if is_global else config.sliding_window,
            has_rope=not is_global,
            has_qk_norm=config.qk_norm,
            has_attention_gate=config.attention_gate,
            has_post_norms=config.post_norms,
            has_experts=layer >= dense,
        )

    return tuple(kind(layer) for layer in range(config.num_layers))


def cycles(config: ModelConfig) -> tuple[Cycle, ...]:
    """The layers in the order in which they are run.

    Whole periods of the pattern that are alike, the longest row of two or more, are one cycle. What comes before and after is cut into
    rows of layers of one kind.
    """
    kinds = layer_kinds(config)
    if len(set(kinds)) == 1:
        return (Cycle(len(kinds), ((Stack(ONLY_STACK, kinds[0], tuple(range(len(kinds)))), 1),)),)
    period = config.global_attention_every or 1
    periods = [kinds[start : start + period] for start in range(0, len(kinds) - period + 1, period)]
    first, count = max(_equal_rows(periods), key=lambda row: row[1], default=(0, 0))
    if count < 2 or period == 1:
        return tuple(_rows(kinds, 0, len(kinds)))
    start = first * period
    stop = start + count * period
    return (*_rows(kinds, 0, start), _cycle(kinds, start, stop, period), *_rows(kinds, stop, len(kinds)))


def stacks(config: ModelConfig) -> tuple[Stack, ...]:
    """Every stack once."""
    return tuple(stack for cycle in cycles(config) for stack, _ in cycle.runs)


def expert_layers(config: ModelConfig) -> tuple[int, ...]:
    """The numbers of the layers that have experts, ascending."""
    return tuple(layer for layer, kind in enumerate(layer_kinds(config)) if kind.has_experts)


def _equal_rows(periods: list[tuple[LayerKind, ...]]) -> Iterator[tuple[int, int]]:
    start = 0
    for _, row in groupby(periods):
        count = len(list(row))
        yield start, count
        start += count


def _cycle(kinds: tuple[LayerKind, ...], start: int, stop: int, period: int) -> Cycle:
    runs: list[tuple[Stack, int]] = []
    at = start
    for kind, row in groupby(kinds[start : start + period]):
        length = len(list(row))
        layers = tuple(layer for first in range(at, stop, period) for layer in range(first, first + length))
        runs.append((Stack(_name(kind, at), kind, layers), length))
        at += length
    return Cycle((stop - start) // period, tuple(runs))


def _rows(kinds: tuple[LayerKind, ...], start: int, stop: int) -> Iterator[Cycle]:
    at = start
    for kind, row in groupby(kinds[start:stop]):
        layers = tuple(range(at, at + len(list(row))))
        yield Cycle(len(layers), ((Stack(_name(kind, at), kind, layers), 1),))
        at = layers[-1] + 1


def _name(kind: LayerKind, first: int) -> str:
    return f"{'' if kind.has_experts else 'dense_'}{'global' if kind.window is None else 'local'}_{first}"


def round_up(size: int) -> int:
    """How many numbers are drawn for a weight of `size`: small weights share a few lengths, and so a few compiled draws.

    Value i of a draw depends on the key and on i alone (`jax_threefry_partitionable`), so that those drawn in vain change nothing.
    """
    return size if size > LARGE else max(MIN_DRAWN, 1 << (size - 1).bit_length())


def param_specs(config: ModelConfig) -> dict[str, Any]:
    """The table, in the order of a Hugging Face folder. Norm gains and the token embedding do not decay, the head does (Marin's mask).

    With `tied_head` there is no head.
    """
    outer = {"d_model": config.d_model}
    vocab = {"vocab": config.vocab_size}
    declare = _Declare(config, None)
    head = {} if config.tied_head else {"head": declare.matrix("head", "lm_head", outer | vocab, "lm_head")}
    return {
        "embedding": declare.embedding("embedding", "model.embed_tokens", vocab | outer),
        **{stack.name: layer_specs(config, stack) for stack in stacks(config)},
        "final_norm": declare.gain("final_norm", "model.norm", outer),
        **head,
    }


def layer_specs(config: ModelConfig, stack: Stack) -> dict[str, ParamSpec]:
    """The weights of one stack of layers; each has a first axis that counts its layers."""
    declare = _Declare(config, stack)
    outer = {"d_model": config.d_model}
    post_gain = 1 / math.sqrt(config.num_layers)
    specs = _attention(config, stack.kind, declare)
    if stack.kind.has_post_norms:
        specs["attention_post_norm"] = declare.gain("attention_post_norm", "post_attention_layernorm", outer, post_gain)
        specs["mlp_norm"] = declare.gain("mlp_norm", "pre_mlp_layernorm", outer)
        specs["mlp_post_norm"] = declare.gain("mlp_post_norm", "post_mlp_layernorm", outer, post_gain)
    else:
        specs["mlp_norm"] = declare.gain("mlp_norm", "post_attention_layernorm", outer)
    return specs | (_experts(config, declare) if stack.kind.has_experts else _mlp(config, declare))


def _attention(config: ModelConfig, kind: LayerKind, declare: "_Declare") -> dict[str, ParamSpec]:
    outer = {"d_model": config.d_model}
    queries = {"query_heads": config.num_query_heads, "head_dim": config.head_dim}
    keys = {"kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
    specs = {
        "attention_norm": declare.gain("attention_norm", "input_layernorm", outer),
        "query": declare.matrix("query", "self_attn.q_proj", outer | queries, "attention"),
        "key": declare.matrix("key", "self_attn.k_proj", outer | keys, "attention"),
        "value": declare.matrix("value", "self_attn.v_proj", outer | keys, "attention"),
    }
    if kind.has_qk_norm:
        specs["query_norm"] = declare.gain("query_norm", "self_attn.q_norm", {"head_dim": config.head_dim})
        specs["key_norm"] = declare.gain("key_norm", "self_attn.k_norm", {"head_dim": config.head_dim})
    if kind.has_attention_gate:
        specs["attention_gate"] = declare.matrix("attention_gate", "self_attn.gate_proj", outer | queries, "attention")
    specs["output"] = declare.matrix("output", "self_attn.o_proj", queries | outer, "attention", inputs=2)
    return specs


def _mlp(config: ModelConfig, declare: "_Declare") -> dict[str, ParamSpec]:
    outer = {"d_model": config.d_model}
    hidden = {"d_ff": config.d_ff}
    return {
        "gate": declare.matrix("gate", "mlp.gate_proj", outer | hidden, "mlp"),
        "up": declare.matrix("up", "mlp.up_proj", outer | hidden, "mlp"),
        "down": declare.matrix("down", "mlp.down_proj", hidden | outer, "mlp"),
    }


def _experts(config: ModelConfig, declare: "_Declare") -> dict[str, ParamSpec]:
    experts = config.experts
    assert experts is not None
    outer = {"d_model": config.d_model}
    shared = {"d_ff": experts.num_shared * experts.d_expert}
    scores = {"router_expert": experts.num_experts}
    each = {EXPERT: experts.num_experts}
    inner = {"expert_d_model": config.d_model}
    hidden = {"d_ff": experts.d_expert}
    specs = {
        "router": declare.matrix("router", "mlp.router.gate", outer | scores, "router"),
        "router_bias": declare.balanced("router_bias", "mlp.expert_bias", scores),
        "expert_gate": declare.matrix("expert_gate", "mlp.experts.{expert}.gate_proj", each | inner | hidden, "experts"),
        "expert_up": declare.matrix("expert_up", "mlp.experts.{expert}.up_proj", each | inner | hidden, "experts"),
        "expert_down": declare.matrix("expert_down", "mlp.experts.{expert}.down_proj", each | hidden | inner, "experts"),
    }
    if experts.num_shared:
        specs["shared_gate"] = declare.matrix("shared_gate", "mlp.shared_experts.gate_proj", outer | shared, "mlp")
        specs["shared_up"] = declare.matrix("shared_up", "mlp.shared_experts.up_proj", outer | shared, "mlp")
        specs["shared_down"] = declare.matrix("shared_down", "mlp.shared_experts.down_proj", shared | outer, "mlp")
    return specs


def init_params(seed: int, config: ModelConfig) -> Params:
    """Fresh float32 weights. A weight's keys come from the names that it is drawn as, so adding one moves no other."""
    root = jax.random.key(seed)

    def number(name: str) -> int:
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])

    def make(spec: ParamSpec) -> jax.Array:
        if len(spec.drawn_as) == 1:
            return spec.init.draw(jax.random.fold_in(root, number(spec.drawn_as[0])), spec.shape)
        numbers = jnp.asarray([number(name) for name in spec.drawn_as], jnp.uint32)
        return jax.vmap(lambda number: spec.init.draw(jax.random.fold_in(root, number), spec.shape[1:]))(numbers)

    return jax.tree.map(make, param_specs(config))


def abstract_params(config: ModelConfig) -> Params:
    """Shapes and types without values."""
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), param_specs(config))


def count_parameters(config: ModelConfig) -> int:
    """How many numbers the table declares."""
    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(param_specs(config)))


def count_active_parameters(config: ModelConfig) -> int:
    """How many of them a token meets: of the experts those that it is routed to."""
    return sum(round(active_share(spec, config) * math.prod(spec.shape)) for spec in jax.tree.leaves(param_specs(config)))


def active_share(spec: ParamSpec, config: ModelConfig) -> float:
    """Which share of a weight a token meets: all of it, or of the experts those that it is routed to."""
    if EXPERT not in spec.axes:
        return 1.0
    assert config.experts is not None
    return config.experts.num_active / config.experts.num_experts
