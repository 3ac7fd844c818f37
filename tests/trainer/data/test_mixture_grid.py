"""Which mixtures are refused, with what advice, and what becomes of a block that must be cut: the record of Marin 32B."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import DataOrder, MixtureShares, Steps, always
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts, check_shares

HALVES: MixtureShares = {"web": 50.0, "code": 50.0}
THIRDS: MixtureShares = {"web": 200 / 3, "code": 100 / 3}
# Marin 32B: pretraining, and what of Mantis's mixture shows its difficulty (shares rescaled to sum to 100).
PRETRAINING: MixtureShares = {
    "medium": 30.69, "hq_synth": 24.70, "medium_low": 13.98, "hq_actual": 8.30, "medium_high": 7.49, "low_actual": 6.37,
    "low_synth": 5.70, "starcoder": 2.27, "proofpile_2": 0.50,
}  # fmt: skip
MANTIS: MixtureShares = {"nemotron": 83.05, "megamath_web": 5.57, "text_code_block": 4.24, "finemath": 7.046, "medu": 0.094}
BATCH_32B = Steps[int](((0, 8192), (18_500, 7680), (21_010, 8192)))


def order(block: int, **changes: Any) -> DataOrder:
    return DataOrder(seed=0, permutation="linear", block_sequences=block, **changes)


def two_stages(batch: Steps[int], step: int, block: int, **changes: Any) -> MixtureSchedule:
    mixture = Steps[MixtureShares](((0, HALVES), (step, THIRDS)))
    return MixtureSchedule(batch=batch, mixture=mixture, order=order(block, **changes))


@pytest.fixture(scope="module")
def record() -> MixtureSchedule:
    """Marin 32B from step 0 to Mantis's second mixture."""
    mixture = Steps[MixtureShares](((0, PRETRAINING), (160_000, MANTIS), (174_000, PRETRAINING)))
    return MixtureSchedule(batch=BATCH_32B, mixture=mixture, order=order(2048, cut_blocks=True))


def test_the_7680_stretch_of_the_record_is_carried_and_not_patched(record: MixtureSchedule):
    assert record.sequences_before(160_000) == 1_309_434_880
    assert [record.cut_at(step) for step in (0, 160_000, 174_000)] == [0, 1024, 0]


def test_the_block_that_the_record_cuts_has_every_share_to_within_a_sequence_or_two(record: MixtureSchedule):
    drawn, blocks = record.realised(0, 160_000), 1_309_434_880 // 2048
    counts = block_counts(PRETRAINING, order(2048))
    for name, share in PRETRAINING.items():
        assert abs(drawn[name] - blocks * counts[name] - 1024 * share / 100) < 1.5


def test_a_new_block_starts_at_a_cut(record: MixtureSchedule):
    """The 8,192 sequences of step 160,000 are four whole blocks of the new mixture."""
    names = [record.components()[number] for number in record.batch(160_000)[0]]
    for block in range(4):
        assert Counter(names[2048 * block : 2048 * (block + 1)]) == block_counts(MANTIS, order(2048))


def test_no_sequence_is_left_out_or_used_again_at_a_cut():
    mixture = Steps[MixtureShares](((0, PRETRAINING), (160_000, {"medium": 60.0, "starcoder": 40.0})))
    schedule = MixtureSchedule(batch=BATCH_32B, mixture=mixture, order=order(2048, cut_blocks=True))
    components, positions = (np.concatenate(parts) for parts in zip(schedule.batch(159_999), schedule.batch(160_000), strict=True))
    before = schedule.realised(0, 159_999)
    for number, name in enumerate(schedule.components()):
        mine = positions[components == number]
        np.testing.assert_array_equal(mine, before[name] + np.arange(len(mine)))


@pytest.mark.parametrize(
    ("step", "found", "advice"),
    [
        (19_001, 1536, "start it at step 19000 or 19004,"),
        (21_009, 1536, "start it at step 21008,"),  # 21,012 has the next batch size
        (21_010, 1024, "start it at step 21008,"),
        (18_501, 1536, "start it at step 18500 or 18504,"),
    ],
)
def test_where_the_record_had_a_choice_it_would_have_been_shown(step: int, found: int, advice: str):
    with pytest.raises(ConfigError) as refusal:
        two_stages(BATCH_32B, step, 2048)
    assert str(refusal.value) == (
        f"the mixture from step {step} must start where a block of 2048 sequences ends, found {found} sequences in the block before it: "
        f"{advice} or let the recipe's order declare cut_blocks."
    )


