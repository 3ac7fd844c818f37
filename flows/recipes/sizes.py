"""Model size and smaller shapes. Sizes count parameters without embedding and head, and only the active experts."""

import math
from typing import NamedTuple

from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import ModelConfig

WIDTH_STEPS, FEED_FORWARD_STEP, EXPERT_STEP = (256, 128), 128, 32
"""Widths are whole tiles. Steps of 256 give an even number of heads. Steps of 128 are used if no width of 256 reaches the size."""
MAX_DISTANCE = 0.1  # largest relative distance of a model from its target size


class Shape(NamedTuple):
    """The fields of a smaller model that differ from the recipe's model."""

    num_layers: int
    d_model: int
    d_ff: int
    num_query_heads: int
    num_kv_heads: int
    d_expert: int | None
    layers_divisor: float

    def of(self, model: ModelConfig) -> ModelConfig:
        """The model in this shape.

        Initial standard deviation and embedding scale of a sparse model stay proportional to 1 / √d_model and √d_model. A dense model
        keeps its standard deviation.
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
    """Parameters in the layers' matrices that a token is multiplied by. Norms, 0.01 % of them, are left out."""
    heads = model.head_dim * (2 * model.num_query_heads + 2 * model.num_kv_heads + model.num_query_heads * model.attention_gate)
    dense = 3 * model.d_ff
    if model.experts is None:
        return model.num_layers * model.d_model * (heads + dense)
    experts = model.experts
    sparse = 3 * experts.d_expert * (experts.num_active + experts.num_shared) + experts.num_experts
    feed_forward = experts.num_dense_layers * dense + (model.num_layers - experts.num_dense_layers) * sparse
    return model.d_model * (model.num_layers * heads + feed_forward)


def shape_of(model: ModelConfig, target: int, name: str) -> Shape:
    """The shape with about `target` parameters and nearly the recipe's ratio of width to depth.

    Each width gets the number of layers nearest to `target`. The result has the least sum of |log size error| and a quarter of
    |log ratio error|.
    """
    aspect = model.d_model / model.num_layers
    group = model.global_attention_every or 1

    def off(shape: Shape) -> float:
        return abs(math.log(body_parameters(shape.of(model)) / target))

    for step in WIDTH_STEPS:
        deep_enough: list[Shape] = []
        for width in range(step, model.d_model + 1, step):
            ratio = width / model.d_model
            heads = max(1, round(model.num_query_heads * ratio))
            kv_wanted = heads * model.num_kv_heads / model.num_query_heads
            kv_heads = [kv for kv in range(1, heads + 1) if heads % kv == 0]
            shapes = [
                Shape(
                    num_layers=layers,
                    d_model=width,
                    d_ff=max(1, round(model.d_ff * ratio / FEED_FORWARD_STEP)) * FEED_FORWARD_STEP,
                    num_query_heads=heads,
                    num_kv_heads=min(kv_heads, key=lambda kv: (abs(math.log(kv / kv_wanted)), kv)),
                    d_expert=max(1, round(model.experts.d_expert * ratio / EXPERT_STEP)) * EXPERT_STEP if model.experts else None,
                    layers_divisor=model.num_layers / layers,
                )
                for layers in range(group, model.num_layers + 1, group)
            ]
            deep_enough += [min(shapes, key=off)] if shapes else []
        if near := [shape for shape in deep_enough if off(shape) < math.log1p(MAX_DISTANCE)]:
            return min(near, key=lambda shape: off(shape) + abs(math.log(shape.d_model / shape.num_layers / aspect)) / 4)
    raise RecipeError(f"{name}: no model of this recipe's family has {target:,} parameters within {MAX_DISTANCE:.0%}. Take another scale.")
