import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import AdamC, AdamW, Execution, ModelConfig, Muon, Optimizer
from phasewise.trainer.interventions import Limit, Rolling, Scheduled, Window
from phasewise.trainer.model.params import Params, init_params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.step import StepMetrics, TrainState, TrainStep, abstract_state, build_train_step
from tests.trainer.conftest import MakeRun
from tests.trainer.model.families import logits
from tests.trainer.optimizer_reference import in_numpy
from tests.trainer.step_reference import StepReference, norm

WINDOW = 4
ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-4, weight_decay=0.1)
OPTIMIZERS: dict[str, Optimizer] = {
    "adamc": AdamC(kind="adamc", beta1=0.9, beta2=0.95, epsilon=1e-4, weight_decay=0.1, peak_learning_rate=0.02),
    "muon": Muon(
        kind="muon", momentum=0.95, nesterov=True, newton_schulz_steps=5, epsilon=1e-8, weight_decay=0.1, adam=ADAMW,
        adam_learning_rate_scale=0.5,
    ),
}  # fmt: skip
LOOSE, TIGHT, BELOW_MEAN = (Limit(6.0, 2), Limit(0.5, 2), Limit(-0.5, 2))  # norms of updates fall: a limit above their mean would not bite
SCHEDULES = [
    Scheduled(0.010, z_loss=0.0, max_grad_norm=math.inf, ema_decay=0.0, decay_scale=0.5, max_update_rms=math.inf),
    Scheduled(0.005, z_loss=0.1, max_grad_norm=0.05, ema_decay=0.5, decay_scale=1.0, max_update_rms=0.1),
    Scheduled(0.020, z_loss=0.0, max_grad_norm=0.50, ema_decay=0.9, max_update_rms=math.inf, max_update_norm=BELOW_MEAN, skip_step=LOOSE),
    Scheduled(0.010, z_loss=0.1, max_grad_norm=9.00, ema_decay=0.9, max_update_rms=0.2, max_update_norm=BELOW_MEAN, skip_step=LOOSE),
    Scheduled(0.010, z_loss=0.0, max_grad_norm=1.00, ema_decay=0.9, max_update_rms=0.2, max_update_norm=BELOW_MEAN, skip_step=TIGHT),
    Scheduled(0.010, z_loss=0.0, max_grad_norm=1.00, ema_decay=0.9, max_update_rms=math.inf, max_update_norm=LOOSE),
    Scheduled(0.010, z_loss=0.2, max_grad_norm=0.10, ema_decay=0.0, max_update_rms=0.15, max_update_norm=BELOW_MEAN, skip_step=TIGHT),
]
"""Everything is switched on, off and on again, and every other change."""
ONE_DOCUMENT = np.ones((4, 32), np.int32)


class Means(NamedTuple):
    cross_entropy: jax.Array
    squared_log_z: jax.Array


Gradients = Callable[[Params, np.ndarray, float], tuple[Params, Means]]


@dataclass
class Trainer:
    model: ModelConfig
    optimizer: Optimizer
    step: TrainStep

    def state(self, *, with_windows: bool = True) -> TrainState:
        params = init_params(7, self.model)
        windows = Rolling(*(Window(jnp.zeros(WINDOW), jnp.int32(0)) for _ in range(3))) if with_windows else Rolling()
        return TrainState(params, build_optimizer(self.optimizer, self.model).init(params), jax.tree.map(jnp.copy, params), windows)

    def update(self, state: TrainState, tokens: np.ndarray, scheduled: Scheduled) -> tuple[TrainState, StepMetrics]:
        return self.step(state, tokens, np.ones(tokens.shape, np.int32), scheduled)


@pytest.fixture(scope="module")
def gradients(model: ModelConfig) -> Gradients:
    """Of the plain objective, from all logits: mean cross-entropy plus z_loss times mean squared log-partition."""

    def objective(params: Params, tokens: jax.Array, z_loss: float) -> tuple[jax.Array, Means]:
        predictions = logits(params, tokens, model)[:, :-1]
        log_z = jax.nn.logsumexp(predictions, axis=-1)
        chosen = jnp.take_along_axis(predictions, tokens[:, 1:, None], axis=-1)[..., 0]
        means = Means(jnp.mean(log_z - chosen), jnp.mean(log_z**2))
        return means.cross_entropy + z_loss * means.squared_log_z, means

    return jax.jit(jax.grad(objective, has_aux=True))


@pytest.fixture(scope="module")
def trainers(model: ModelConfig) -> dict[str, Trainer]:
    return {name: Trainer(model, config, build_train_step(model, config)) for name, config in OPTIMIZERS.items()}


@pytest.fixture(scope="module")
def trainer(trainers: dict[str, Trainer]) -> Trainer:
    return trainers["adamc"]


