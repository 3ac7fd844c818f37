"""Each weight's place and layout in a Hugging Face folder, read from the table of weights, both ways.

Their matrices are [outputs, inputs], layer by layer and expert by expert; ours are [inputs, outputs], stacked and with the heads apart.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params, param_specs
from phasewise.trainer.model.specs import EXPERT, LAYER, ParamSpec

EMBEDDING_NAME, HEAD_NAME = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Place:
    """One tensor of the folder and where it is in our tree.

    Attributes:
        path: the keys of our weight in the tree.
        index: where the tensor is along the weight's stacking axes.
        inputs: how many axes it reads from; None is stored as it is.
        shape: ours, without the stacking axes.
    """

    tensor: str
    path: tuple[str, ...]
    index: tuple[int, ...]
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
    layered: dict[int, list[Place]] = {layer: [] for layer in range(config.num_layers)}
    outside: list[Place] = []
    for path, spec in _named_specs(param_specs(config)):
        for place, layer in _places_of(path, spec):
            (outside if layer is None else layered[layer]).append(place)
    embedding, *rest = outside
    return [embedding, *itertools.chain.from_iterable(layered.values()), *rest]


def _named_specs(specs: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ParamSpec]]:
    """In the table's order, which jax's trees do not keep."""
    for name, spec in specs.items():
        if isinstance(spec, dict):
            yield from _named_specs(spec, (*path, name))
        else:
            yield (*path, name), spec


def _places_of(path: tuple[str, ...], spec: ParamSpec) -> Iterator[tuple[Place, int | None]]:
    """A tensor for each layer and expert that the weight is stacked of, and its layer."""
    stacking = spec.num_stacking_axes
    shape = spec.shape[stacking:]
    for index in itertools.product(*(range(size) for size in spec.shape[:stacking])):
        at = dict(zip(spec.axes, index, strict=False))
        layer = spec.layers[at[LAYER]] if spec.layers else None
        tensor = spec.tensor.format(layer=layer, expert=at.get(EXPERT))
        yield Place(tensor, path, index, spec.inputs, shape), layer


def to_tensors(params: Params, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor with its name, float32, made when it is asked for."""
    for place in places(config):
        array: np.ndarray = np.asarray(_at(params, place.path))
        yield place.tensor, place.to_stored(array[place.index])


def from_tensors(read: Callable[[str], np.ndarray], config: ModelConfig) -> Params:
    """Our tree of float32 weights; `read` gives a tensor by its name, in its stored shape."""
    params = jax.tree.map(lambda spec: np.empty(spec.shape, np.float32), param_specs(config))
    for place in places(config):
        _at(params, place.path)[place.index] = place.from_stored(read(place.tensor))
    return jax.tree.map(jnp.asarray, params)


def _at(tree: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The leaf at the end of a path of keys."""
    leaf: Any = tree
    for key in path:
        leaf = leaf[key]
    return leaf
