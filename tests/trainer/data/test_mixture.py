import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import DataOrder, MixtureShares, Steps, always
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts, check_shares

WEB_HEAVY: MixtureShares = {"web": 70.3, "code": 20.1, "maths": 7.5, "dialogue": 2.1}
CODE_HEAVY: MixtureShares = {"code": 55.0, "web": 30.0, "law": 15.0}


def blocks_of(sequences: int, **changes: Any) -> DataOrder:
    return DataOrder(seed=0, permutation="linear", block_sequences=sequences, **changes)


def batch_of(mixture: MixtureSchedule, step: int) -> tuple[np.ndarray, np.ndarray]:
    return mixture.draw(mixture.sequences_before(step), mixture.sequences_before(step + 1))


@st.composite
def shares(draw: st.DrawFn) -> MixtureShares:
    weights = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any))
    return {f"component-{n}": 100.0 * weight / sum(weights) for n, weight in enumerate(weights)}


def whole_shares(block: int) -> st.SearchStrategy[MixtureShares]:
    """Shares of which each has a sequence in a block, or is 0."""
    return shares().filter(lambda drawn: all(not share or block_counts(drawn, blocks_of(block))[name] for name, share in drawn.items()))


@st.composite
def by_steps(draw: st.DrawFn, values: st.SearchStrategy) -> Steps:
    changes = sorted(draw(st.sets(st.integers(1, 29), max_size=2)))
    return Steps(tuple((step, draw(values)) for step in [0, *changes]))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[MixtureSchedule, int]:
    """A schedule with up to three stages and three batch sizes, and how many steps to look at."""
    steps, block = draw(st.integers(1, 30)), draw(st.integers(4, 40))
    batch, mixture = draw(by_steps(st.integers(1, 17))), draw(by_steps(whole_shares(block)))
    return schedule(batch, mixture, seed=draw(st.integers(0, 9)), block=block), steps


def schedule(batch: Any = None, mixture: Any = None, *, seed: int = 0, block: int = 64) -> MixtureSchedule:
    order = DataOrder(seed=seed, permutation="linear", block_sequences=block, cut_blocks=True)
    return MixtureSchedule(batch=batch or always(16), mixture=mixture or always(WEB_HEAVY), order=order)


def drawn_names(mixture: MixtureSchedule, steps: range) -> list[str]:
    names = mixture.components()
    return [names[number] for step in steps for number in batch_of(mixture, step)[0]]


@given(shares(), st.integers(1, 5000))
def test_a_block_s_counts_add_up_and_whoever_lost_more_by_rounding_down_gets_one_more_first(mixture: MixtureShares, block: int):
    counts, total = block_counts(mixture, blocks_of(block)), sum(map(Fraction, mixture.values()))
    exact = {name: Fraction(share) * block / total for name, share in mixture.items()}
    assert sum(counts.values()) == block
    assert all(abs(counts[name] - exact[name]) < 1 + 1e-9 and (share or counts[name] == 0) for name, share in mixture.items())
    lowest_winner = min((exact[name] % 1 for name in mixture if counts[name] > int(exact[name])), default=Fraction(1))
    highest_loser = max((exact[name] % 1 for name in mixture if counts[name] <= int(exact[name])), default=Fraction(0))
    assert lowest_winner >= highest_loser - Fraction(1, 10**9)


@given(st.integers(1, 200).flatmap(lambda block: st.tuples(st.just(block), whole_shares(block))), st.integers(0, 3))
def test_any_stretch_of_a_block_has_every_share_to_within_a_sequence_or_two(drawn: tuple[int, MixtureShares], seed: int):
    block, mixture = drawn
    counts = block_counts(mixture, blocks_of(block))
    names = drawn_names(schedule(batch=always(block), mixture=always(mixture), seed=seed, block=block), range(1))
    present = sum(1 for count in counts.values() if count)
    for name, count in counts.items():
        share, found = count / block, np.cumsum([other == name for other in names])
        assert np.abs(found - share * np.arange(1, block + 1)).max() <= (1 - share) + share * max(present - 1, 0) + 1e-9


