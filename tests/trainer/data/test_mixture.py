"""Exact counts, even spreads, no holes: over any batches and stages."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.config import DataOrder, MixtureShares, Steps, always
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts

WEB_HEAVY: MixtureShares = {"web": 70.3, "code": 20.1, "maths": 7.5, "dialogue": 2.1}
CODE_HEAVY: MixtureShares = {"code": 55.0, "web": 30.0, "law": 15.0}


def blocks_of(sequences: int, **changes: Any) -> DataOrder:
    return DataOrder(seed=0, permutation="linear", block_sequences=sequences, **changes)


@st.composite
def shares(draw: st.DrawFn) -> MixtureShares:
    weights = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any))
    return {f"component-{n}": 100.0 * weight / sum(weights) for n, weight in enumerate(weights)}


def whole_shares(block: int) -> st.SearchStrategy[MixtureShares]:
    """Shares of which each has a sequence in a block, or is 0."""
    return shares().filter(lambda drawn: all(not share or block_counts(drawn, blocks_of(block))[name] for name, share in drawn.items()))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[MixtureSchedule, int]:
    """A schedule with up to three stages and three batch sizes, and how many steps to look at."""
    steps, block = draw(st.integers(1, 30)), draw(st.integers(4, 40))

    def by_steps(values: st.SearchStrategy) -> Steps:
        changes = sorted(draw(st.sets(st.integers(1, 29), max_size=2)))
        return Steps(tuple((step, draw(values)) for step in [0, *changes]))

    order = DataOrder(seed=draw(st.integers(0, 9)), permutation="linear", block_sequences=block, cut_blocks=True)
    return MixtureSchedule(batch=by_steps(st.integers(1, 17)), mixture=by_steps(whole_shares(block)), order=order), steps


def schedule(
    batch: Steps[int] | None = None, mixture: Steps[MixtureShares] | None = None, *, seed: int = 0, block: int = 64
) -> MixtureSchedule:
    order = DataOrder(seed=seed, permutation="linear", block_sequences=block, cut_blocks=True)
    return MixtureSchedule(batch=batch or always(16), mixture=mixture or always(WEB_HEAVY), order=order)


def drawn_names(mixture: MixtureSchedule, steps: range) -> list[str]:
    """The component of each sequence, in order."""
    names = mixture.components()
    return [names[number] for step in steps for number in mixture.batch(step)[0]]


@given(shares(), st.integers(1, 5000))
def test_a_block_s_counts_add_up_and_are_the_shares_to_within_one(mixture: MixtureShares, block: int):
    counts = block_counts(mixture, blocks_of(block))
    assert sum(counts.values()) == block
    for name, share in mixture.items():
        assert abs(counts[name] - share * block / sum(mixture.values())) < 1 + 1e-9
        assert share or counts[name] == 0


@given(shares(), st.integers(1, 5000))
def test_whoever_lost_more_by_rounding_down_gets_one_more_first(mixture: MixtureShares, block: int):
    counts, total = block_counts(mixture, blocks_of(block)), sum(map(Fraction, mixture.values()))
    remainders = {name: Fraction(share) * block / total - int(Fraction(share) * block / total) for name, share in mixture.items()}
    got = {name: counts[name] - int(Fraction(share) * block / total) for name, share in mixture.items()}
    lowest_winner = min((remainders[name] for name in mixture if got[name] > 0), default=Fraction(1))
    highest_loser = max((remainders[name] for name in mixture if got[name] <= 0), default=Fraction(0))
    assert lowest_winner >= highest_loser - Fraction(1, 10**9)


def test_largest_remainder_by_example():
    assert block_counts({"a": 50.0, "b": 30.0, "c": 20.0}, blocks_of(7)) == {"a": 4, "b": 2, "c": 1}  # 3.5, 2.1, 1.4: a has the one left
    assert block_counts({"b": 25.0, "a": 25.0, "d": 25.0, "c": 25.0}, blocks_of(6)) == {"a": 2, "b": 2, "c": 1, "d": 1}  # ties by name
    assert block_counts({"a": 99.99, "b": 0.03}, blocks_of(10)) == {"a": 10, "b": 0}


def test_every_whole_block_has_exactly_its_counts():
    names = drawn_names(schedule(), range(20))
    expected = {name: count for name, count in block_counts(WEB_HEAVY, blocks_of(64)).items() if count}
    for block in range(5):
        assert Counter(names[64 * block : 64 * (block + 1)]) == expected


@given(st.integers(1, 200).flatmap(lambda block: st.tuples(st.just(block), whole_shares(block))), st.integers(0, 3))
def test_any_stretch_of_a_block_has_every_share_to_within_a_sequence_or_two(drawn: tuple[int, MixtureShares], seed: int):
    """With c components, the start of a block errs by at most (1 - share) + share · (c - 1) from the block's counts; mostly less."""
    block, mixture = drawn
    counts = block_counts(mixture, blocks_of(block))
    names = drawn_names(schedule(batch=always(block), mixture=always(mixture), seed=seed, block=block), range(1))
    present = sum(1 for count in counts.values() if count)
    for name, count in counts.items():
        found = np.cumsum([other == name for other in names])
        error = np.abs(found - count / block * np.arange(1, block + 1))
        share = count / block
        assert error.max() <= (1 - share) + share * max(present - 1, 0) + 1e-9


@pytest.mark.parametrize("mixture", [WEB_HEAVY, CODE_HEAVY], ids=["web", "code"])
def test_real_mixtures_stay_within_two_sequences_of_their_exact_shares(mixture: MixtureShares):
    for seed in range(10):
        names = drawn_names(schedule(batch=always(512), mixture=always(mixture), seed=seed, block=512), range(1))
        for name, share in mixture.items():
            found = np.cumsum([drawn == name for drawn in names])
            assert np.abs(found - share / 100 * np.arange(1, 513)).max() < 2


