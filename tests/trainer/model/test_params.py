import itertools
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import LARGE, Normal, count_parameters, cycles, init_params, layer_kinds, param_specs, stacks
from tests.trainer.model.families import EXPERTS, MEMBERS


def pattern(model: ModelConfig, *, num_layers: int, num_dense_layers: int, every: int | None = 4) -> ModelConfig:
    return model.but(
        num_layers=num_layers, global_attention_every=every, sliding_window=8, experts=EXPERTS.but(num_dense_layers=num_dense_layers)
    )


def in_order(model: ModelConfig) -> list[int]:
    """The layers as `run_cycle` runs them."""
    order: list[int] = []
    for cycle in cycles(model):
        for turn in range(cycle.repeats):
            for stack, count in cycle.runs:
                order += stack.layers[turn * count : (turn + 1) * count]
    return order


@pytest.mark.parametrize("every", [None, 2, 4])
def test_each_layer_is_run_once_in_its_place_as_what_it_is(model: ModelConfig, every: int | None):
    for num_layers, num_dense_layers in itertools.product([3, 4, 7, 8, 9, 14, 56], [0, 1, 2]):
        config = pattern(model, num_layers=num_layers, num_dense_layers=num_dense_layers, every=every)
        kinds = layer_kinds(config)
        assert in_order(config) == list(range(num_layers))
        for stack in stacks(config):
            assert {kinds[layer] for layer in stack.layers} == {stack.kind}
        assert len({stack.name for stack in stacks(config)}) == len(stacks(config))


def test_periods_that_repeat_are_one_cycle(model: ModelConfig):
    nano = pattern(model, num_layers=56, num_dense_layers=2)
    found = [(cycle.repeats, [(stack.name, len(stack.layers), count) for stack, count in cycle.runs]) for cycle in cycles(nano)]
    assert found == [
        (2, [("dense_local_0", 2, 1)]),
        (1, [("local_2", 1, 1)]),
        (1, [("global_3", 1, 1)]),
        (13, [("local_4", 39, 3), ("global_7", 13, 1)]),
    ]


def test_what_a_stack_is_drawn_as_names_each_of_its_layers(model: ModelConfig):
    one, other = (param_specs(pattern(model, num_layers=12, num_dense_layers=dense)) for dense in (1, 2))
    for stack in ("local_4", "global_3"):
        assert one[stack]["query"].drawn_as == other[stack]["query"].drawn_as
    assert len(one["local_4"]["query"].drawn_as) == 6


def test_marin_8b_has_llama_3_8b_s_parameters():
    assert count_parameters(load_recipe("marin-8b", "full").phases[0].model) == 8_030_261_248


def test_gains_are_ones_and_matrices_have_the_configured_spread(model: ModelConfig):
    drawn = init_params(0, model)
    for path, leaf in jax.tree_util.tree_leaves_with_path(drawn):
        if "norm" in jax.tree_util.keystr(path):
            np.testing.assert_array_equal(leaf, np.ones(leaf.shape))
        else:
            assert float(leaf.std()) == pytest.approx(model.initializer_std, rel=4 / (2 * leaf.size) ** 0.5)
            assert abs(float(leaf.mean())) < 4 * model.initializer_std / leaf.size**0.5


def test_every_weight_is_drawn_independently(model: ModelConfig):
    blocks = init_params(0, model)["blocks"]
    for one, other in (("gate", "up"), ("key", "value")):
        correlation = np.corrcoef(blocks[one].ravel(), blocks[other].ravel())[0, 1]
        assert abs(correlation) < 0.1
    assert not np.array_equal(blocks["gate"][0], blocks["gate"][1])


@pytest.mark.parametrize(
    ("cutoff", "plain"), [(None, jax.random.normal), (2.0, partial(jax.random.truncated_normal, lower=-2.0, upper=2.0))]
)
@pytest.mark.parametrize("shape", [(3,), (64, 64), (4097,), (3, LARGE + 1)])
def test_a_weight_is_drawn_alone_whatever_length_it_shares_with_others(cutoff: float | None, plain: Any, shape: tuple[int, ...]):
    key = jax.random.key(5)
    np.testing.assert_allclose(Normal(0.25, cutoff).draw(key, shape), 0.25 * plain(key, shape=shape), rtol=1e-6)


def test_another_layer_or_width_moves_no_weight_that_keeps_its_shape(model: ModelConfig):
    drawn = init_params(0, model)
    deeper = init_params(0, model.but(num_layers=3))
    for name in ("embedding", "head"):
        np.testing.assert_array_equal(drawn[name], deeper[name])
    wider = init_params(0, model.but(d_ff=64))
    for name in ("query", "key", "value", "output"):
        np.testing.assert_array_equal(drawn["blocks"][name], wider["blocks"][name])


@pytest.mark.parametrize("fields", [{}, {"qk_norm": True}, {"tied_head": True}, {"qk_norm": True, "tied_head": True}], ids=str)
def test_each_weight_is_in_its_group_and_drawn_by_the_name_that_it_had_in_every_model_so_far(model: ModelConfig, fields: dict[str, bool]):
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model.but(**fields))):
        assert path[-1].key in MEMBERS[spec.group]
        assert spec.drawn_as == (jax.tree_util.keystr(path),)