@given(schedules(), st.data())
def test_any_sequences_are_what_they_are_in_a_row_in_order_without_holes_and_counted(
    drawn: tuple[MixtureSchedule, int], data: st.DataObject
):
    mixture, stop = drawn
    components, positions = everything = mixture.draw(0, mixture.sequences_before(stop))
    for number in np.unique(components):
        mine = positions[components == number]
        np.testing.assert_array_equal(mine, np.arange(len(mine)))
    first, after = sorted(data.draw(st.tuples(*[st.integers(0, len(components))] * 2)))
    for alone, whole in zip(mixture.draw(first, after), everything, strict=True):
        np.testing.assert_array_equal(alone, whole[first:after])
    start = data.draw(st.integers(0, stop))
    names = drawn_names(mixture, range(start, stop))
    assert mixture.realised(start, stop) == Counter(names)
    assert [mixture.components()[number] for number in components[mixture.sequences_before(start) :]] == names


def test_the_seed_decides_the_order_but_not_the_counts_and_no_share_moves_no_other():
    one, other = (drawn_names(schedule(seed=seed), range(4)) for seed in (0, 1))
    assert one != other
    assert Counter(one) == Counter(other)
    with_it = schedule(mixture=always({"aaa": 0.0, **WEB_HEAVY}))
    assert drawn_names(with_it, range(8)) == drawn_names(schedule(), range(8))
    assert "aaa" not in with_it.realised(0, 8)


@settings(max_examples=10)
@given(st.integers(10**6, 10**9))
def test_a_step_far_away_is_reached_at_once(step: int):
    mixture = schedule(Steps[int](((0, 1024), (18_500, 3072))), Steps[MixtureShares](((0, WEB_HEAVY), (20_000, CODE_HEAVY))), block=2048)
    counts = mixture.realised(0, step)
    assert sum(counts.values()) == mixture.sequences_before(step) == 18_500 * 1024 + (step - 18_500) * 3072
    components, positions = batch_of(mixture, step)
    names = mixture.components()
    for name in CODE_HEAVY:
        mine = positions[components == names.index(name)]
        np.testing.assert_array_equal(mine, counts[name] + np.arange(len(mine)))


@st.composite
def exact_shares(draw: st.DrawFn) -> MixtureShares:
    """Shares in 1024ths of a percent, which sum to 100 without a rounding."""
    cuts = sorted(draw(st.sets(st.integers(0, 102_400), max_size=5)))
    return {f"component-{n}": (after - before) / 1024 for n, (before, after) in enumerate(pairwise([0, *cuts, 102_400]))}


@given(exact_shares(), st.integers(1, 5000))
def test_rounded_by_floor_all_is_cut_off_and_the_largest_takes_what_is_left(mixture: MixtureShares, block: int):
    counts = block_counts(mixture, blocks_of(block, rounding="floor"))
    largest = min(name for name, share in mixture.items() if share == max(mixture.values()))  # ties by name
    floors = {name: int(Fraction(share) * block / 100) for name, share in mixture.items()}
    assert counts == {**floors, largest: block - sum(count for name, count in floors.items() if name != largest)}


@st.composite
def late_orders(draw: st.DrawFn) -> tuple[MixtureSchedule, MixtureSchedule, int]:
    """A schedule that begins at a step, one of the same batches and mixtures whose step 0 that step is, and the step."""
    first, block = draw(st.integers(0, 25)), draw(st.integers(4, 40))

    def moved(steps: Steps) -> Steps:
        return Steps(((0, steps.at(first)), *((step - first, value) for step, value in steps.root if step > first)))

    batch, mixture = draw(by_steps(st.integers(1, 17))), draw(by_steps(whole_shares(block)))
    order = blocks_of(block, cut_blocks=True)
    late = MixtureSchedule(batch=batch, mixture=mixture, order=blocks_of(block, cut_blocks=True, first_step=first))
    return late, MixtureSchedule(batch=moved(batch), mixture=moved(mixture), order=order), first


