"""Small real runs in which each intervention is seen at work: one tiny model, one compiled step, some hundred updates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import AdamW, ModelConfig
from phasewise.trainer.interventions import NO_LIMIT, Limit, Rolling, Scheduled, empty_window
from phasewise.trainer.metrics import PARAM_GROUPS
from phasewise.trainer.model.decoder import logits
from phasewise.trainer.model.params import Params, init_params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.state import TrainState
from phasewise.trainer.step import TrainStep, build_train_step

WINDOW = 16
CLIP = Limit(sigmas=2.0, min_samples=8)
SKIP = Limit(sigmas=6.0, min_samples=8)
STEADY = Scheduled(1e-2, z_loss=0.0, max_grad_norm=np.inf, ema_decay=0.95)
OPTIMIZER = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.05)
Batches = Callable[[int], np.ndarray]
Schedule = Callable[[int], Scheduled]


@pytest.fixture(scope="module")
def tiny(model: ModelConfig) -> ModelConfig:
    smaller = {"vocab_size": 64, "num_layers": 1, "d_model": 16, "d_ff": 24, "num_query_heads": 2, "num_kv_heads": 1}
    return model.but(**smaller)


@dataclass
class Trainer:
    """A fresh model and the compiled step."""

    model: ModelConfig
    step: TrainStep

    def start(self) -> TrainState:
        params = init_params(0, self.model)
        windows = Rolling(*(empty_window(WINDOW) for _ in range(3)))
        return TrainState(params, build_optimizer(OPTIMIZER, self.model).init(params), jax.tree.map(jnp.copy, params), windows)

    def run(self, updates: range, batches: Batches, schedule: Schedule, state: TrainState | None = None) -> tuple[TrainState, list[Any]]:
        """The state afterwards, and the `StepMetrics` of each update: all windows are there, so that none of their parts is None."""
        state = self.start() if state is None else state
        measured = list[Any]()
        for number in updates:
            state, of_update = self.step(state, batches(number), None, schedule(number))
            measured.append(jax.device_get(of_update))
        return state, measured


@pytest.fixture(scope="module")
def trainer(tiny: ModelConfig) -> Trainer:
    return Trainer(tiny, build_train_step(tiny, OPTIMIZER))


def counting(number: int, slips: float = 0.05) -> np.ndarray:
    """Eight rows that count on by 1 to 4, with some slips: something to learn, and something that can't be."""
    rng = np.random.default_rng(number)
    strides = rng.integers(1, 5, (8, 1))
    firsts = rng.integers(1, 63, (8, 1))
    tokens = 1 + (firsts + strides * np.arange(32)) % 63
    return np.where(rng.random(tokens.shape) < slips, rng.integers(1, 64, tokens.shape), tokens).astype(np.int32)


def spiky(number: int) -> np.ndarray:
    """From update 60 to 62 one token over and over."""
    return np.full((8, 32), 5, np.int32) if 60 <= number < 63 else counting(number)


def test_a_spike_is_clipped_at_two_deviations_above_the_mean_of_the_norms_before_it(trainer: Trainer):
    _, measured = trainer.run(range(70), spiky, lambda _: STEADY._replace(max_update_norm=CLIP))
    norms = np.array([m.direction_norm for m in measured], np.float64)
    for number, m in enumerate(measured):
        before = norms[max(number - WINDOW, 0) : number]
        limit = before.mean() + 2 * before.std() if number >= 8 else np.inf
        np.testing.assert_allclose(m.max_update_norm, limit, rtol=1e-4)
        np.testing.assert_allclose(m.update_norm, 1e-2 * min(norms[number], limit), rtol=1e-4)
    clipped = [number for number, m in enumerate(measured) if m.update_clip_factor < 0.99]
    assert set(clipped) & set(range(40, 70)) == {60, 61, 62}


