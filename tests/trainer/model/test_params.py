"""The table of weights: what it declares, and how fresh weights are drawn from it."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import phasewise.trainer.model.params as params_module
from phasewise.flows.recipes import load_recipe
from phasewise.trainer import state
from phasewise.trainer.config import Mesh, ModelConfig
from phasewise.trainer.flops import FLOPS_A_PARAMETER, step_flops
from phasewise.trainer.model.hugging_face import places
from phasewise.trainer.model.params import LARGE, Constant, Normal, abstract_params, count_parameters, init_params, param_specs, round_up
from phasewise.trainer.optimizer import WeightRule, weight_rules
from phasewise.trainer.sharding import build_mesh, state_shardings
from tests.trainer.model.members import MEMBERS


def changed(model: ModelConfig, **fields: object) -> ModelConfig:
    return model.but(**fields)


def test_marin_8b_has_llama_3_8b_s_parameters():
    assert count_parameters(load_recipe("marin-8b", "full").phases[0].model) == 8_030_261_248


def test_the_count_is_that_of_the_drawn_weights(model: ModelConfig):
    drawn = jax.tree.leaves(init_params(0, model))
    assert count_parameters(model) == sum(leaf.size for leaf in drawn)


def test_abstract_weights_have_the_shapes_and_types_of_drawn_ones(model: ModelConfig):
    drawn = init_params(0, model)
    abstract = abstract_params(model)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), drawn) == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract)


def test_every_weight_names_each_of_its_axes(model: ModelConfig):
    for spec in jax.tree.leaves(param_specs(model)):
        assert len(spec.axes) == len(spec.shape)


def test_the_head_and_the_matrices_decay_and_embedding_and_norms_do_not(model: ModelConfig):
    mask = jax.tree.map(lambda spec: spec.decays, param_specs(model))
    assert {name for name, decays in mask["blocks"].items() if not decays} == {"attention_norm", "mlp_norm"}
    assert {name: mask[name] for name in ("embedding", "final_norm", "head")} == {"embedding": False, "final_norm": False, "head": True}


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
    """To the last digits: a compiler may round the last few numbers of an array, which fill no vector, otherwise than the rest."""
    key = jax.random.key(5)
    np.testing.assert_allclose(Normal(0.25, cutoff).draw(key, shape), 0.25 * plain(key, shape=shape), rtol=1e-6)


def test_small_weights_share_few_lengths():
    assert {round_up(size) for size in range(1, 2**14)} == {2**12, 2**13, 2**14}
    assert round_up(2**20) == 2**20
    assert round_up(2**20 + 1) == 2**20 + 1


def test_another_layer_or_width_moves_no_weight_that_keeps_its_shape(model: ModelConfig):
    drawn = init_params(0, model)
    deeper = init_params(0, changed(model, num_layers=3))
    for name in ("embedding", "head"):
        np.testing.assert_array_equal(drawn[name], deeper[name])
    wider = init_params(0, changed(model, d_ff=64))
    for name in ("query", "key", "value", "output"):
        np.testing.assert_array_equal(drawn["blocks"][name], wider["blocks"][name])


def test_another_weight_moves_no_other(model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    drawn = init_params(0, model)
    table = param_specs(model)
    extra = replace(table["head"], drawn_as=("extra",))
    more = {"a_first_one": extra, **table, "blocks": {**table["blocks"], "more": replace(extra, drawn_as=("more",))}}
    monkeypatch.setattr(params_module, "param_specs", lambda config: more)
    again = init_params(0, model)
    assert not np.array_equal(again["a_first_one"], again["blocks"]["more"])
    for name in ("embedding", "head"):
        np.testing.assert_array_equal(drawn[name], again[name])
    for name in table["blocks"]:
        np.testing.assert_array_equal(drawn["blocks"][name], again["blocks"][name])


def test_a_line_of_the_table_is_all_that_a_new_weight_needs(model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    mlp = vars(params_module)["_mlp"]

    def with_one_more(config: ModelConfig, declare: Any) -> dict[str, Any]:
        sizes = {"d_model": config.d_model, "d_ff": config.d_ff}
        return mlp(config, declare) | {"made_up": declare.matrix("made_up", "mlp.made_up_proj", sizes, "mlp")}

    def of_everything() -> tuple[int, int, int, set[str]]:
        names = {place.tensor for place in places(model)}
        return count_parameters(model), step_flops(model, 1).matrices, len(state.slot_names(model)), names

    parameters, flops, slots, names = of_everything()
    monkeypatch.setattr(params_module, "_mlp", with_one_more)
    more, more_flops, more_slots, more_names = of_everything()
    size = model.num_layers * model.d_model * model.d_ff
    assert (more - parameters, more_flops - flops) == (size, FLOPS_A_PARAMETER * size * model.seq_len)
    assert more_names - names == {f"model.layers.{layer}.mlp.made_up_proj.weight" for layer in range(model.num_layers)}
    assert more_slots > slots
    assert weight_rules(model)["blocks"]["made_up"] == WeightRule(stacked=True, stacking_axes=1, matrix_inputs=1, decays=True)
    shardings = state_shardings(abstract_params(model), model, build_mesh(Mesh(), jax.devices()[:1]))
    assert shardings["blocks"]["made_up"].spec == shardings["blocks"]["gate"].spec


def test_a_weight_that_moves_in_the_tree_keeps_its_values(model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    drawn = init_params(0, model)
    moved = {"elsewhere": {"deep": param_specs(model)["head"]}}
    monkeypatch.setattr(params_module, "param_specs", lambda config: moved)
    np.testing.assert_array_equal(init_params(0, model)["elsewhere"]["deep"], drawn["head"])


def test_the_names_that_weights_are_drawn_by_are_those_of_every_model_trained_so_far(model: ModelConfig):
    """They were the paths in the tree: with other names, a seed would mean another model."""
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model)):
        assert spec.drawn_as == (jax.tree_util.keystr(path),)


def test_the_seed_decides(model: ModelConfig):
    np.testing.assert_array_equal(init_params(0, model)["head"], init_params(0, model)["head"])
    assert not np.array_equal(init_params(0, model)["head"], init_params(1, model)["head"])


def test_qk_norm_adds_a_gain_a_layer_shared_by_the_heads(model: ModelConfig):
    table = param_specs(model)["blocks"]
    more = param_specs(changed(model, qk_norm=True))["blocks"]
    added = {name: more.pop(name) for name in ("query_norm", "key_norm")}
    assert more == table
    assert {(spec.shape, spec.axes, spec.init, spec.group) for spec in added.values()} == {
        ((2, 8), ("layer", "head_dim"), Constant(1.0), "norms")
    }


def test_a_tied_head_is_no_weight(model: ModelConfig):
    table = param_specs(model)
    tied = param_specs(changed(model, tied_head=True))
    assert tied == {name: spec for name, spec in table.items() if name != "head"}


def test_qk_norm_and_a_tied_head_move_no_other_weight(model: ModelConfig):
    drawn = init_params(0, model)
    other = init_params(0, changed(model, qk_norm=True, tied_head=True))
    np.testing.assert_array_equal(drawn["embedding"], other["embedding"])
    for name, weight in drawn["blocks"].items():
        np.testing.assert_array_equal(weight, other["blocks"][name])


@pytest.mark.parametrize("fields", [{}, {"qk_norm": True}, {"tied_head": True}, {"qk_norm": True, "tied_head": True}], ids=str)
def test_each_weight_is_in_its_group(model: ModelConfig, fields: dict[str, bool]):
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(changed(model, **fields))):
        assert path[-1].key in MEMBERS[spec.group]