@given(late_orders(), st.data())
def test_an_order_that_begins_at_a_step_is_a_new_one_whose_step_0_it_is(
    drawn: tuple[MixtureSchedule, MixtureSchedule, int], data: st.DataObject
):
    late, fresh, first = drawn
    for step in data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6)):
        assert late.sequences_before(first + step) == fresh.sequences_before(step)
        assert late.cut_at(first + step) == fresh.cut_at(step)
        components, positions = batch_of(late, first + step)
        assert [late.components()[number] for number in components] == drawn_names(fresh, range(step, step + 1))
        np.testing.assert_array_equal(positions, batch_of(fresh, step)[1])
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    assert late.realised(first + start, first + stop) == fresh.realised(start, stop)


def test_a_mixture_that_ended_before_an_order_begins_is_not_asked_for_its_counts():
    thin: MixtureShares = {"web": 99.9, "law": 0.1}
    mixture = Steps[MixtureShares](((0, thin), (3, WEB_HEAVY), (11, CODE_HEAVY)))
    with pytest.raises(ConfigError, match="from step 0 must have a sequence of every component"):
        MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64))
    late = MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64, first_step=7))
    assert late.components() == ("code", "dialogue", "law", "maths", "web")
    assert late.cut_at(11) == 0
    with pytest.raises(ConfigError, match="from step 11 must start where a block of 64 sequences ends, found 48 sequences"):
        MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64, first_step=8))


HALVES: MixtureShares = {"web": 50.0, "code": 50.0}
THIRDS: MixtureShares = {"web": 200 / 3, "code": 100 / 3}


def two_stages(batch: Steps[int], step: int, block: int, **changes: Any) -> MixtureSchedule:
    mixture = Steps[MixtureShares](((0, HALVES), (step, THIRDS)))
    return MixtureSchedule(batch=batch, mixture=mixture, order=blocks_of(block, **changes))


SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24)), min_size=1, max_size=4, unique_by=lambda entry: entry[0])
WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=6)
ROUNDINGS = st.sampled_from(["floor", "largest_remainder"])


@given(batch=SIZES, step=st.integers(1, 60), block=st.integers(4, 48), begins=st.integers(0, 30))
def test_whatever_starts_off_the_grid_is_refused_with_the_steps_that_are_on_it(
    batch: list[tuple[int, int]], step: int, block: int, begins: int
):
    sizes = Steps[int](((0, batch[0][1]), *sorted(batch[1:])))
    begins = min(begins, step - 1)
    loose = two_stages(sizes, step, block, cut_blocks=True, first_step=begins)
    assert loose.cut_at(step) == loose.sequences_before(step) % block
    if not loose.cut_at(step):
        two_stages(sizes, step, block, first_step=begins)
        return
    changes = [0, *(change for change, _ in sizes.root[1:]), 10_000]
    first, last = max(change for change in changes if change < step), min(change for change in changes if change >= step)
    good = [other for other in range(max(first, begins + 1), min(last, step + block) + 1) if loose.sequences_before(other) % block == 0]
    nearest = [*[other for other in good if other < step][-1:], *[other for other in good if other > step][:1]]
    with pytest.raises(ConfigError) as refusal:
        two_stages(sizes, step, block, first_step=begins)
    found, advice = str(refusal.value).split(" in the block before it: ")
    assert found.endswith(f"from step {step} must start where a block of {block} sequences ends, found {loose.cut_at(step)} sequences")
    assert advice.endswith("let the recipe's order declare cut_blocks.")
    assert re.findall(r"start it at step ([\d or]+),", advice) == ([" or ".join(map(str, nearest))] if nearest else [])
    for other in nearest:
        two_stages(sizes, other, block, first_step=begins)


def test_the_advice_leaves_the_stages_around_it_a_step():
    for steps, advice in {
        (0, 12, 13, 20): ": start it at step 16,", (0, 8, 13, 16): ": start it at step 12,", (0, 12, 13, 16): " before it: let the .*$"
    }.items():  # fmt: skip
        mixture = Steps[MixtureShares](tuple((step, (HALVES, THIRDS)[number % 2]) for number, step in enumerate(steps)))
        with pytest.raises(ConfigError, match=rf"the mixture from step 13 .*{advice}"):
            MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64))


