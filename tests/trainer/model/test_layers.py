"""The pattern of layers: what each one is, and how they lie together."""

import pytest

from phasewise.trainer.config import Experts, ModelConfig
from phasewise.trainer.model.params import ONLY_STACK, cycles, expert_layers, layer_kinds, param_specs, stacks


def pattern(model: ModelConfig, *, num_layers: int, num_dense_layers: int, every: int | None = 4) -> ModelConfig:
    experts = Experts(
        num_experts=4,
        num_active=2,
        num_shared=1,
        d_expert=16,
        route_scale=1.0,
        num_dense_layers=num_dense_layers,
        balancing=None,
        sequence_loss=0.0,
    )
    return model.but(num_layers=num_layers, global_attention_every=every, sliding_window=8, experts=experts)


def in_order(model: ModelConfig) -> list[int]:
    """The layers as `run_cycle` runs them."""
    order: list[int] = []
    for cycle in cycles(model):
        for turn in range(cycle.repeats):
            for stack, count in cycle.runs:
                order += stack.layers[turn * count : (turn + 1) * count]
    return order


@pytest.mark.parametrize("num_layers", [3, 4, 7, 8, 9, 14, 56])
@pytest.mark.parametrize("num_dense_layers", [0, 1, 2])
@pytest.mark.parametrize("every", [None, 2, 4])
def test_each_layer_is_run_once_in_its_place_as_what_it_is(model: ModelConfig, num_layers: int, num_dense_layers: int, every: int | None):
    config = pattern(model, num_layers=num_layers, num_dense_layers=num_dense_layers, every=every)
    kinds = layer_kinds(config)
    assert in_order(config) == list(range(num_layers))
    for stack in stacks(config):
        assert {kinds[layer] for layer in stack.layers} == {stack.kind}
    assert len({stack.name for stack in stacks(config)}) == len(stacks(config))


def test_every_fourth_layer_is_global_and_has_no_rope(model: ModelConfig):
    kinds = layer_kinds(pattern(model, num_layers=9, num_dense_layers=2))
    assert [layer for layer, kind in enumerate(kinds) if kind.window is None] == [3, 7]
    assert [layer for layer, kind in enumerate(kinds) if not kind.has_rope] == [3, 7]
    assert [layer for layer, kind in enumerate(kinds) if not kind.has_experts] == [0, 1]


def test_layers_that_are_all_alike_are_one_stack(model: ModelConfig):
    [stack] = stacks(model)
    assert (stack.name, stack.layers) == (ONLY_STACK, (0, 1))
    assert expert_layers(model) == ()


def test_periods_that_repeat_are_one_cycle(model: ModelConfig):
    """The layers of Trinity Nano: two dense ones, and from layer 4 on thirteen times three local and one global."""
    nano = pattern(model, num_layers=56, num_dense_layers=2)
    found = [(cycle.repeats, [(stack.name, len(stack.layers), count) for stack, count in cycle.runs]) for cycle in cycles(nano)]
    assert found == [
        (2, [("dense_local_0", 2, 1)]),
        (1, [("local_2", 1, 1)]),
        (1, [("global_3", 1, 1)]),
        (13, [("local_4", 39, 3), ("global_7", 13, 1)]),
    ]


def test_what_a_stack_is_drawn_as_names_each_of_its_layers(model: ModelConfig):
    """The same layer has the same values in whatever stack it lies."""
    one = param_specs(pattern(model, num_layers=12, num_dense_layers=1))
    other = param_specs(pattern(model, num_layers=12, num_dense_layers=2))
    assert one["local_4"]["query"].drawn_as == other["local_4"]["query"].drawn_as
    assert one["global_3"]["query"].drawn_as == other["global_3"]["query"].drawn_as
    assert len(one["local_4"]["query"].drawn_as) == 6
