"""What a refusal advises is true: whoever follows it is not refused again."""

import re

from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import MixtureShares, Steps, always
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts, check_shares
from tests.trainer.data.test_mixture import CODE_HEAVY, WEB_HEAVY, blocks_of
from tests.trainer.data.test_mixture_grid import order, two_stages

ADVICE = re.compile(r"in steps (\d+) to (\d+) put it out; end them at step ([\d or]+),")


def said_of(batch: Steps[int], step: int, block: int) -> str:
    """Why the second of two mixtures is refused; nothing where it is not."""
    try:
        two_stages(batch, step, block)
    except ConfigError as refusal:
        return str(refusal)
    return ""


@given(
    batch=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24)), min_size=1, max_size=4, unique_by=lambda entry: entry[0]),
    step=st.integers(1, 60),
    block=st.integers(2, 48),
)
def test_batches_that_end_where_it_is_said_put_the_grid_out_no_more(batch: list[tuple[int, int]], step: int, block: int):
    sizes = Steps[int](((0, batch[0][1]), *sorted(batch[1:])))
    if advice := ADVICE.search(said_of(sizes, step, block)):
        for end in map(int, advice[3].split(" or ")):
            moved = Steps[int](tuple((end if at == int(advice[2]) else at, size) for at, size in sizes.root))
            assert said_of(moved, step, block) == ""


@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    times=st.integers(1, 9),
    rounding=st.sampled_from(["floor", "largest_remainder"]),
)
def test_a_block_has_the_shares_that_it_can_express(weights: list[int], times: int, rounding: str):
    """Also where floating point takes a little from a whole count."""
    shares = {f"c{number}": 100 * weight / sum(weights) for number, weight in enumerate(weights)}
    counts = block_counts(shares, order(times * sum(weights), rounding=rounding))
    assert list(counts.values()) == [times * weight for weight in weights]


@given(weights=st.lists(st.integers(1, 1000), min_size=2, max_size=6), block=st.integers(2, 300), points=st.floats(0.1, 20))
def test_another_rounding_is_advised_only_where_it_helps(weights: list[int], block: int, points: float):
    shares = {f"c{number}": 100 * weight / sum(weights) for number, weight in enumerate(weights)}
    try:
        check_shares(shares, order(block, rounding="floor"), step=0, max_error_points=points)
    except ConfigError as refusal:
        if "or rounding by largest_remainder" in str(refusal):
            check_shares(shares, order(block), step=0, max_error_points=points)


def test_a_first_mixture_after_the_orders_first_step_is_one_stage():
    """It holds before its own step, too."""
    mixture = Steps[MixtureShares](((9, WEB_HEAVY), (21, CODE_HEAVY)))
    late = MixtureSchedule(batch=always(16), mixture=mixture, order=blocks_of(64, first_step=5))
    fresh = MixtureSchedule(batch=always(16), mixture=Steps(((0, WEB_HEAVY), (16, CODE_HEAVY))), order=blocks_of(64))
    for step in range(30):
        for found, expected in zip(late.batch(5 + step), fresh.batch(step), strict=True):
            assert (found == expected).all()
