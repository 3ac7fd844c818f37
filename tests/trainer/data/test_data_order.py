"""What the data order decides beside the seed: how shares become counts of a block, and where the lineage's sequences begin."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import MixtureShares, RunConfig, Steps, always
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts
from tests.trainer.data.test_mixture import BATCHES, CODE_HEAVY, STAGES, WEB_HEAVY, blocks_of, drawn_names, schedule, whole_shares

# ── rounding ──


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


def test_floor_by_example():
    """At 0.094 % of 2,048 a component has 1.93 sequences: one by floor, two by the largest remainder."""
    mixture: MixtureShares = {"medu": 0.094, "web": 60.0, "code": 39.906}  # 1.93, 1228.8, 817.27
    assert block_counts(mixture, blocks_of(2048, rounding="floor")) == {"medu": 1, "web": 1230, "code": 817}
    assert block_counts(mixture, blocks_of(2048)) == {"medu": 2, "web": 1229, "code": 817}
    assert block_counts({"b": 25.0, "a": 25.0, "d": 25.0, "c": 25.0}, blocks_of(7, rounding="floor")) == {"b": 1, "a": 4, "d": 1, "c": 1}


def test_a_component_that_floor_leaves_out_of_a_block_is_refused_and_the_largest_remainder_keeps_it():
    mixture = always({"web": 99.96, "gsm8k": 0.04})
    with pytest.raises(ConfigError, match=r"a block of 2048 has none of gsm8k \(0\.04 %\)"):
        MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(2048, rounding="floor"))
    MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(2048))


def test_blocks_are_drawn_with_the_counts_of_the_order_s_rounding():
    floored = MixtureSchedule(batch=always(16), mixture=always(WEB_HEAVY), order=blocks_of(64, rounding="floor"))
    expected = {"web": 46, "code": 12, "maths": 4, "dialogue": 1}  # 44.99, 12.86, 4.8, 1.34 sequences: two are left over
    assert block_counts(WEB_HEAVY, blocks_of(64, rounding="floor")) == {**expected, "web": 47}
    assert floored.realised(0, 40) == {name: 10 * count for name, count in {**expected, "web": 47}.items()}


# ── where it begins ──


@st.composite
def late_orders(draw: st.DrawFn) -> tuple[MixtureSchedule, MixtureSchedule, int]:
    """A schedule that begins at a step, one of the same batches and mixtures whose step 0 that step is, and the step."""
    first, block = draw(st.integers(0, 25)), draw(st.integers(4, 40))

    def by_steps(values: st.SearchStrategy) -> Steps:
        changes = sorted(draw(st.sets(st.integers(1, 29), max_size=2)))
        return Steps(tuple((step, draw(values)) for step in [0, *changes]))

    def moved(steps: Steps) -> Steps:
        return Steps(((0, steps.at(first)), *((step - first, value) for step, value in steps.root if step > first)))

    batch, mixture = by_steps(st.integers(1, 17)), by_steps(whole_shares(block))
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
        components, positions = late.batch(first + step)
        assert [late.components()[number] for number in components] == drawn_names(fresh, range(step, step + 1))
        np.testing.assert_array_equal(positions, fresh.batch(step)[1])
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    assert late.realised(first + start, first + stop) == fresh.realised(start, stop)


def test_what_was_drawn_before_an_order_begins_is_drawn_again():
    """The mixture of step 0 goes on, the batches too: from the first sequence of every component."""
    late = MixtureSchedule(batch=BATCHES, mixture=STAGES, order=blocks_of(64, first_step=8, cut_blocks=True))
    assert late.components() == ("code", "dialogue", "law", "maths", "web")  # CODE_HEAVY at step 8, WEB_HEAVY from 19
    assert late.sequences_before(8) == 0
    assert late.sequences_before(12) == 4 * 48
    assert late.realised(8, 12) == {name: 3 * count for name, count in block_counts(CODE_HEAVY, blocks_of(64)).items()}
    components, positions = late.batch(8)
    assert {int(positions[components == number].min()) for number in np.unique(components)} == {0}
    whole = schedule(BATCHES, STAGES)
    assert whole.batch(8)[1].min() > 0


def test_a_mixture_that_ended_before_an_order_begins_is_not_asked_for_its_counts():
    """Neither is the grid: what was drawn before moved no block."""
    thin: MixtureShares = {"web": 99.9, "law": 0.1}
    mixture = Steps[MixtureShares](((0, thin), (3, WEB_HEAVY), (11, CODE_HEAVY)))
    with pytest.raises(ConfigError, match="from step 0 must have a sequence of every component"):
        MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64))
    late = MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64, first_step=7))
    assert late.components() == ("code", "dialogue", "law", "maths", "web")
    assert late.cut_at(11) == 0
    with pytest.raises(ConfigError, match="from step 11 must start where a block of 64 sequences ends, found 48 sequences"):
        MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64, first_step=8))


# ── in a run ──


def test_a_run_whose_order_begins_where_it_starts_reads_what_a_new_run_reads(make_run: Callable[..., RunConfig]):
    """From step 12 of the test's run: batches of 8, two steps of the first mixture, then the second."""
    rate = [{"kind": "constant", "start_step": 0, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    order = {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True}
    late = Loader(make_run("begun late", start_step=12, learning_rate=rate, order={**order, "first_step": 12}))
    mixture = [[0, {"books": 60, "code": 40}], [2, {"books": 30, "code": 30, "web": 40}]]
    fresh = Loader(make_run("anew", stop_step=12, learning_rate=rate, order=order, batch=[[0, 8]], mixture=mixture))
    going_on = Loader(make_run("going-on", start_step=12, learning_rate=rate, order=order))
    for step in range(12):
        np.testing.assert_array_equal(late.batch(12 + step).tokens, fresh.batch(step).tokens)
        assert not np.array_equal(late.batch(12 + step).tokens, going_on.batch(12 + step).tokens)
    assert (late.contract()["first_step"], going_on.contract()["first_step"]) == (12, 0)
