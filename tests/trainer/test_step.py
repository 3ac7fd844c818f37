"""One update against a plain NumPy AdamW with clipping, decay mask, z-loss and a moving average."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.config import AdamW, RunConfig
from trainer.loss import LossSums, loss_sums
from trainer.metrics import PARAM_GROUPS
from trainer.model.decoder import logits
from trainer.model.params import Params, decay_mask, param_specs
from trainer.state import TrainState, abstract_state, init_state
from trainer.step import Scheduled, StepMetrics, TrainStep, build_train_step, clip_factor, group_norms, moving_average

MakeRun = Callable[..., RunConfig]
SumsAndGradients = Callable[[Params, np.ndarray, float], tuple[LossSums, Params]]
NUM_TARGETS = 4 * 31


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    return make_run("step")


@pytest.fixture(scope="module")
def train_step(run: RunConfig) -> TrainStep:
    return build_train_step(run.model, run.optimizer)


@pytest.fixture(scope="module")
def sums_and_gradients(run: RunConfig) -> SumsAndGradients:
    """Of mean cross-entropy plus z-loss times mean squared log-partition, by jax; each part is held against NumPy where it is at home."""

    def objective(params: Params, tokens: jax.Array, z_loss: float) -> tuple[jax.Array, LossSums]:
        sums = loss_sums(logits(params, tokens, run.model), tokens)
        return (sums.cross_entropy + z_loss * sums.squared_log_z) / NUM_TARGETS, sums

    def both(params: Params, tokens: jax.Array, z_loss: float) -> tuple[LossSums, Params]:
        (_, sums), gradients = jax.value_and_grad(objective, has_aux=True)(params, tokens, z_loss)
        return sums, gradients

    return jax.jit(both)


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 32)).astype(np.int32)


def in_numpy(tree: Any) -> Any:
    """A copy that outlives the donation of its source."""
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), tree)


class Reference(NamedTuple):
    """Weights, moments and moving average in float64."""

    params: Params
    first: Params
    second: Params
    ema: Params


def norm(tree: Params) -> float:
    return float(np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(tree))))


def reference_update(before: Reference, grads: Params, count: int, scheduled: Scheduled, run: RunConfig) -> Reference:
    """Loshchilov and Hutter (2019), Algorithm 2, weight by weight, after clipping by the global norm; then the average."""
    config = run.optimizer
    assert isinstance(config, AdamW)
    scale = min(1.0, scheduled.max_grad_norm / norm(grads))
    decays = decay_mask(run.model)

    def update(theta: np.ndarray, grad: np.ndarray, m: np.ndarray, v: np.ndarray, ema: np.ndarray, decay: bool) -> tuple[np.ndarray, ...]:
        m = config.beta1 * m + (1 - config.beta1) * scale * grad
        v = config.beta2 * v + (1 - config.beta2) * (scale * grad) ** 2
        m_hat, v_hat = m / (1 - config.beta1**count), v / (1 - config.beta2**count)
        direction = m_hat / (np.sqrt(v_hat) + config.epsilon) + (config.weight_decay * theta if decay else 0.0)
        theta = theta - scheduled.learning_rate * direction
        return theta, m, v, scheduled.ema_decay * ema + (1 - scheduled.ema_decay) * theta

    updated = jax.tree.map(update, before.params, grads, before.first, before.second, before.ema, decays)
    return Reference(
        *(jax.tree.map(lambda leaves, n=n: leaves[n], updated, is_leaf=lambda leaf: isinstance(leaf, tuple)) for n in range(4))
    )


def norms_by_group(tree: Params) -> list[float]:
    """Written out: nobody's table but this test's."""
    blocks = tree["blocks"]
    attention = [blocks[name] for name in ("query", "key", "value", "output")]
    mlp, norms = [blocks[name] for name in ("gate", "up", "down")], [blocks["attention_norm"], blocks["mlp_norm"], tree["final_norm"]]
    return [norm({"": group}) for group in (tree["embedding"], attention, mlp, norms, tree["head"])]


def assert_close(found: Params, expected: Params, *, atol: float) -> None:
    for (path, leaf), wanted in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


SCHEDULES = [
    Scheduled(learning_rate=0.02, z_loss=0.0, max_grad_norm=np.inf, ema_decay=0.9),
    Scheduled(learning_rate=0.01, z_loss=0.1, max_grad_norm=0.05, ema_decay=0.5),
    Scheduled(learning_rate=0.04, z_loss=0.0, max_grad_norm=0.5, ema_decay=0.0),
]


def test_updates_are_those_of_a_plain_adamw(
    run: RunConfig, train_step: TrainStep, sums_and_gradients: SumsAndGradients, tokens: np.ndarray
):
    state = init_state(run)
    zeros = in_numpy(jax.tree.map(jnp.zeros_like, state.params))
    expected = Reference(in_numpy(state.params), zeros, zeros, in_numpy(state.params))
    for count, scheduled in enumerate(SCHEDULES, start=1):
        grads = in_numpy(sums_and_gradients(state.params, tokens, scheduled.z_loss)[1])
        before = expected
        expected = reference_update(expected, grads, count, scheduled, run)
        state, measured = train_step(state, tokens, scheduled)
        adam, *_ = cast(tuple[Any, ...], state.optimizer)
        assert (norm(grads) > scheduled.max_grad_norm) == (count > 1)  # clipping is off in the first update and bites in the others
        largest = scheduled.learning_rate  # Adam's direction is about one for each weight
        assert_close(adam.mu, expected.first, atol=1e-6)
        assert_close(adam.nu, expected.second, atol=1e-7)
        assert_close(state.params, expected.params, atol=2e-3 * largest)
        assert state.ema is not None
        assert_close(state.ema, expected.ema, atol=2e-3 * largest)
        assert float(measured.grad_norm) == pytest.approx(norm(grads), rel=1e-5)
        moved = jax.tree.map(np.subtract, expected.params, before.params)
        assert float(measured.update_norm) == pytest.approx(norm(moved), rel=1e-3)
        assert float(measured.param_norm) == pytest.approx(norm(expected.params), rel=1e-4)
        np.testing.assert_allclose(measured.grad_norms, norms_by_group(grads), rtol=1e-5)
        np.testing.assert_allclose(measured.update_norms, norms_by_group(moved), rtol=2e-3)
        np.testing.assert_allclose(measured.param_norms, norms_by_group(expected.params), rtol=1e-4)
        lag = norm(jax.tree.map(np.subtract, expected.params, expected.ema)) / norm(expected.params)
        assert measured.ema_distance is not None
        assert float(measured.ema_distance) == pytest.approx(lag, rel=1e-3, abs=1e-7)


def test_the_metrics_are_those_of_the_weights_before_the_update(
    run: RunConfig, train_step: TrainStep, sums_and_gradients: SumsAndGradients, tokens: np.ndarray
):
    state = init_state(run)
    sums, _ = sums_and_gradients(state.params, tokens, 0.3)
    _, measured = train_step(state, tokens, Scheduled(0.02, 0.3, 1.0, 0.9))
    assert float(measured.loss) == pytest.approx(float(sums.cross_entropy) / NUM_TARGETS, rel=1e-6)  # z-loss is not in it
    assert float(measured.log_z_squared) == pytest.approx(float(sums.squared_log_z) / NUM_TARGETS, rel=1e-6)


def test_z_loss_pulls_the_partition_function_down(run: RunConfig, train_step: TrainStep, tokens: np.ndarray):
    def after_updates(z_loss: float) -> StepMetrics:
        state, measured = init_state(run), None
        for _ in range(8):
            state, measured = train_step(state, tokens, Scheduled(3e-3, z_loss, 1.0, 0.9))
        assert measured is not None
        return measured

    assert float(after_updates(1.0).log_z_squared) < float(after_updates(0.0).log_z_squared) - 1.0


def test_without_an_average_there_is_none_afterwards(run: RunConfig, train_step: TrainStep, tokens: np.ndarray):
    after, measured = jax.eval_shape(train_step, abstract_state(run, with_ema=False), tokens, SCHEDULES[0])
    assert after.ema is None
    assert measured.ema_distance is None


def test_each_weight_is_in_exactly_one_group(run: RunConfig):
    declared = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(param_specs(run.model))]
    grouped = [name for names in PARAM_GROUPS.values() for name in names]
    assert {name: grouped.count(name) for name in declared} == dict.fromkeys(declared, 1)


def test_the_groups_together_are_the_whole(run: RunConfig):
    params = init_state(run).params
    assert float(np.linalg.norm(group_norms(params))) == pytest.approx(norm(params), rel=1e-6)


def test_a_schedule_compiles_nothing_anew(run: RunConfig, train_step: TrainStep, tokens: np.ndarray):
    state, _ = train_step(init_state(run), tokens, SCHEDULES[0])
    compiled = train_step._cache_size()  # pyright: ignore[reportFunctionMemberAccess]  # what jit returns has it
    for scheduled in SCHEDULES:
        state, _ = train_step(state, tokens, scheduled)
    assert train_step._cache_size() == compiled  # pyright: ignore[reportFunctionMemberAccess]  # see above


@pytest.mark.parametrize(
    ("norm", "limit", "factor"), [(2.0, 1.0, 0.5), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (1e30, np.inf, 1.0)]
)
def test_clip_factor(norm: float, limit: float, factor: float):
    assert float(clip_factor(jnp.float32(norm), limit)) == factor


def test_clipping_does_not_hide_what_is_no_number():
    assert np.isnan(float(clip_factor(jnp.float32(np.nan), 1.0)))


def test_the_average_keeps_most_of_what_it_was():
    """The other way round it would follow the weights: 0.1 · old + 0.9 · new."""
    averaged = moving_average({"w": jnp.array([1.0])}, {"w": jnp.array([2.0])}, 0.9)
    assert float(averaged["w"][0]) == pytest.approx(1.1)


def test_a_fresh_state_s_average_is_its_weights(run: RunConfig):
    state: TrainState = init_state(run)
    assert state.ema is not None
    assert jax.tree.all(jax.tree.map(np.array_equal, state.ema, state.params))