def batch(seed: int) -> np.ndarray:
    """Every third batch is one token over and over: what it asks for is out of line with the others."""
    if seed % 3 == 2:
        return np.full((4, 32), 17 + seed, np.int32)
    return np.random.default_rng(seed).integers(0, 256, (4, 32)).astype(np.int32)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_reference(trainers: dict[str, Trainer], gradients: Gradients, name: str):
    trainer = trainers[name]
    state = trainer.state()
    reference = StepReference(trainer.optimizer, in_numpy(state.params), WINDOW)
    seen = dict.fromkeys(("skipped", "grad_clip_factor", "rms_clip_factor", "update_clip_factor"), 0)
    for number in range(3 * len(SCHEDULES)):
        scheduled = SCHEDULES[number % len(SCHEDULES)]
        tokens = batch(number)
        grads, means = gradients(state.params, tokens, scheduled.z_loss)
        loss = float(means.cross_entropy)
        reference.update(loss, in_numpy(grads), scheduled)
        state, measured = trainer.update(state, tokens, scheduled)
        assert float(measured.loss) == pytest.approx(loss, rel=1e-5)
        for name, expected in reference.measured.items():
            assert float(getattr(measured, name)) == pytest.approx(float(expected), rel=2e-3), (number, name)
        seen["skipped"] += bool(measured.skipped)
        for name in list(seen)[1:]:
            seen[name] += float(getattr(measured, name)) < 0.999 and not bool(measured.skipped)
        for found, expected in ((state.params, reference.params), (state.ema, reference.ema)):
            for name, leaf in in_numpy(found).items():
                np.testing.assert_allclose(leaf, expected[name], rtol=0, atol=3e-4, err_msg=f"{number} {name}")
        assert_windows(state.rolling, reference)
    assert all(2 <= times <= 3 * len(SCHEDULES) - 2 for times in seen.values()), seen


def assert_windows(rolling: Rolling, reference: StepReference) -> None:
    for name in ("losses", "grad_norms", "update_norms"):
        window = getattr(rolling, name)
        found = np.asarray(window.values)[: int(window.pushed)]
        np.testing.assert_allclose(np.sort(found), np.sort(getattr(reference, name)), rtol=2e-3, err_msg=name)


def test_a_switch_compiles_nothing_again_and_the_old_state_s_memory_is_taken(trainer: Trainer):
    state = trainer.state()
    after, _ = trainer.update(state, batch(0), SCHEDULES[0])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    compiled = trainer.step._cache_size()  # pyright: ignore[reportFunctionMemberAccess]  # what jit returns has it
    for scheduled in SCHEDULES:
        after, _ = trainer.update(after, batch(0), scheduled)
    assert trainer.step._cache_size() == compiled  # pyright: ignore[reportFunctionMemberAccess]  # see above


def test_a_skipped_update_leaves_every_bit_but_the_windows_of_skip_step(trainer: Trainer):
    state = trainer.state()
    for _ in range(4):
        state, _ = trainer.update(state, batch(0), SCHEDULES[0])
    before = jax.device_get(state)
    after, measured = trainer.update(state, batch(2), SCHEDULES[0]._replace(skip_step=Limit(2.0, 2), max_update_norm=TIGHT))
    assert bool(measured.skipped)
    assert float(measured.update_norm) == 0.0
    kept, now = (tree._replace(rolling=tree.rolling._replace(losses=None, grad_norms=None)) for tree in (before, jax.device_get(after)))
    assert jax.tree.all(jax.tree.map(np.array_equal, kept, now))
    assert after.rolling.losses is not None
    assert int(after.rolling.losses.pushed) == 5


