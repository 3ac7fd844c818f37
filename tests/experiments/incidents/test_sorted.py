"""A shift that is predicted from a cache alone, and then trained: `experiments.incidents.sorted` with made text and a tiny model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from experiments.incidents.batch_heterogeneity import SEQ_LEN, VOCAB_SIZE, run_of
from experiments.incidents.sorted import Told, interval, rise_at, table
from experiments.incidents.sorted_orders import Asked, Curve, curve_of, is_seen, loss_shift, table_of_orders
from experiments.incidents.sorted_prediction import Pairs, predict
from experiments.incidents.sorted_runs import (
    BRANCHES,
    FEISTEL,
    LATE,
    LINEAR,
    MATHEMATICS,
    PARENTS,
    Losses,
    branches,
    shift_in_order,
    train_branch,
    try_luck,
)
from phasewise.flows.recipes.phase import FromScratch
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.packing import RowsOfTokens
from phasewise.validations.evidence.order.signals import Shift, token_mix
from tests.compilation import compile_from_now_on
from tests.trainer.token_caches import BEGIN, END, write_token_cache

STEPS, DRAWN, EASY, HARD = 40, 320, 260, 80
"""Updates, rows of the mathematics in them, and rows of its two kinds."""


def document(rng: np.random.Generator, *, is_hard: bool) -> np.ndarray:
    """One row: it counts on, or its next token is any."""
    steps = rng.integers(0, VOCAB_SIZE, SEQ_LEN - 2) if is_hard else np.ones(SEQ_LEN - 2, int)
    return np.array([BEGIN, *(2 + np.cumsum(steps) % (VOCAB_SIZE - 2)), END], np.uint16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Half of the batches are mathematics: all that is easy first, and then all that is hard."""
    root, rng = tmp_path_factory.mktemp("sorted"), np.random.default_rng(0)
    mathematics = [document(rng, is_hard=number >= EASY) for number in range(EASY + HARD)]
    prose = [document(rng, is_hard=bool(rng.random() < 0.5)) for _ in range(DRAWN)]
    caches = {name: str(write_token_cache(root / name, [texts])) for name, texts in ((MATHEMATICS, mathematics), ("prose", prose))}
    base = run_of(root / "none", 0, None, 2).but(caches=caches, stop_step=STEPS, mixture=[[0, {MATHEMATICS: 50, "prose": 50}]])
    rate = [{"kind": "constant", "start_step": 0, "end_step": STEPS, "start": 1e-2, "end": 1e-2}]
    return base.but(learning_rate=rate, order=base.order.but(block_sequences=16))


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    """What is compiled here runs for a second."""
    compile_from_now_on(quickly=True)


def test_luck_is_counted_and_the_shift_is_predicted_and_then_seen(run: RunConfig):
    cache = Path(run.caches[MATHEMATICS])
    luck = try_luck(cache, SEQ_LEN, DRAWN, 100, refused=2)
    assert len(set(luck.refused)) == 2
    assert luck.refused[0] <= luck.unlucky[0][0]
    assert luck.shifting["linear"] > 0
    assert luck.shifting["feistel"] == 0
    signal = token_mix(RowsOfTokens(TokenCache.open(cache), "chunk", SEQ_LEN), np.arange(EASY + HARD))
    ((seed, expected_stride),) = luck.unlucky
    shift, stride = shift_in_order(signal, "linear", seed, DRAWN)
    assert LATE[0] <= shift.at / DRAWN <= LATE[1]
    assert stride == expected_stride
    change = STEPS * shift.at // DRAWN
    orders = {kind: run.but(order=run.order.but(permutation=kind, seed=seed)) for kind in ("linear", "feistel")}
    for losses_of in (lambda one: predict([], one), train_branch):
        linear, feistel = (losses_of(orders[kind]) for kind in ("linear", "feistel"))
        assert rise_at(linear, change).mathematics > 1, losses_of
        assert rise_at(linear, change).overall > 0.4
        assert rise_at(feistel, change).mathematics < 0.3
        seen, step = loss_shift(linear, curve_of([feistel]))
        assert is_seen(seen)
        assert step > STEPS // 2


