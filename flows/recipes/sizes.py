"""How large a model is, and the shape of a smaller one: parameters without embedding and head, of experts those that a token meets."""

import math
from typing import NamedTuple

from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import ModelConfig

WIDTH_STEPS, FEED_FORWARD_STEP, EXPERT_STEP = (256, 128), 128, 32
"""Widths are whole tiles. Steps of 256 make an even number of heads; those of 128 are taken where the others do not reach the size."""
MAX_DISTANCE = 0.1
"""How far a model may be from the size that is asked for."""


class Shape(NamedTuple):
    """What a smaller model has of its own; everything else of it is the recipe's."""

    num_layers: int
    d_model: int
    d_ff: int
    num_query_heads: int
    num_kv_heads: int
    d_expert: int | None
    layers_divisor: float

    def of(self, model: ModelConfig) -> ModelConfig:
        """The model in this shape.

        What is 1 / √d_model in a sparse model of this family stays so: the standard deviation that it begins with, and what its
        embeddings are multiplied by. A dense model keeps its standard deviation.
        """
        fields = self._asdict()
        d_expert, layers_divisor = fields.pop("d_expert"), fields.pop("layers_divisor")
        if model.experts is None or d_expert is None:
            return model.but(**fields)
        wider = math.sqrt(model.d_model / self.d_model)
        dense = model.experts.num_dense_layers
        experts = model.experts.but(d_expert=d_expert, num_dense_layers=max(1, round(dense / layers_divisor)) if dense else 0)
        scale = 1.0 if model.embedding_scale == 1 else model.embedding_scale / wider
        return model.but(**fields, experts=experts, initializer_std=model.initializer_std * wider, embedding_scale=scale)


def body_parameters(model: ModelConfig) -> int:
    """Parameters in the layers' matrices that a token is multiplied by: what `130m` counts. Norms, 0.01 % of them, are left out."""
    heads = model.head_dim * (2 * model.num_query_heads + 2 * model.num_kv_heads + model.num_query_heads * model.attention_gate)
    dense = 3 * model.d_ff
    if model.experts is None:
        return model.num_layers * model.d_model * (heads + dense)
    experts = model.experts
    sparse = 3 * experts.d_expert * (experts.num_active + experts.num_shared) + experts.num_experts
    feed_forward = experts.num_dense_layers * dense + (model.num_layers - experts.num_dense_layers) * sparse
    return model.d_model * (model.num_layers * heads + feed_forward)


def shape_of(model: ModelConfig, target: int, name: str) -> Shape:
    """The shape of the model with about so many parameters that is as deep for its width as the recipe's, as nearly as can be.

    Of all widths each with the number of layers that comes nearest to `target`: the one with the least sum of how far its size is off,
    and, a quarter as heavy, how far its depth for its width is; both as logarithms.

    Raises:
        RecipeError: none comes within `MAX_DISTANCE` of the target; `name` is what is asked for.
    """
    aspect = model.d_model / model.num_layers

    def off(shape: Shape) -> float:
        return abs(math.log(body_parameters(shape.of(model)) / target))

    def distance(shape: Shape) -> float:
        return off(shape) + abs(math.log(shape.d_model / shape.num_layers / aspect)) / 4

    for step in WIDTH_STEPS:
        widths = range(step, model.d_model + 1, step)
        near = [shape for width in widths if (shape := _deep_enough(model, width, target)) and off(shape) < math.log1p(MAX_DISTANCE)]
        if near:
            return min(near, key=distance)
    raise RecipeError(f"{name}: no model of this recipe's family has {target:,} parameters within {MAX_DISTANCE:.0%}. Take another scale.")


def _deep_enough(model: ModelConfig, width: int, target: int) -> Shape | None:
    group = model.global_attention_every or 1
    shapes = [_shape(model, width, layers) for layers in range(group, model.num_layers + 1, group)]
    return min(shapes, key=lambda shape: abs(math.log(body_parameters(shape.of(model)) / target)), default=None)


def _shape(model: ModelConfig, width: int, layers: int) -> Shape:
    ratio = width / model.d_model
    heads = max(1, round(model.num_query_heads * ratio))
    kv_wanted = heads * model.num_kv_heads / model.num_query_heads
    divisors = [kv for kv in range(1, heads + 1) if heads % kv == 0]
    kv_heads = min(divisors, key=lambda kv: (abs(math.log(kv / kv_wanted)), kv))
    return Shape(
        num_layers=layers,
        d_model=width,
        d_ff=_rounded(model.d_ff * ratio, FEED_FORWARD_STEP),
        num_query_heads=heads,
        num_kv_heads=kv_heads,
        d_expert=_rounded(model.experts.d_expert * ratio, EXPERT_STEP) if model.experts else None,
        layers_divisor=model.num_layers / layers,
    )


def _rounded(value: float, step: int) -> int:
    return max(step, round(value / step) * step)
