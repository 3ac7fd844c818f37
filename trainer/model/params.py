"""One declaration per weight: the table says all of a weight once, and whatever needs to know of it reads the table.

A new weight is one more line here, and its use in the decoder.
"""

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.layers import ONLY_STACK, LayerKind, Stack, stacks
from phasewise.trainer.model.specs import EXPERT, LAYER, Constant, Group, Normal, ParamSpec

Params = dict[str, Any]
"""A nested dictionary of float32 arrays; the layers of a stack (`trainer.model.layers`) are stacked along the first axis."""
Sizes = dict[str, int]
"""The axes of a weight in their order: logical axis → size."""


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
    """The gains of QK-norm are shared by the heads of a layer."""
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
    """The router and its bias, the experts, and beside them those that every token has, as one MLP."""
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