def test_a_component_that_a_block_has_no_sequence_of_is_refused_with_what_would_do():
    thin: MixtureShares = {"web": 99.9, "maths": 0.06, "law": 0.04}
    with pytest.raises(ConfigError) as refusal:
        MixtureSchedule(batch=always(16), mixture=always(thin), order=blocks_of(64))
    assert str(refusal.value) == (
        "the mixture from step 0 must have a sequence of every component in every block, and a block of 64 has none of maths (0.06 %), "
        "law (0.04 %): give each 1.5625 %, or take blocks of 2500 sequences."
    )
    MixtureSchedule(batch=always(16), mixture=always(thin), order=blocks_of(2500))
    MixtureSchedule(batch=always(16), mixture=always({"web": 96.875, "maths": 1.5625, "law": 1.5625}), order=blocks_of(64))
    later = Steps[MixtureShares](((0, HALVES), (9, {"web": 99.9, "law": 0.1})))
    with pytest.raises(ConfigError, match=r"from step 9 .* none of law \(0\.1 %\): give it 1\.5625 %"):
        MixtureSchedule(batch=always(64), mixture=later, order=blocks_of(64))


def test_a_share_that_a_block_cannot_express_is_refused_with_what_would_do():
    uneven: MixtureShares = {"web": 71.3, "code": 18.4, "law": 10.3}
    with pytest.raises(ConfigError) as refusal:
        check_shares(uneven, blocks_of(10), step=7, max_error_points=1.0)
    assert str(refusal.value) == (
        "component code is 18.4 % of the mixture from step 7 and 20 % of a block of 10 sequences (2 of them), 1.6 percentage points off "
        "where the recipe allows 1: a share of 20 %, or blocks of 100 sequences, would do."
    )
    check_shares(uneven, blocks_of(100), step=7, max_error_points=1.0)
    check_shares({"web": 70.0, "code": 20.0, "law": 10.0}, blocks_of(10), step=7, max_error_points=0.0)
    with pytest.raises(ConfigError, match=r"a share of 20 % would do\.$"):
        check_shares(uneven, blocks_of(10), step=7, max_error_points=0.0)


def shares_of(weights: list[int]) -> MixtureShares:
    return {f"component-{number}": 100 * weight / sum(weights) for number, weight in enumerate(weights)}


@given(WEIGHTS, st.integers(1, 3000), ROUNDINGS)
def test_both_limits_are_held_to_exactly(weights: list[int], block: int, rounding: str):
    shares, blocks = shares_of(weights), blocks_of(block, rounding=rounding)
    counts = block_counts(shares, blocks)
    points = [abs(100 * counts[name] / block - share) for name, share in shares.items()]
    percents = [100 * error / share for error, share in zip(points, shares.values(), strict=True)]
    check_shares(shares, blocks, step=0, max_error_points=max(points) + 1e-6, max_error_percent=max(percents) + 1e-6)
    check_shares(shares, blocks, step=0, max_error_points=max(points) + 1e-6)
    for limits in ({"max_error_points": max(points) - 1e-6}, {"max_error_points": 100, "max_error_percent": max(percents) - 1e-6}):
        with pytest.raises(ConfigError, match="off where the recipe allows"):
            check_shares(shares, blocks, step=0, **limits)


@given(weights=WEIGHTS, times=st.integers(1, 9), rounding=ROUNDINGS)
def test_a_block_has_the_shares_that_it_can_express(weights: list[int], times: int, rounding: str):
    counts = block_counts(shares_of(weights), blocks_of(times * sum(weights), rounding=rounding))
    assert list(counts.values()) == [times * weight for weight in weights]


@given(weights=st.lists(st.integers(1, 1000), min_size=2, max_size=6), block=st.integers(2, 300), points=st.floats(0.1, 20))
def test_another_rounding_is_advised_only_where_it_helps(weights: list[int], block: int, points: float):
    try:
        check_shares(shares_of(weights), blocks_of(block, rounding="floor"), step=0, max_error_points=points)
    except ConfigError as refusal:
        if "or rounding by largest_remainder" in str(refusal):
            check_shares(shares_of(weights), blocks_of(block), step=0, max_error_points=points)
