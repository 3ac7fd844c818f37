"""Each weight's name and layout in a Hugging Face folder: one table, read both ways.

Their matrices are [outputs, inputs], layer by layer; ours are [inputs, outputs], with the layers stacked and the heads apart.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from trainer.config import ModelConfig
from trainer.model.params import Params, ParamSpec, param_specs


@dataclass(frozen=True)
class Stored:
    """A weight in the folder. `inputs` counts the leading axes that are a matrix's inputs; None is a weight that is stored as it is."""

    name: str
    inputs: int | None


OUTSIDE = {
    "embedding": Stored("model.embed_tokens.weight", None),
    "final_norm": Stored("model.norm.weight", None),
    "head": Stored("lm_head.weight", 1),
}
BLOCK = {
    "attention_norm": Stored("input_layernorm.weight", None),
    "query": Stored("self_attn.q_proj.weight", 1),
    "key": Stored("self_attn.k_proj.weight", 1),
    "value": Stored("self_attn.v_proj.weight", 1),
    "query_norm": Stored("self_attn.q_norm.weight", None),
    "key_norm": Stored("self_attn.k_norm.weight", None),
    "output": Stored("self_attn.o_proj.weight", 2),
    "mlp_norm": Stored("post_attention_layernorm.weight", None),
    "gate": Stored("mlp.gate_proj.weight", 1),
    "up": Stored("mlp.up_proj.weight", 1),
    "down": Stored("mlp.down_proj.weight", 1),
}
HEAD_NAME = OUTSIDE["head"].name
EMBEDDING_NAME = OUTSIDE["embedding"].name


@dataclass(frozen=True)
class Place:
    """One tensor of the folder and where it is in our tree; `layer` None is outside the blocks. `shape` is ours, without the layers."""

    tensor: str
    weight: str
    layer: int | None
    inputs: int | None
    shape: tuple[int, ...]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The tensor's shape in the folder."""
        if self.inputs is None:
            return self.shape
        return math.prod(self.shape[self.inputs :]), math.prod(self.shape[: self.inputs])

    def to_stored(self, weight: np.ndarray) -> np.ndarray:
        """Their layout of our weight."""
        return np.ascontiguousarray(weight.reshape(self.stored_shape[::-1]).T) if self.inputs else np.ascontiguousarray(weight)

    def from_stored(self, tensor: np.ndarray) -> np.ndarray:
        """Our layout of their tensor, without a copy."""
        return tensor.T.reshape(self.shape) if self.inputs else tensor


def places(config: ModelConfig) -> list[Place]:
    """Every tensor of such a model, in their order: the embedding, layer by layer, the last norm, the head."""
    specs = param_specs(config)
    blocks: dict[str, ParamSpec] = specs["blocks"]
    outside = {name: Place(stored.name, name, None, stored.inputs, specs[name].shape) for name, stored in OUTSIDE.items() if name in specs}
    layered = [
        Place(f"model.layers.{layer}.{stored.name}", name, layer, stored.inputs, blocks[name].shape[1:])
        for layer in range(config.num_layers)
        for name, stored in BLOCK.items()
        if name in blocks
    ]
    return [outside.pop("embedding"), *layered, *outside.values()]


def to_tensors(params: Params, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor with its name, float32, made when it is asked for."""
    for place in places(config):
        weight = params[place.weight] if place.layer is None else params["blocks"][place.weight]
        array: np.ndarray = np.asarray(weight)
        yield place.tensor, place.to_stored(array if place.layer is None else array[place.layer])


def from_tensors(read: Callable[[str], np.ndarray], config: ModelConfig) -> Params:
    """Our tree of float32 weights; `read` gives a tensor by its name, in its stored shape."""
    specs = param_specs(config)
    blocks = {name: np.empty(spec.shape, np.float32) for name, spec in specs["blocks"].items()}
    outside: dict[str, np.ndarray] = {}
    for place in places(config):
        weight = place.from_stored(read(place.tensor))
        if place.layer is None:
            outside[place.weight] = weight.astype(np.float32)
        else:
            blocks[place.weight][place.layer] = weight
    return {name: jnp.asarray(outside[name]) for name in outside} | {"blocks": {name: jnp.asarray(blocks[name]) for name in blocks}}
