"""One declaration per weight: shape, logical axes, initialiser and decay are stated once and serve everything that needs them."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from trainer.config import ModelConfig

Params = dict[str, Any]
"""A nested dictionary of float32 arrays; the layers of `blocks` are stacked along the first axis."""


@dataclass(frozen=True)
class ParamSpec:
    """A weight before it has values. `std` None means ones (a norm's gain); `decays` says whether weight decay applies."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    std: float | None
    decays: bool


def param_specs(config: ModelConfig) -> dict[str, Any]:
    """The table. Norm gains and the token embedding do not decay, the head does (Marin's mask; `facts` of the record).

    With `qk_norm` a block has gains for queries and keys, shared by its heads; with `tied_head` there is no head.
    """
    layers = config.num_layers
    d = config.d_model
    f = config.d_ff
    h = config.num_query_heads
    k = config.num_kv_heads
    e = config.head_dim
    std = config.initializer_std

    def gain(size: int, axis: str) -> ParamSpec:
        return ParamSpec((layers, size), ("layer", axis), None, False)

    def matrix(shape: tuple[int, ...], axes: tuple[str, ...]) -> ParamSpec:
        return ParamSpec((layers, *shape), ("layer", *axes), std, True)

    qk_norms = {"query_norm": gain(e, "head_dim"), "key_norm": gain(e, "head_dim")}
    head = {"head": ParamSpec((d, config.vocab_size), ("d_model", "vocab"), std, True)}
    return {
        "embedding": ParamSpec((config.vocab_size, d), ("vocab", "d_model"), std, False),
        "blocks": {
            "attention_norm": gain(d, "d_model"),
            "query": matrix((d, h, e), ("d_model", "query_heads", "head_dim")),
            "key": matrix((d, k, e), ("d_model", "kv_heads", "head_dim")),
            "value": matrix((d, k, e), ("d_model", "kv_heads", "head_dim")),
            "output": matrix((h, e, d), ("query_heads", "head_dim", "d_model")),
            "mlp_norm": gain(d, "d_model"),
            "gate": matrix((d, f), ("d_model", "d_ff")),
            "up": matrix((d, f), ("d_model", "d_ff")),
            "down": matrix((f, d), ("d_ff", "d_model")),
            **(qk_norms if config.qk_norm else {}),
        },
        "final_norm": ParamSpec((d,), ("d_model",), None, False),
        **({} if config.tied_head else head),
    }


def init_params(seed: int, config: ModelConfig) -> Params:
    """Fresh float32 weights. Each weight's key comes from its path, so adding one moves no other."""
    root = jax.random.key(seed)

    def make(path: tuple[Any, ...], spec: ParamSpec) -> jax.Array:
        if spec.std is None:
            return jnp.ones(spec.shape, jnp.float32)
        name = int.from_bytes(hashlib.sha256(jax.tree_util.keystr(path).encode()).digest()[:4])
        return spec.std * jax.random.normal(jax.random.fold_in(root, name), spec.shape, jnp.float32)

    return jax.tree_util.tree_map_with_path(make, param_specs(config))


def abstract_params(config: ModelConfig) -> Params:
    """Shapes and types without values."""
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), param_specs(config))


def count_parameters(config: ModelConfig) -> int:
    """How many numbers the table declares."""
    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(param_specs(config)))