def test_a_skipped_batch_leaves_the_run_as_if_it_had_never_come(trainer: Trainer):
    skipping = STEADY._replace(skip_step=SKIP)
    after, measured = trainer.run(range(61), spiky, lambda _: skipping)
    assert [number for number, m in enumerate(measured) if m.skipped] == [60]
    spike = measured[60]
    assert spike.loss > spike.max_loss
    assert spike.grad_norm > spike.max_skip_grad_norm
    after, _ = trainer.run(range(63, 80), spiky, lambda _: skipping, after)
    never, measured = trainer.run(range(60), counting, lambda _: skipping)
    never, more = trainer.run(range(63, 80), counting, lambda _: skipping, never)
    assert not any(m.skipped for m in measured + more)
    for part in ("params", "optimizer", "ema"):
        assert jax.tree.all(jax.tree.map(np.array_equal, getattr(after, part), getattr(never, part))), part
    assert after.rolling.losses is not None
    assert never.rolling.losses is not None
    assert int(after.rolling.losses.pushed) == int(never.rolling.losses.pushed) + 1


def test_z_loss_holds_the_head_in_a_deep_cooldown_and_without_it_the_head_grows(trainer: Trainer):
    """As in the record's Spoonbill runs: the rate falls to a hundredth, the text is easier than before, and weight decay falls asleep."""

    def head_after_cooldown(z_loss: float) -> tuple[float, float]:
        def schedule(number: int) -> Scheduled:
            rate = 1e-2 if number < 150 else 1e-2 * 0.01 ** ((number - 150) / 250)
            return STEADY._replace(learning_rate=rate, max_grad_norm=1.0, z_loss=z_loss if number >= 150 else 0.0)

        _, measured = trainer.run(range(400), lambda number: counting(number, slips=0.05 if number < 150 else 0.0), schedule)
        heads = [float(m.param_norms[list(PARAM_GROUPS).index("lm_head")]) for m in measured]
        assert measured[-1].loss < measured[149].loss - 0.5  # both learn
        return heads[149], heads[-1]

    before, with_it = head_after_cooldown(1e-2)
    same, without_it = head_after_cooldown(0.0)
    assert before == same
    assert with_it < 1.03 * before
    assert without_it > 1.15 * before


def test_the_average_s_lead_is_positive_and_stable_at_a_constant_rate(trainer: Trainer):
    """What a cooldown would gain, seen without one: the record's 8B was 0.015 bits per byte ahead throughout Ocelot."""
    held_out = np.concatenate([counting(number) for number in range(10_000, 10_016)])

    @jax.jit
    def evaluate(params: Params) -> jax.Array:
        chosen = jax.nn.log_softmax(logits(params, jnp.asarray(held_out), trainer.model)[:, :-1])
        return -jnp.mean(jnp.take_along_axis(chosen, held_out[:, 1:, None], axis=-1))

    state, _ = trainer.run(range(240), counting, lambda _: STEADY)
    gaps: list[float] = []
    for first in range(240, 400, 20):
        state, _ = trainer.run(range(first, first + 20), counting, lambda _: STEADY, state)
        assert state.ema is not None
        gaps.append(float(evaluate(state.params) - evaluate(state.ema)))
    assert min(gaps) > 0.02
    assert np.std(gaps) < 0.4 * np.mean(gaps)


def test_switched_on_the_clip_finds_its_history(trainer: Trainer):
    """It was off for 20 updates, and clips at once: a window of its own time would need 8 more."""
    _, measured = trainer.run(
        range(21), counting, lambda number: STEADY._replace(max_update_norm=Limit(-3.0, 8) if number >= 20 else NO_LIMIT)
    )
    assert all(m.update_clip_factor == 1 for m in measured[:20])
    assert measured[20].update_clip_factor < 1


def test_while_the_average_is_off_it_is_the_weights(trainer: Trainer):
    state, _ = trainer.run(range(12), counting, lambda number: STEADY._replace(ema_decay=0.9 if number < 6 else 0.0))
    assert jax.tree.all(jax.tree.map(np.array_equal, state.ema, state.params))
    state, _ = trainer.run(range(12, 14), counting, lambda _: STEADY, state)
    assert not jax.tree.all(jax.tree.map(np.array_equal, state.ema, state.params))