@given(schedules())
def test_each_component_gives_its_sequences_in_order_without_holes(drawn: tuple[MixtureSchedule, int]):
    """Across blocks, stages and batch sizes: 0, 1, 2 … n - 1."""
    mixture, steps = drawn
    batches = [mixture.batch(step) for step in range(steps)]
    components, positions = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    for number in np.unique(components):
        mine = positions[components == number]
        np.testing.assert_array_equal(mine, np.arange(len(mine)))


@given(schedules(), st.data())
def test_realised_is_what_counting_finds(drawn: tuple[MixtureSchedule, int], data: st.DataObject):
    mixture, stop = drawn
    start = data.draw(st.integers(0, stop))
    assert mixture.realised(start, stop) == Counter(drawn_names(mixture, range(start, stop)))


@given(schedules())
def test_sequences_before_a_step_are_those_of_its_batches(drawn: tuple[MixtureSchedule, int]):
    mixture, steps = drawn
    sizes = [len(mixture.batch(step)[0]) for step in range(steps)]
    assert [mixture.sequences_before(step) for step in range(steps + 1)] == [0, *np.cumsum(sizes)]


STAGES = Steps[MixtureShares](((0, WEB_HEAVY), (7, CODE_HEAVY), (19, WEB_HEAVY)))
BATCHES = Steps[int](((0, 16), (5, 48), (23, 30)))


def test_any_step_asked_alone_is_what_it_is_in_a_row():
    whole = schedule(BATCHES, STAGES)
    in_a_row = [whole.batch(step) for step in range(30)]
    for step in (29, 3, 19, 18, 7):
        alone = schedule(BATCHES, STAGES).batch(step)
        np.testing.assert_array_equal(alone, in_a_row[step])


def test_a_later_stage_or_batch_size_changes_nothing_before_it():
    longer = schedule(BATCHES, STAGES)
    shorter = schedule(Steps[int](BATCHES.root[:2]), Steps[MixtureShares](STAGES.root[:2]))
    assert drawn_names(longer, range(19)) == drawn_names(shorter, range(19))


def test_the_batch_size_cuts_the_same_sequences_otherwise():
    small, large = schedule(always(8)), schedule(always(24))
    assert drawn_names(small, range(30)) == drawn_names(large, range(10))


def test_a_mixture_starts_at_its_step():
    names = drawn_names(schedule(BATCHES, STAGES), range(7))
    assert "law" not in names
    after = schedule(BATCHES, STAGES).realised(7, 19)  # 12 × 48 sequences: 9 whole blocks
    assert after == {name: 9 * count for name, count in block_counts(CODE_HEAVY, blocks_of(64)).items()}


def test_the_seed_decides_the_order_but_not_the_counts():
    one, other = (drawn_names(schedule(seed=seed), range(4)) for seed in (0, 1))
    assert one != other
    assert Counter(one) == Counter(other)


def test_blocks_differ_in_order():
    names = drawn_names(schedule(), range(8))
    assert names[:64] != names[64:128]


def test_a_component_without_a_share_moves_no_other():
    with_it = schedule(mixture=always({"aaa": 0.0, **WEB_HEAVY}))
    assert drawn_names(with_it, range(8)) == drawn_names(schedule(), range(8))
    assert "aaa" not in with_it.realised(0, 8)


@settings(max_examples=10)
@given(st.integers(10**6, 10**9))
def test_a_step_far_away_is_reached_at_once(step: int):
    mixture = schedule(Steps[int](((0, 1024), (18_500, 3072))), Steps[MixtureShares](((0, WEB_HEAVY), (20_000, CODE_HEAVY))), block=2048)
    counts = mixture.realised(0, step)
    assert sum(counts.values()) == mixture.sequences_before(step) == 18_500 * 1024 + (step - 18_500) * 3072
    components, positions = mixture.batch(step)
    names = mixture.components()
    for name in CODE_HEAVY:
        mine = positions[components == names.index(name)]
        np.testing.assert_array_equal(mine, counts[name] + np.arange(len(mine)))


@given(schedules(), st.data())
def test_any_stretch_adds_up_exactly(drawn: tuple[MixtureSchedule, int], data: st.DataObject):
    """What two stretches draw, one after the other, is what the whole of them draws, and as much as their batches hold."""
    mixture, stop = drawn
    first, middle = sorted(data.draw(st.tuples(st.integers(0, stop), st.integers(0, stop))))
    parts = Counter(mixture.realised(first, middle)) + Counter(mixture.realised(middle, stop))
    assert parts == mixture.realised(first, stop)
    assert parts.total() == mixture.sequences_before(stop) - mixture.sequences_before(first)


@given(schedules(), st.data())
def test_any_sequences_alone_are_what_they_are_in_a_row(drawn: tuple[MixtureSchedule, int], data: st.DataObject):
    mixture, stop = drawn
    everything = mixture.draw(0, mixture.sequences_before(stop))
    first, after = sorted(data.draw(st.tuples(*[st.integers(0, len(everything[0]))] * 2)))
    for alone, whole in zip(mixture.draw(first, after), everything, strict=True):
        np.testing.assert_array_equal(alone, whole[first:after])


def test_the_first_mixture_holds_before_its_own_step():
    late = schedule(mixture=Steps[MixtureShares](((9, WEB_HEAVY), (20, CODE_HEAVY))), batch=always(64))
    early = schedule(mixture=Steps[MixtureShares](((0, WEB_HEAVY), (20, CODE_HEAVY))), batch=always(64))
    assert drawn_names(late, range(25)) == drawn_names(early, range(25))
    assert late.realised(0, 9) == early.realised(0, 9)
