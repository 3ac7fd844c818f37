import numpy as np
import pytest

from phasewise.validations.evidence.health.metrics import MIN_WINDOW, find_leads, find_spikes


def plain_deviations(values: np.ndarray, window: int) -> np.ndarray:
    """Each value above the mean of the window before it, in its standard deviations; windows grow to half of what there is."""
    found = np.full(len(values), np.nan)
    for row in range(MIN_WINDOW, len(values)):
        before = values[row - min(window, max(MIN_WINDOW, row // 2)) : row]
        found[row] = (values[row] - before.mean()) / before.std()
    return found


@pytest.mark.parametrize("window", [40, 100, 1000])
def test_scores_are_those_of_a_plain_loop(window: int):
    values = 3 + 0.1 * np.random.default_rng(0).normal(size=400)
    values[[150, 260]] += 2
    found = find_spikes(values, [(0, 400)], deviations=7, window=window)
    np.testing.assert_allclose(found.deviations, plain_deviations(values, window), rtol=1e-6)
    assert found.is_spike.nonzero()[0].tolist() == [150, 260]
    assert found.scored == 400 - MIN_WINDOW


def test_windows_begin_again_with_each_regime_and_leave_out_what_is_no_number():
    values = np.concatenate([np.random.default_rng(0).normal(0, 0.1, 100), np.random.default_rng(1).normal(9, 0.1, 100)])
    values[150] = np.nan
    both, apart = (find_spikes(values, regimes, deviations=7, window=50) for regimes in ([(0, 200)], [(0, 100), (100, 200)]))
    assert both.is_spike.sum() > 0
    assert (apart.is_spike.sum(), apart.scored) == (0, 200 - 2 * MIN_WINDOW - 1)
    values = np.full(100, 2.0)
    values[[60, 80]] = 3.0, 1.0
    spikes = find_spikes(values, [(0, 100)], deviations=7, window=1000).is_spike
    assert spikes.nonzero()[0].tolist() == [60], "a fall is no spike, and a rise from a constant is one"


def test_a_rise_of_the_update_norm_leads_only_the_spikes_that_follow_it_soon():
    rng = np.random.default_rng(0)
    losses = 2 + 0.01 * rng.normal(size=600)
    updates = 400 * np.exp(0.02 * rng.normal(size=600))
    losses[[300, 301, 500]] += 1
    updates[293:299] *= 2
    spikes = find_spikes(losses, [(0, 600)], deviations=7, window=1000)
    (lead,) = find_leads(spikes, updates, deviations=7, window=1000)
    assert (lead.row, lead.updates) == (300, 7)
    assert lead.factor == pytest.approx(2, rel=0.1)
    assert find_leads(spikes, np.roll(updates, -40), deviations=7, window=1000) == []
