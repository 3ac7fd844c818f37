from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import Execution, ModelConfig, RunConfig
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.model.params import expert_layers, param_specs, stacks
from phasewise.trainer.model.router import BIAS
from phasewise.trainer.recorder import routing_values
from phasewise.trainer.step import StepMetrics, TrainState, build_objective, build_train_step, init_state
from tests.trainer.conftest import MakeRun, metric_of
from tests.trainer.model.families import SMEBU, SPARSE

ROWS = np.random.default_rng(5).integers(2, 256, (4, 32)).astype(np.int32)
ONE = np.ones_like(ROWS)


@pytest.fixture(scope="module")
def sparse(model: ModelConfig) -> ModelConfig:
    return model.but(**SPARSE)


@pytest.fixture(scope="module")
def run(make_run: MakeRun, sparse: ModelConfig) -> RunConfig:
    return make_run("routing", model=sparse)


def updated(run: RunConfig, *, steps: int = 1, **execution: Any) -> tuple[TrainState, TrainState, StepMetrics]:
    """The state before, after so many updates on the same rows, and what the last one measured."""
    before, state, measured = init_state(run), init_state(run), None
    step = build_train_step(run.model, run.optimizer, Execution(**execution))
    for number in range(steps):
        state, measured = step(state, ROWS, ONE, scheduled_at(run, number + 1))
    assert measured is not None
    return before, state, measured


def biases(state: TrainState, model: ModelConfig) -> dict[int, np.ndarray]:
    return {
        layer: np.asarray(state.params[stack.name][BIAS][number])
        for stack in stacks(model)
        if stack.kind.has_experts
        for number, layer in enumerate(stack.layers)
    }


@pytest.fixture(scope="module")
def one(run: RunConfig) -> tuple[TrainState, TrainState, StepMetrics]:
    return updated(run)


def test_each_layer_s_bias_moves_by_its_own_counts(one: tuple[TrainState, TrainState, StepMetrics], sparse: ModelConfig):
    before, after, measured = one
    assert measured.routing is not None
    loads = np.asarray(measured.routing.expert_loads)
    for number, (layer, bias) in enumerate(sorted(biases(after, sparse).items())):
        step = 1e-3 * np.sign(1 / 4 - np.round(loads[number] * 256) / 256)
        np.testing.assert_allclose(bias, biases(before, sparse)[layer] + step - step.mean(), atol=1e-9)
    assert len({tuple(bias) for bias in biases(after, sparse).values()}) > 1, "layers with other loads must move otherwise"


def test_parts_of_a_batch_give_the_counts_of_the_whole(run: RunConfig, one: tuple[TrainState, TrainState, StepMetrics]):
    _, whole, measured = one
    _, parted, in_parts = updated(run, microbatch_sequences=2)
    assert measured.routing is not None
    assert in_parts.routing is not None
    np.testing.assert_array_equal(np.asarray(measured.routing.expert_loads), np.asarray(in_parts.routing.expert_loads))
    for layer, bias in biases(whole, run.model).items():
        np.testing.assert_array_equal(bias, biases(parted, run.model)[layer])


def test_no_optimizer_and_no_decay_moves_a_bias(run: RunConfig, sparse: ModelConfig):
    assert sparse.experts is not None
    still = sparse.but(experts=sparse.experts.but(balancing=None))
    before, after, _ = updated(run.but(model=still), steps=2)
    for path, leaf in jax.tree_util.tree_leaves_with_path(after.params):
        was = dict(jax.tree_util.tree_leaves_with_path(before.params))[path]
        assert np.array_equal(leaf, was) == (path[-1].key == BIAS), path


def test_smebu_keeps_its_momentum_in_the_state(run: RunConfig, sparse: ModelConfig):
    assert sparse.experts is not None
    smooth = run.but(model=sparse.but(experts=sparse.experts.but(balancing=SMEBU)))
    assert init_state(run).balancing is None
    _, after, _ = updated(smooth, steps=2)
    assert after.balancing is not None
    for stack in stacks(sparse):
        if stack.kind.has_experts:
            momentum = np.asarray(after.balancing[stack.name][BIAS])
            assert momentum.shape == param_specs(sparse)[stack.name][BIAS].shape
            assert np.abs(momentum).max() > 0
            np.testing.assert_allclose(momentum.sum(axis=-1), 0, atol=1e-9)


def test_an_update_that_is_skipped_moves_no_bias(run: RunConfig):
    limit = {"window": 4, "min_samples": 2, "sigmas": 0.01}
    stability = run.stability.model_dump() | {"skip_step": [[0, limit]]}
    guarded = RunConfig.model_validate({**run.model_dump(), "stability": stability})
    step, state, scheduled = build_train_step(run.model, run.optimizer), init_state(guarded), scheduled_at(guarded, 3)
    for _ in range(2):
        state, _ = step(state, ROWS, ONE, scheduled)
    before = biases(jax.tree.map(jnp.copy, state), run.model)
    state, measured = step(state, ROWS[::-1] % 7 + 100, ONE, scheduled)
    assert measured.skipped is not None
    assert bool(measured.skipped)
    for layer, bias in biases(state, run.model).items():
        np.testing.assert_array_equal(bias, before[layer])


def test_padding_that_overflows_is_a_share_of_what_was_computed(run: RunConfig):
    documents = ONE.copy()
    documents[:, 2:] = 0
    _, measured = build_train_step(run.model, run.optimizer)(init_state(run), np.where(documents, ROWS, 9), documents, scheduled_at(run, 1))
    assert measured.routing is not None
    assert 0.1 < float(measured.routing.overflowed) <= 1


def test_the_sequence_loss_is_added_with_its_weight(sparse: ModelConfig, run: RunConfig):
    params = init_state(run).params
    assert sparse.experts is not None
    weighed = sparse.but(experts=sparse.experts.but(sequence_loss=0.5))
    plain, sums = jax.jit(build_objective(sparse, Execution()))(params, jnp.asarray(ROWS), jnp.asarray(ONE), 0.0)
    added, more = jax.jit(build_objective(weighed, Execution()))(params, jnp.asarray(ROWS), jnp.asarray(ONE), 0.0)
    assert sums.routing is not None
    of_layers = np.asarray(sums.routing.sequence_loss) / ROWS.size
    assert (of_layers >= 0.99).all()
    assert float(added - plain) == pytest.approx(0.5 * of_layers.sum() * float(sums.tokens), rel=1e-4)
    assert float(more.cross_entropy) == float(sums.cross_entropy)


def test_what_is_measured_has_names_of_the_table(one: tuple[TrainState, TrainState, StepMetrics], sparse: ModelConfig):
    measured, layers = one[2].routing, expert_layers(sparse)
    assert measured is not None
    assert layers == (0, 1)
    values = routing_values(measured, layers, of_layers=True)
    assert all(metric_of(name) is not None for name in values)
    assert values["max_violation"] == max(values[f"max_violation/{layer}"] for layer in layers)
    assert sum(values[f"expert_load/1/{expert}"] for expert in range(4)) == pytest.approx(1, rel=1e-6)
    assert 0 < values["router_entropy"] <= 1
    names = {"max_violation", "dead_experts", "router_entropy", "sequence_loss", "overflowed"}
    assert set(routing_values(measured, layers, of_layers=False)) == names
