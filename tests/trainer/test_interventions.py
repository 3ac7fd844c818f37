import math
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.interventions import (
    NO_LIMIT,
    Limit,
    Window,
    empty_window,
    is_skipped,
    limit_from,
    push,
)

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
