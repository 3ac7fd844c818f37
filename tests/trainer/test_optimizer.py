from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer import optimizer
from phasewise.trainer.config import AdamC, AdamW, ModelConfig, Muon, NAdamW, Optimizer
from phasewise.trainer.model.params import Params, init_params, param_specs
from phasewise.trainer.optimizer import build_optimizer, moments, orthogonal_directions, orthogonalise
from tests.trainer.optimizer_reference import Reference, in_numpy

MATRICES = {"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1}  # how many axes each reads from


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tied_head", [False, True])
def test_matrices_of_the_blocks_are_muon_s_and_nothing_else_is(model: ModelConfig, qk_norm: bool, tied_head: bool):
    leaves = jax.tree_util.tree_leaves_with_path(param_specs(model.but(qk_norm=qk_norm, tied_head=tied_head)))
    assert {path[-1].key: spec.inputs for path, spec in leaves if spec.updated_by == "muon"} == MATRICES


def test_muon_takes_no_weight_that_is_no_stacked_matrix(model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    table = param_specs(model)
    monkeypatch.setattr(optimizer, "param_specs", lambda config: {"head": replace(table["head"], updated_by="muon")})
    with pytest.raises(AssertionError, match="Muon takes stacked matrices"):
        build_optimizer(MUON, model)


MUON = Muon(
    kind="muon", momentum=0.95, nesterov=True, newton_schulz_steps=5, epsilon=1e-8, weight_decay=0.1,
    adam=AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1), adam_learning_rate_scale=1.0,
)  # fmt: skip


def matrix(rng: np.random.Generator, values: list[float], rows: int, columns: int) -> np.ndarray:
    left, right = (np.linalg.qr(rng.normal(size=(size, len(values))))[0] for size in (rows, columns))
    return (left * np.array(values)) @ right.T


@pytest.mark.parametrize(("coefficients", "least", "most"), [("jordan", 0.65, 1.25), ("dion", 0.75, 1.05)])
@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (6, 17), (17, 6)])
def test_singular_values_come_near_one_and_directions_stay(rows: int, columns: int, coefficients: str, least: float, most: float):
    values = [100.0, 60.0, 30.0, 10.0, 5.0, 2.0]  # after division by the norm the smallest is 0.016
    given = matrix(np.random.default_rng(0), values, rows, columns)
    found = np.asarray(orthogonalise(jnp.asarray(given, jnp.float32), 5, 1e-8, coefficients), np.float64)
    left, _, right = np.linalg.svd(given, full_matrices=False)
    kept = left.T @ found @ right.T
    np.testing.assert_allclose(kept, np.diag(np.diag(kept)), atol=1e-4)
    assert np.all((np.diag(kept) > least) & (np.diag(kept) < most))


@pytest.mark.parametrize(("inputs", "outputs"), [(6, 10), (10, 6)])
def test_each_expert_is_a_matrix_of_its_own(inputs: int, outputs: int):
    momentum = np.random.default_rng(3).normal(size=(2, 3, inputs, outputs)).astype(np.float32)
    momentum *= np.array([1, 100, 0.01], np.float32)[:, None, None]  # flattened, the second would leave nothing to the others
    found = np.asarray(orthogonal_directions(jnp.asarray(momentum), MUON, batch_axes=1, input_axes=1))
    for layer, expert in np.ndindex(2, 3):
        alone = orthogonal_directions(jnp.asarray(momentum[layer, expert][None]), MUON, batch_axes=0, input_axes=1)[0]
        np.testing.assert_allclose(found[layer, expert], alone, atol=1e-5)
    singular = np.linalg.svd(found, compute_uv=False) / max(1, outputs / inputs) ** 0.5
    assert 0.6 < singular.min() < singular.max() < 1.25


ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": ADAMW,
    "adamc": AdamC(kind="adamc", beta1=0.8, beta2=0.99, epsilon=1e-8, weight_decay=0.3, peak_learning_rate=0.02),
    "nadamw": NAdamW(kind="nadamw", beta1=0.95, beta2=0.9, epsilon=1e-6, weight_decay=0.2),
    "muon": Muon(
        kind="muon", momentum=0.98, nesterov=True, newton_schulz_steps=5, epsilon=1e-8, weight_decay=0.1,
        adam=AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.4), adam_learning_rate_scale=0.35,
        max_adam_grad_norm=0.5,
    ),
    "muon of Dion": Muon(
        kind="muon", momentum=0.9, nesterov=True, newton_schulz_steps=5, epsilon=1e-7, weight_decay=0.1, adam=ADAMW,
        adam_learning_rate_scale=1.0, newton_schulz_coefficients="dion",
    ),
    "muon of four steps": Muon(
        kind="muon", momentum=0.9, nesterov=False, newton_schulz_steps=4, epsilon=1e-3, weight_decay=0.0, adam=ADAMW,
        adam_learning_rate_scale=1.0,
    ),
}  # fmt: skip
UPDATES = [(0.02, 1.0), (0.01, 0.5), (0.05, 2.5), (0.0, 0.0), (0.02, 1.0)]  # learning rate and decay scale of each update


@pytest.fixture(scope="module")
def lopsided(model: ModelConfig) -> ModelConfig:
    """No two sides of its matrices are alike, so that none can be taken for another."""
    return model.but(d_model=20, d_ff=44, num_query_heads=6, head_dim=6)


def random_like(params: Params, rng: np.random.Generator, scale: float = 1.0) -> Params:
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), params)


@pytest.mark.parametrize("config", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_directions_are_those_of_the_reference(lopsided: ModelConfig, config: Optimizer):
    optimizer = build_optimizer(config, lopsided)
    rng = np.random.default_rng(0)
    params = random_like(init_params(0, lopsided), rng)
    state = optimizer.init(params)
    wanted = Reference(config, in_numpy(params))
    update = jax.jit(optimizer.update)
    for rate, decay_scale in UPDATES:
        grads = random_like(params, rng, scale=0.3)
        expected = wanted.update(in_numpy(grads), in_numpy(params), decay_scale)
        direction, state = update(grads, state, params, decay_scale)
        for name, found in in_numpy(direction).items():
            np.testing.assert_allclose(found, expected[name], rtol=0, atol=2e-5, err_msg=name)
        params = jax.tree.map(lambda weight, d, rate=rate: weight - rate * d, params, direction)
    first, second = (in_numpy(tree) for tree in moments(state, lopsided))
    assert first.keys() == second.keys() == wanted.m.keys()
    for name in wanted.m:
        np.testing.assert_allclose(first[name], wanted.m[name], rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(np.sum(second[name]), np.sum(wanted.v[name]), rtol=1e-4, err_msg=name)


def test_the_kinds_of_adam_can_go_on_from_one_another_s_state(model: ModelConfig):
    shapes = [jax.eval_shape(build_optimizer(OPTIMIZERS[kind], model).init, init_params(0, model)) for kind in ("adamw", "adamc", "nadamw")]
    assert shapes[0] == shapes[1] == shapes[2]
