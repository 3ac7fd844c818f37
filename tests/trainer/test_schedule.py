"""Every kind of segment at its start, its middle and its end, and how segments join."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import LearningRateSegment
from trainer.schedule import learning_rate_at, value_in


def segment(kind: str, start: float, end: float, start_step: int = 100, end_step: int = 200) -> LearningRateSegment:
    return LearningRateSegment.model_validate({"kind": kind, "start_step": start_step, "end_step": end_step, "start": start, "end": end})


@pytest.mark.parametrize(
    ("kind", "start", "quarter", "middle", "end"),
    [
        ("constant", 3e-4, 3e-4, 3e-4, 3e-4),
        ("linear", 1e-3, 7.75e-4, 5.5e-4, 1e-4),
        ("linear", 0.0, 2.5e-4, 5e-4, 1e-3),
        ("cosine", 1e-3, 1e-4 + 9e-4 * (1 + math.sqrt(0.5)) / 2, 5.5e-4, 1e-4),
        ("inverse", 1e-3, 1 / (0.75 / 1e-3 + 0.25 / 1e-4), 1 / (0.5 / 1e-3 + 0.5 / 1e-4), 1e-4),
    ],
)
def test_values_of_each_kind(kind: str, start: float, quarter: float, middle: float, end: float):
    found = [value_in(segment(kind, start, end), step) for step in (100, 125, 150, 200)]
    assert found == pytest.approx([start, quarter, middle, end], rel=1e-12)


def test_inverse_moves_the_reciprocal_in_equal_steps():
    reciprocals = [1 / value_in(segment("inverse", 1.7e-3, 1.7e-4), step) for step in range(100, 201)]
    steps = [after - before for before, after in pairwise(reciprocals)]
    assert steps == pytest.approx([(1 / 1.7e-4 - 1 / 1.7e-3) / 100] * 100, rel=1e-9)


def test_a_value_is_held_outside_of_its_segment():
    assert value_in(segment("linear", 1e-3, 1e-4), 50) == 1e-3
    assert value_in(segment("linear", 1e-3, 1e-4), 250) == pytest.approx(1e-4)


def test_where_two_segments_join_the_later_one_holds():
    segments = (segment("linear", 0.0, 1e-3, 0, 10), segment("constant", 5e-4, 5e-4, 10, 20), segment("linear", 4e-4, 0.0, 20, 30))
    assert learning_rate_at(segments, 0) == 0.0
    assert learning_rate_at(segments, 9) == pytest.approx(9e-4)
    assert learning_rate_at(segments, 10) == 5e-4
    assert learning_rate_at(segments, 19) == 5e-4
    assert learning_rate_at(segments, 20) == 4e-4
    assert learning_rate_at(segments, 29) == pytest.approx(4e-5)


def test_the_last_segment_s_end_belongs_to_it():
    assert learning_rate_at((segment("linear", 1e-3, 2e-4, 0, 10),), 10) == pytest.approx(2e-4)


rates = st.floats(1e-8, 1.0)


@given(kind=st.sampled_from(["linear", "cosine", "inverse"]), start=rates, end=rates, steps=st.lists(st.integers(0, 1000), min_size=2))
def test_values_move_one_way_between_their_ends(kind: str, start: float, end: float, steps: list[int]):
    values = [value_in(segment(kind, start, end, 0, 1000), step) for step in sorted(steps)]
    low, high = min(start, end), max(start, end)
    assert all(low * (1 - 1e-9) <= value <= high * (1 + 1e-9) for value in values)
    in_order = sorted(values, reverse=start > end)
    assert values == pytest.approx(in_order, rel=1e-9)
