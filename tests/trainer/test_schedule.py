import math
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.config import LearningRateSegment, check_segments_end, learning_rate_at, turns_of, value_in
from phasewise.trainer.interventions import NO_LIMIT, Limit, Window, is_skipped, limit_from, push, scheduled_at
from tests.trainer.conftest import MakeRun

values = st.lists(st.floats(0.125, 1024, width=32) | st.sampled_from([math.nan, math.inf]), max_size=40)

push_compiled, limit_compiled = jax.jit(push), jax.jit(limit_from)


def pushed(numbers: list[float], length: int) -> Window:
    window = Window(jnp.zeros(length), jnp.int32(0))
    for number in numbers:
        window = push_compiled(window, np.float32(number))
    return window


@pytest.mark.parametrize(("kind", "start", "end", "said"), [
    ("constant", 40, 60, "never starts"), ("linear", 39, 60, "is not finished"), ("constant", 39, 60, None), ("linear", 20, 40, None),
])  # fmt: skip
def test_a_schedule_ends_with_its_phase(kind: str, start: int, end: int, said: str | None):
    rates = {"start": 1.0, "end": 1.0 if kind == "constant" else 0.5}
    segment = LearningRateSegment.model_validate({"kind": kind, "start_step": start, "end_step": end, **rates})
    if said is None:
        check_segments_end((segment,), 40)
    else:
        with pytest.raises(ValueError, match=said):
            check_segments_end((segment,), 40)


@given(numbers=values, length=st.sampled_from([2, 5, 9]), sigmas=st.floats(0.5, 6, width=32))
def test_the_limit_is_that_of_the_last_finite_values(numbers: list[float], length: int, sigmas: float):
    last = deque((number for number in numbers if math.isfinite(number)), maxlen=length)
    found = float(limit_compiled(pushed(numbers, length), Limit(sigmas, 2)))
    if len(last) < 2:
        assert found == math.inf
    else:
        assert found == pytest.approx(np.mean(last) + sigmas * max(np.std(last), 1e-6), rel=1e-4)


def test_what_is_not_finite_does_not_enter_a_window():
    before = pushed([1.0, 2.0], 4)
    for bad in (math.nan, math.inf, -math.inf):
        assert jax.tree.all(jax.tree.map(np.array_equal, before, push(before, jnp.float32(bad))))


def test_an_update_is_skipped_above_a_limit_and_where_there_is_no_number():
    kept = [(2.0, 1.0), (3.0, 4.0)]  # the latter is at the limits
    for one in [*kept, (3.1, 1.0), (2.0, 4.1), (math.nan, 1.0), (2.0, math.nan), (math.inf, 1.0), (2.0, math.inf)]:
        measured = tuple((jnp.float32(value), jnp.float32(most)) for value, most in zip(one, (3.0, 4.0), strict=True))
        assert bool(is_skipped(measured, limit=Limit(6.0, 64))) == (one not in kept)
        assert not bool(is_skipped(measured, limit=NO_LIMIT))


def segment(kind: str, start: float, end: float, start_step: int = 100, end_step: int = 200) -> LearningRateSegment:
    return LearningRateSegment.model_validate({"kind": kind, "start_step": start_step, "end_step": end_step, "start": start, "end": end})


def test_values_of_each_kind():
    for kind, start, quarter, middle, end in (
        ("constant", 3e-4, 3e-4, 3e-4, 3e-4), ("linear", 1e-3, 7.75e-4, 5.5e-4, 1e-4), ("linear", 0.0, 2.5e-4, 5e-4, 1e-3),
        ("cosine", 1e-3, 1e-4 + 9e-4 * (1 + math.sqrt(0.5)) / 2, 5.5e-4, 1e-4),
        ("inverse", 1e-3, 1 / (0.75 / 1e-3 + 0.25 / 1e-4), 1 / (0.5 / 1e-3 + 0.5 / 1e-4), 1e-4),
    ):  # fmt: skip
        found = [value_in(segment(kind, start, end), step) for step in (100, 125, 150, 200)]
        assert found == pytest.approx([start, quarter, middle, end], rel=1e-12)


def test_the_highest_rate_is_said_where_it_is_above_both_ends():
    rise_and_fall = (segment("linear", 0.0, 1e-3, 100, 150), segment("linear", 1e-3, 0.0, 150, 200))
    assert turns_of(rise_and_fall, 100, 200) == pytest.approx((0.0, 1e-3, 0.0))
    assert turns_of(rise_and_fall, 100, 125) == pytest.approx((0.0, 5e-4))
    assert turns_of(rise_and_fall, 150, 175) == pytest.approx((1e-3, 5e-4))
    assert turns_of((segment("constant", 1e-3, 1e-3),), 100, 200) == (1e-3, 1e-3)


def test_where_two_segments_join_the_later_one_holds():
    segments = (segment("linear", 0.0, 1e-3, 0, 10), segment("constant", 5e-4, 5e-4, 10, 20), segment("linear", 4e-4, 0.0, 20, 30))
    found = [learning_rate_at(segments, step) for step in (0, 9, 10, 19, 20, 29)]
    assert found == pytest.approx([0.0, 9e-4, 5e-4, 5e-4, 4e-4, 4e-5], rel=1e-9)


rates = st.floats(1e-8, 1.0)


@given(kind=st.sampled_from(["linear", "cosine", "inverse"]), start=rates, end=rates, steps=st.lists(st.integers(0, 1000), min_size=2))
def test_values_move_one_way_between_their_ends(kind: str, start: float, end: float, steps: list[int]):
    values = [value_in(segment(kind, start, end, 0, 1000), step) for step in sorted(steps)]
    assert all(min(start, end) * (1 - 1e-9) <= value <= max(start, end) * (1 + 1e-9) for value in values)
    assert values == pytest.approx(sorted(values, reverse=start > end), rel=1e-9)


def test_scheduled_values_are_those_of_the_step(make_run: MakeRun):
    off = {name: [[0, None]] for name in ("max_update_rms", "max_update_norm", "skip_step")}
    changes = {"max_grad_norm": [[0, None], [5, 0.5]], "z_loss": [[0, None], [16, 1e-4]], "ema_decay": [[0, 0.9], [7, None]]}
    run, rest = make_run("scheduled", stability=off | changes), (1.0, None, NO_LIMIT, NO_LIMIT)
    assert scheduled_at(run, 3) == (pytest.approx(1.5e-3), 0.0, math.inf, 0.9, *rest)
    assert scheduled_at(run, 5) == (pytest.approx(2.5e-3), 0.0, 0.5, 0.9, *rest)
    assert scheduled_at(run, 16) == (pytest.approx(learning_rate_at(run.learning_rate, 16)), 1e-4, 0.5, 0.0, *rest)


def test_adamc_s_decay_goes_with_the_learning_rate_and_no_other_s_does(make_run: MakeRun):
    adam = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
    run = make_run("adamc", optimizer={"kind": "adamc", **adam, "peak_learning_rate": 4e-3})
    assert [scheduled_at(run, step).decay_scale for step in (0, 3, 6)] == pytest.approx([0.0, 1.5e-3 / 4e-3, 3e-3 / 4e-3])
    assert {scheduled_at(make_run("adamw"), step).decay_scale for step in range(24)} == {1.0}