def test_skip_step_by_update_norm_skips_a_planted_spike_that_loss_and_gradients_do_not_show(trainer: Trainer):
    limit = Limit(2.0, 2)
    windows = trainer.state().rolling
    by_norm = Rolling(skip_update_norms=windows.update_norms)
    norms: list[float] = []
    state = cast(Any, trainer.state()._replace(rolling=by_norm))
    for _ in range(3):
        state, measured = cast(Any, trainer.update(state, batch(0), SCHEDULES[0]._replace(skip_step=limit)))
        assert not bool(measured.skipped)
        norms.append(float(measured.direction_norm))
    # a second moment of zero makes Adam's step long, whatever the gradients are
    small = state.optimizer._replace(nu=jax.tree.map(lambda leaf: 1e-4 * leaf, state.optimizer.nu))
    before = jax.device_get(state._replace(optimizer=small))
    after, measured = cast(Any, trainer.update(jax.device_put(before), batch(0), SCHEDULES[0]._replace(skip_step=limit)))
    assert float(measured.max_skip_update_norm) == pytest.approx(np.mean(norms) + 2 * np.std(norms), rel=1e-5)
    assert float(measured.direction_norm) > 2 * float(measured.max_skip_update_norm)
    assert (bool(measured.skipped), float(measured.update_norm), measured.max_loss) == (True, 0.0, None)
    kept, now = (tree._replace(rolling=None) for tree in (before, jax.device_get(after)))
    assert jax.tree.all(jax.tree.map(np.array_equal, kept, now))
    window = after.rolling.skip_update_norms
    np.testing.assert_allclose(np.asarray(window.values), [*norms, float(measured.direction_norm)], rtol=1e-6)
    of_before = (float(measured.loss), float(measured.grad_norm), norms[0])
    as_before = Rolling(*(Window(jnp.full(WINDOW, value), jnp.int32(WINDOW)) for value in of_before))
    applied, measured = trainer.update(jax.device_put(before._replace(rolling=as_before)), batch(0), SCHEDULES[0]._replace(skip_step=LOOSE))
    assert not bool(measured.skipped)
    assert not jax.tree.all(jax.tree.map(np.array_equal, before.params, jax.device_get(applied.params)))


def test_what_is_no_number_is_skipped_and_does_not_enter_a_window(trainer: Trainer):
    state = trainer.state()
    state = state._replace(params={**state.params, "head": state.params["head"].at[3, 5].set(np.nan)})
    before = jax.device_get(state)
    after, measured = trainer.update(state, batch(0), SCHEDULES[0]._replace(skip_step=LOOSE))
    assert bool(measured.skipped)
    assert math.isnan(float(measured.loss))
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), before, jax.device_get(after)))


def test_where_a_phase_has_no_interventions_nothing_is_measured_of_them(trainer: Trainer, make_run: MakeRun):
    state = abstract_state(make_run("plain"), with_ema=False)
    after, measured = jax.eval_shape(trainer.step, state, batch(0), None, Scheduled(1e-3, 0.0, 1.0, 0.9))
    assert (after.ema, after.rolling) == (None, Rolling())
    absent = ("rms_clip_factor", "direction_norm", "max_update_norm", "update_clip_factor", "max_loss", "max_skip_grad_norm", "skipped")
    assert {getattr(measured, name) for name in (*absent, "max_skip_update_norm", "ema_distance")} == {None}


def test_a_batch_in_parts_is_the_whole_batch_also_where_padding_is_unequal(trainer: Trainer):
    tokens = np.random.default_rng(3).integers(1, 256, (4, 32)).astype(np.int32)
    used = np.array([32, 3, 1, 25])
    segment_ids = np.where(np.arange(32) < used[:, None], 1 + np.arange(32) // 8, 0).astype(np.int32)
    in_parts = build_train_step(trainer.model, trainer.optimizer, Execution(microbatch_sequences=2))
    scheduled = SCHEDULES[0]._replace(z_loss=0.1)
    whole, measured = trainer.step(trainer.state(), tokens, segment_ids, scheduled)
    summed, measured_in_parts = in_parts(trainer.state(), tokens, segment_ids, scheduled)
    for name in ("loss", "log_z_squared", "grad_norm", "grad_slots", "update_slots"):
        np.testing.assert_allclose(getattr(measured_in_parts, name), getattr(measured, name), rtol=1e-4, err_msg=name)
    for found, expected in zip(jax.tree.leaves(summed.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_padding_is_not_predicted_and_nothing_looks_at_it(trainer: Trainer, gradients: Gradients):
    tokens = np.random.default_rng(4).integers(1, 256, (4, 32)).astype(np.int32)
    segment_ids = np.where(np.arange(32) < 20, ONE_DOCUMENT, 0)
    other = np.where(segment_ids == 0, 9, tokens).astype(np.int32)
    one, two = (trainer.step(trainer.state(), rows, segment_ids, SCHEDULES[0])[1] for rows in (tokens, other))
    alone, means = gradients(trainer.state().params, tokens[:, :20], 0.0)
    assert float(one.loss) == float(two.loss) == pytest.approx(float(means.cross_entropy), rel=1e-5)
    assert float(one.grad_norm) == pytest.approx(norm(in_numpy(alone)), rel=1e-4)


def test_with_bfloat16_products_the_state_is_float32_and_follows_small_updates(model: ModelConfig):
    narrow = model.but(compute_dtype="bfloat16")
    trainer = Trainer(narrow, ADAMW, build_train_step(narrow, ADAMW))
    state, measured = trainer.update(trainer.state(), batch(0), SCHEDULES[0]._replace(learning_rate=1e-5))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"float32", "int32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(measured)} == {"float32", "bool"}
    moved = np.abs(np.asarray(state.params["final_norm"]) - 1)
    assert 0 < moved.max() < 1e-4