def test_pairs_learn_by_counting_and_never_look_ahead():
    rows = np.array([[2, 3, 4, 5]])
    pairs = Pairs(8)
    assert pairs.losses(rows) == pytest.approx([np.log(8)])
    for _ in range(50):
        pairs.learn(rows)
    known, unknown = pairs.losses(rows)[0], pairs.losses(rows[:, ::-1])[0]
    assert known < 0.5 < np.log(8) < unknown


def test_a_rise_is_from_as_many_steps_before_as_there_are_after():
    values = np.array([9.0, 9, 1, 1, 1, 3, 3, 4])
    losses = Losses(np.arange(10, 18), np.array([True] * 7 + [False]), values)
    assert rise_at(losses, 15) == pytest.approx((3 - 1, 10 / 3 - 1))


def of_values(values: Sequence[float] | np.ndarray) -> Losses:
    """A row a step: of the mathematics every second one, and the others cost what no line would have."""
    steps = np.arange(2 * len(values))
    return Losses(steps, steps % 2 == 0, np.array([cost for value in values for cost in (value, 99.0 * len(steps))]))


def test_a_loss_shifts_where_it_leaves_the_curve_of_feistel_s_orders():
    rng = np.random.default_rng(0)
    fast_at_first = 3 + 2 * np.exp(-np.arange(100) / 20)
    orders = [of_values(fast_at_first + 0.1 * rng.standard_normal(100)) for _ in range(10)]
    assert not any(is_seen(loss_shift(one, curve_of([other for other in orders if other is not one]))[0]) for one in orders)
    rising = fast_at_first + 0.1 * rng.standard_normal(100)
    rising[80:] += 0.5
    shift, step = loss_shift(of_values(rising), curve_of(orders))
    assert is_seen(shift)
    assert (step, shift.after > shift.before) == (160, True)
    flat = Curve(np.arange(2), np.array([4.0, 4.0]))
    assert is_seen(loss_shift(orders[0], flat)[0]), "that it learns is no shift, so the curve is asked"


def test_a_curve_is_the_mean_of_a_step_s_rows():
    curve = curve_of([of_values([1.0, 5.0]), of_values([2.0, 5.0])])
    assert curve.steps.tolist() == [0, 2]
    assert curve.means.tolist() == [1.5, 5.0]


def test_the_table_of_orders_counts_what_is_refused_and_what_is_seen():
    shift, none = Shift(10, 3.0, 4.0, 1.0, 1e-6), Shift(10, 3.0, 3.1, 0.1, 0.5)
    found = [Asked(1, "drawn blindly", False, 5, 0.1, shift, 5, none, False), Asked(2, "refused", True, 5, 1e-12, none, 5, shift, False)]
    assert table_of_orders(found).splitlines()[-3:] == [
        "| linear, drawn blindly | 1 | 0 | 0 | 1 | 1 |",
        "| linear, refused | 1 | 1 | 0 | 0 | 0 |",
        "| Feistel, all of these seeds | 2 | 0 | 0 | 2 | 1 |",
    ]


def test_the_table_has_the_interval_that_the_weights_give():
    calm, risen = of_values([3.0] * 20), [of_values([3.0] * 15 + [3.0 + rise] * 5) for rise in (1.0, 2.0)]
    told = [Told(7, weights, 30, dict.fromkeys(BRANCHES, calm), {LINEAR: one, FEISTEL: calm}) for weights, one in enumerate(risen)]
    lines = table(told).splitlines()
    assert lines[3] == f"| mathematics, {LINEAR} | +0.00 | +1.50 ± 6.35 |"
    assert lines[5] == "| mathematics, difference | +0.00 | +1.50 ± 6.35 |"


def test_weights_and_order_have_seeds_of_their_own():
    first, other = branches(7, 0), branches(7, 3)
    assert [phase.start.seed for phase in (first.phases[0], other.phases[0]) if isinstance(phase.start, FromScratch)] == [0, 3]
    assert first.phases[1:] == other.phases[1:]
    assert {branches(7).phase(name).order.seed for name in BRANCHES} == {7}
    assert branches(7).phase(PARENTS[0]).order == branches(8).phase(PARENTS[0]).order


def test_an_interval_is_student_s():
    assert interval([1.0]) == "+1.00"
    assert interval([1.0, 2.0, 3.0]) == "+2.00 ± 2.48"
