"""A shift that is predicted from a cache alone, and then trained: `tests.pulse.sorted` with made text and a tiny model."""

from pathlib import Path

import numpy as np
import pytest

from tests.compilation import compile_from_now_on
from tests.pulse.batch_heterogeneity import SEQ_LEN, VOCAB_SIZE, run_of
from tests.pulse.sorted import interval, rise_at
from tests.pulse.sorted_prediction import Pairs, predict
from tests.pulse.sorted_runs import LATE, MATHEMATICS, Losses, shift_in_order, train_branch, try_luck
from tests.trainer.token_caches import BEGIN, END, write_token_cache
from trainer.config import RunConfig
from trainer.data.cache import TokenCache
from trainer.data.rows import RowsOfTokens
from validations.evidence.order.signals import token_mix

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
    luck = try_luck(cache, SEQ_LEN, DRAWN, 100)
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
        linear, feistel = (rise_at(losses_of(orders[kind]), change) for kind in ("linear", "feistel"))
        assert linear.mathematics > 1, losses_of
        assert linear.overall > 0.4
        assert feistel.mathematics < 0.3


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


def test_an_interval_is_student_s():
    assert interval([1.0]) == "+1.00"
    assert interval([1.0, 2.0, 3.0]) == "+2.00 ± 2.48"
