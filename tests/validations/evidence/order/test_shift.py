import numpy as np
import pytest
from scipy.stats import binomtest

from phasewise.validations.evidence.order.evidence import find_shift


@pytest.mark.parametrize("at", [500, 1000, 1800])
def test_a_step_is_found_where_it_is(at: int):
    signal = np.random.default_rng(1).normal(size=2000)
    signal[at:] += 1.5
    shift = find_shift(signal)
    assert shift.p_value < 1e-9
    assert abs(shift.at - at) < 40
    assert shift.after - shift.before == pytest.approx(1.5, abs=0.25)
    assert shift.deviations == pytest.approx((shift.after - shift.before) / signal.std())


@pytest.mark.parametrize(
    "values",
    [
        np.arange(300.0),
        np.repeat([0.0, 1.0], [290, 10]),
        np.random.default_rng(0).pareto(0.5, 300),
        np.repeat([0.0, 1.0, 5.0], 3),
    ],
    ids=["even", "rare", "heavy tail", "few"],
)
def test_chance_is_seldom_taken_for_a_change(values: np.ndarray):
    rng = np.random.default_rng(7)
    count = 2000
    found = np.array([find_shift(rng.permutation(values)).p_value for _ in range(count)])
    for rate in (0.05, 0.005):
        assert binomtest(int((found <= rate).sum()), count, rate, alternative="greater").pvalue > 1e-6


def test_what_does_not_vary_does_not_change():
    for signal in (np.empty(0), np.ones(1), np.full(50, 3.0)):
        assert (find_shift(signal).p_value, find_shift(signal).deviations) == (1.0, 0.0)