@given(
    batch=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24)), min_size=1, max_size=3, unique_by=lambda entry: entry[0]),
    step=st.integers(1, 60),
    block=st.integers(4, 48),
    begins=st.integers(0, 30),
)
def test_whatever_starts_off_the_grid_is_refused_with_the_steps_that_are_on_it(
    batch: list[tuple[int, int]], step: int, block: int, begins: int
):
    """Against all steps, one by one. Beyond a block's number of steps the offsets repeat."""
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
    """Steps 4, 8, 12 … end a block of 64; the stage from 13 on is refused, and 12 is another's start."""
    with pytest.raises(ConfigError, match=r"the mixture from step 13 .*: start it at step 16,"):
        stages_of_16(0, 12, 13, 20)
    with pytest.raises(ConfigError, match=r"the mixture from step 13 .*: start it at step 12,"):
        stages_of_16(0, 8, 13, 16)
    with pytest.raises(ConfigError, match=r"the mixture from step 13 .* before it: let the recipe's order declare cut_blocks\.$"):
        stages_of_16(0, 12, 13, 16)  # neither 12 nor 16 is free for 13


def stages_of_16(*steps: int) -> MixtureSchedule:
    mixture = Steps[MixtureShares](tuple((step, (HALVES, THIRDS)[number % 2]) for number, step in enumerate(steps)))
    return MixtureSchedule(batch=always(16), mixture=mixture, order=order(64))


def test_a_component_that_a_block_has_no_sequence_of_is_refused_with_what_would_do():
    thin: MixtureShares = {"web": 99.9, "maths": 0.06, "law": 0.04}
    with pytest.raises(ConfigError) as refusal:
        MixtureSchedule(batch=always(16), mixture=always(thin), order=order(64))
    assert str(refusal.value) == (
        "the mixture from step 0 must have a sequence of every component in every block, and a block of 64 has none of maths (0.06 %), "
        "law (0.04 %): give each 1.5625 %, or take blocks of 2500 sequences."
    )
    MixtureSchedule(batch=always(16), mixture=always(thin), order=order(2500))
    MixtureSchedule(batch=always(16), mixture=always({"web": 96.875, "maths": 1.5625, "law": 1.5625}), order=order(64))
    later = Steps[MixtureShares](((0, HALVES), (9, {"web": 99.9, "law": 0.1})))
    with pytest.raises(ConfigError, match=r"from step 9 .* none of law \(0\.1 %\): give it 1\.5625 %"):
        MixtureSchedule(batch=always(64), mixture=later, order=order(64))


UNEVEN: MixtureShares = {"web": 71.3, "code": 18.4, "law": 10.3}


def test_a_share_that_a_block_cannot_express_is_refused_with_what_would_do():
    with pytest.raises(ConfigError) as refusal:
        check_shares(UNEVEN, order(10), step=7, max_error_points=1.0)
    assert str(refusal.value) == (
        "component code is 18.4 % of the mixture from step 7 and 20 % of a block of 10 sequences (2 of them), 1.6 percentage points off "
        "where the recipe allows 1: a share of 20 %, or blocks of 100 sequences, would do."
    )
    check_shares(UNEVEN, order(100), step=7, max_error_points=1.0)
    check_shares({"web": 70.0, "code": 20.0, "law": 10.0}, order(10), step=7, max_error_points=0.0)
    with pytest.raises(ConfigError, match=r"a share of 20 % would do\.$"):
        check_shares(UNEVEN, order(10), step=7, max_error_points=0.0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(1, 3000), st.sampled_from(["floor", "largest_remainder"]))
def test_both_limits_are_held_to_exactly(weights: list[int], block: int, rounding: str):
    shares: MixtureShares = {f"component-{number}": 100 * weight / sum(weights) for number, weight in enumerate(weights)}
    blocks = order(block, rounding=rounding)
    counts = block_counts(shares, blocks)
    points = [abs(100 * counts[name] / block - share) for name, share in shares.items()]
    percents = [100 * error / share for error, share in zip(points, shares.values(), strict=True)]
    check_shares(shares, blocks, step=0, max_error_points=max(points) + 1e-6, max_error_percent=max(percents) + 1e-6)
    check_shares(shares, blocks, step=0, max_error_points=max(points) + 1e-6)
    for limits in ({"max_error_points": max(points) - 1e-6}, {"max_error_points": 100, "max_error_percent": max(percents) - 1e-6}):
        with pytest.raises(ConfigError, match="off where the recipe allows"):
            check_shares(shares, blocks, step=0, **limits)
