import math
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.interventions import (
    NO_LIMIT,
    Limit,
    Window,
    clip_factor,
    clip_update_rms,
    empty_window,
    is_skipped,
    limit_from,
    push,
)
from phasewise.trainer.model.params import init_params
from phasewise.trainer.optimizer import weight_rules

values = st.lists(st.floats(0.125, 1024, width=32) | st.sampled_from([math.nan, math.inf]), max_size=40)


push_compiled = jax.jit(push)
limit_compiled = jax.jit(limit_from)


def pushed(numbers: list[float], length: int) -> Window:
    window = empty_window(length)
    for number in numbers:
        window = push_compiled(window, np.float32(number))
    return window


@given(numbers=values, length=st.sampled_from([2, 5, 9]), sigmas=st.floats(0.5, 6, width=32))
def test_the_limit_is_that_of_the_last_finite_values(numbers: list[float], length: int, sigmas: float):
    last = deque((number for number in numbers if math.isfinite(number)), maxlen=length)
    found = float(limit_compiled(pushed(numbers, length), Limit(sigmas, 2)))
    if len(last) < 2:
        assert found == math.inf
    else:
        assert found == pytest.approx(np.mean(last) + sigmas * max(np.std(last), 1e-6), rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_enter_a_window(bad: float):
    before = pushed([1.0, 2.0], 4)
    after = push(before, jnp.float32(bad))
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))


@pytest.mark.parametrize(
    ("loss", "grad_norm", "skipped"),
    [
        (2.0, 1.0, False),
        (3.0, 4.0, False),  # at the limits
        (3.1, 1.0, True),
        (2.0, 4.1, True),
        (math.nan, 1.0, True),
        (2.0, math.nan, True),
        (math.inf, 1.0, True),
        (2.0, math.inf, True),
    ],
)
def test_an_update_is_skipped_above_a_limit_and_where_there_is_no_number(loss: float, grad_norm: float, skipped: bool):
    given_values = jnp.float32(loss), jnp.float32(grad_norm)
    max_loss = jnp.float32(3.0)
    max_grad_norm = jnp.float32(4.0)
    assert bool(is_skipped(*given_values, max_loss=max_loss, max_grad_norm=max_grad_norm, limit=Limit(6.0, 64))) == skipped
    assert not bool(is_skipped(*given_values, max_loss=max_loss, max_grad_norm=max_grad_norm, limit=NO_LIMIT))


@pytest.mark.parametrize(("loss", "skipped"), [(1e30, False), (math.inf, True), (math.nan, True)])
def test_before_there_are_samples_only_what_is_no_number_is_skipped(loss: float, skipped: bool):
    nothing_yet = jnp.float32(math.inf)
    found = is_skipped(jnp.float32(loss), jnp.float32(1.0), max_loss=nothing_yet, max_grad_norm=nothing_yet, limit=Limit(6.0, 64))
    assert bool(found) == skipped


@pytest.mark.parametrize(
    ("norm", "limit", "factor"), [(2.0, 1.0, 0.5), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (1e30, np.inf, 1.0)]
)
def test_clip_factor(norm: float, limit: float, factor: float):
    assert float(clip_factor(jnp.float32(norm), limit)) == factor


def test_clipping_does_not_hide_what_is_no_number():
    assert np.isnan(float(clip_factor(jnp.float32(np.nan), 1.0)))


def test_each_layer_of_a_weight_is_clipped_to_its_root_mean_square(model: ModelConfig):
    direction = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), init_params(0, model))
    direction["blocks"]["gate"] = direction["blocks"]["gate"].at[1].set(-8.0)
    direction["final_norm"] = jnp.full_like(direction["final_norm"], 2.0)
    clipped, least = clip_update_rms(direction, weight_rules(model), 1.0)
    np.testing.assert_allclose(clipped["blocks"]["gate"][1], -1.0, rtol=1e-6)
    np.testing.assert_array_equal(clipped["blocks"]["gate"][0], direction["blocks"]["gate"][0])
    np.testing.assert_allclose(clipped["final_norm"], 1.0, rtol=1e-6)
    np.testing.assert_array_equal(clipped["embedding"], direction["embedding"])
    assert float(least) == pytest.approx(1 / 8)
