"""Intervals, tests and detectable differences of experiments, against SciPy's and by simulation."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.arm_differences import ERROR_RATE, Measured, difference_row, difference_table
from phasewise.validations.evidence.proportions import Pairs, difference_interval

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("is_paired", [True, False])
def test_seeds_alone_give_the_intervals_and_tests_of_student_and_welch(is_paired: bool):
    control, values = RNG.normal(3, 0.1, 4).tolist(), RNG.normal(3.1, 0.3, 4).tolist()
    (row,) = difference_table([Measured("hot", "loss", values, control, is_paired=is_paired)]).to_dict("records")
    test: Any = stats.ttest_rel(values, control) if is_paired else stats.ttest_ind(values, control, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert [row[name] for name in ("p_value", "low", "high")] == pytest.approx([test.pvalue, interval.low, interval.high])
    assert row["difference"] == pytest.approx(np.mean(values) - np.mean(control)) == pytest.approx((row["low"] + row["high"]) / 2)


def test_more_seeds_do_not_shrink_the_error_of_shared_items():
    pairs = Pairs(200, 30, 20)
    low, high = difference_interval(pairs)
    found = [difference_row(Measured("hot", "score", [0.55] * n, [0.5] * n, items=[pairs] * n), 0.05) for n in (2, 50)]
    assert [one["high"] - one["low"] for one in found] == pytest.approx([high - low] * 2)
    spread = difference_row(Measured("hot", "score", [0.5, 0.6], [0.5, 0.5], items=[pairs] * 2), 0.05)
    both = math.hypot(found[0]["item_error"], spread["seed_error"])
    assert (spread["item_error"], spread["seed_error"]) == pytest.approx((found[0]["item_error"], 0.05))
    freedom = both**4 / spread["seed_error"] ** 4  # of Satterthwaite: the items' error is known
    assert (spread["high"] - spread["low"]) / 2 == pytest.approx(stats.t.isf(0.025, freedom) * both)


def test_the_tests_of_an_experiment_share_the_error_rate_and_a_failed_arm_helps_no_other():
    close = Measured("a", "loss", [3.0, 3.1, 3.2], [3.05, 3.15, 3.29])
    alone = difference_table([close])
    table = difference_table([close, Measured("b", "loss", [], []), Measured("c", "loss", [3.0], [3.0])])
    assert table["adjusted_p_value"][0] == pytest.approx(3 * alone["p_value"][0])
    assert (alone["is_shown"][0], table["is_shown"].tolist()) == (True, [False] * 3)
    assert table["p_value"].isna().tolist() == [False, True, True]  # a single seed tells no error
    assert table["smallest_detectable"][0] > alone["smallest_detectable"][0]
    with pytest.raises(DataError, match="loss of d: expected finite values, as many"):
        difference_row(Measured("d", "loss", [1.0, 2.0], [1.0]), 0.05)


def test_false_calls_keep_the_rate_and_the_detectable_difference_is_found_in_four_of_five():
    trials, tests, n, deviation = 2000, 4, 3, 0.1
    draws = RNG.normal(0, deviation, (trials, tests, 2, n))
    tables = [difference_table([Measured("a", str(at), *draw) for at, draw in enumerate(trial)]) for trial in draws[:400]]
    assert sum(table["is_shown"].any() for table in tables) / len(tables) < ERROR_RATE + 3 * math.sqrt(ERROR_RATE / len(tables))
    error = deviation * math.sqrt(2 / n)  # known here, where an experiment estimates it
    stated = [difference_row(Measured("a", "loss", *trial[0]), 0.05) for trial in draws]
    shift = float(np.mean([one["smallest_detectable"] / one["seed_error"] for one in stated])) * error
    found = [difference_row(Measured("a", "loss", trial[0, 0] + shift, trial[0, 1]), 0.05)["p_value"] <= 0.05 for trial in draws]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)
