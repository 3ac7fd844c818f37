from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.config import DataOrder, RunConfig, Steps
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.trace import Draws, TracedOrder
from tests.trainer.conftest import MakeRun

SHARES = st.sampled_from([{"a": 60.0, "b": 40.0}, {"a": 10.0, "b": 20.0, "c": 70.0}, {"c": 50.0, "d": 50.0}, {"b": 100.0}])


def traced(run: RunConfig) -> TracedOrder:
    schedule = MixtureSchedule.of_run(run)
    rows = {name: TokenCache.open(run.caches[name]).num_rows(32) for name in schedule.realised(run.start_step, run.stop_step)}
    return TracedOrder(schedule, run.batch, run.start_step, run.stop_step, rows)


def as_set(draws: Draws) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(column.tolist() for column in draws), strict=True))


def all_forward(order: TracedOrder) -> Counter[tuple[int, ...]]:
    return sum((as_set(order.of_update(update)) for update in range(order.start_update, order.stop_update)), Counter())


LATER = [{"kind": "constant", "start_step": 12, "end_step": 24, "start": 1e-3, "end": 1e-3}]
LINEAR = {"seed": 3, "permutation": "linear", "block_sequences": 10, "cut_blocks": True}
CHANGES: dict[str, dict[str, object]] = {
    "a switch of mixture and batch": {}, "linear": {"order": LINEAR},
    "as Levanter": {"order": {**LINEAR, "permutation": "feistel_levanter", "rounding": "floor"}},
    "a later phase": {"start_step": 12, "learning_rate": LATER},
    "begun again": {"start_step": 12, "learning_rate": LATER, "order": {**LINEAR, "permutation": "feistel", "first_step": 12}},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_forward_names_the_rows_that_the_loader_reads(name: str, make_run: MakeRun, caches: Mapping[str, Path]):
    run = make_run(f"traced {name}", **CHANGES[name])
    order, loader = traced(run), Loader(run)
    for update in range(run.start_step, run.stop_step):
        draws, tokens = order.of_update(update), loader.batch(update).tokens
        assert len(draws.row) == len(tokens)
        for place, (component, row) in enumerate(zip(draws.component, draws.row, strict=True)):
            cache = TokenCache.open(caches[order.names[component]])
            np.testing.assert_array_equal(cache.rows(np.array([row]), 32)[0], tokens[place])
            assert as_set(order.of_update(update, place)) == as_set(draws.chosen(np.array([place])))


@settings(max_examples=25)
@given(
    batch=st.lists(st.integers(1, 9), min_size=1, max_size=3), mixture=st.lists(SHARES, min_size=1, max_size=3),
    steps=st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 10), st.integers(1, 10)), start=st.integers(0, 20),
    kind=st.sampled_from(["linear", "feistel", "feistel_levanter"]), rows=st.tuples(*[st.integers(1, 40)] * 4), begins_anew=st.booleans(),
)  # fmt: skip
def test_both_ways_agree_whatever_the_schedules(batch, mixture, steps, start, kind, rows, begins_anew):  # pyright: ignore
    sizes = Steps[int](tuple((number * steps[0], size) for number, size in enumerate(batch)))
    shares = Steps[dict[str, float]](tuple((number * steps[1], share) for number, share in enumerate(mixture)))
    order = DataOrder(seed=steps[2], permutation=kind, block_sequences=10, first_step=start if begins_anew else 0, cut_blocks=True)
    schedule = MixtureSchedule(batch=sizes, mixture=shares, order=order)
    traced_order = TracedOrder(schedule, sizes, start, start + steps[3], dict(zip("abcd", rows, strict=True)))
    forward = all_forward(traced_order)
    in_use = {name: count for name, count in traced_order.rows.items() if name in traced_order.names}
    backward = sum((as_set(traced_order.of_rows(name, np.arange(count))) for name, count in in_use.items()), Counter())
    assert backward == forward
    assert sum(forward.values()) == schedule.sequences_before(start + steps[3]) - schedule.sequences_before(start)


def test_a_billion_sequences_are_not_iterated_over():
    batch = Steps[int](((0, 1024), (20_000, 3072), (180_000, 4096)))
    mixture = Steps[dict[str, float]](((0, {"a": 90.0, "b": 10.0}), (100_000, {"a": 50.0, "b": 50.0}), (200_000, {"a": 100.0})))
    order = DataOrder(seed=1, permutation="feistel", block_sequences=2048, cut_blocks=True)
    schedule = MixtureSchedule(batch=batch, mixture=mixture, order=order)
    traced_order = TracedOrder(schedule, batch, 0, 250_000, {"a": 10**9, "b": 10**9 // 7})
    for update in (0, 19_999, 20_000, 99_999, 100_000, 249_999):
        draws = traced_order.of_update(update)
        for number, name in enumerate(traced_order.names):
            mine = draws.chosen(draws.component == number)
            if mine.row.size:
                few = mine.chosen(np.arange(min(3, mine.row.size)))
                assert set(as_set(few)) <= set(as_set(traced_order.of_rows(name, few.row)))
