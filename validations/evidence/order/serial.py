"""Does a place tell the next? Correlations and steps along the order, runs of one parity, and a drift over sorted data."""

import math

import numpy as np

from phasewise.validations.evidence.order.null import Measure, brownian_bridge, commonest, longest_run, most_surprising, normal_size
from phasewise.validations.evidence.order.sample import Sample

MAX_LAG_POWER = 15


def serial_measures(sample: Sample) -> list[Measure]:
    """All of them."""
    return [_correlation(sample), _steps(sample), *_parity(sample.stretch), _drift(sample)]


def cusum(values: np.ndarray) -> tuple[int, float]:
    """Where the mean of some values changes most (Page's cumulative sums), and how much.

    The first is how many values come before the change. The second is the largest size of the sum of deviations from the mean, in
    standard deviations times the root of their number: a Brownian bridge's largest distance, where the values come in random order, and
    a little less where they are few (Kolmogorov's distribution).
    """
    centred = values - values.mean()
    deviation = centred.std()
    if not deviation > 0:
        return len(values) // 2, 0.0
    sums = np.abs(np.cumsum(centred))[:-1]
    at = int(sums.argmax())
    return at + 1, float(sums[at] / deviation / math.sqrt(len(values)))


def _correlation(sample: Sample) -> Measure:
    """With the next place, with those powers of two away, and with the one a root of the length away, where Feistel networks repeat."""
    places = sample.stretch - sample.stretch.mean()
    count = len(places)
    variance = float(places @ places)
    measures: list[Measure] = []
    for lag in _lags(sample, powers=MAX_LAG_POWER):
        pairs = count - lag
        found = float(places[:-lag] @ places[lag:]) / variance + pairs / (count * (count - 1))
        measures.append(Measure("serial correlation", abs(found), normal_size(math.sqrt(pairs) / count), detail=f"{lag} apart"))
    return most_surprising(measures)


def _steps(sample: Sample) -> Measure:
    """How often the commonest step comes, from a place to the next, the next but one, and the one a root of the length away."""
    measures: list[Measure] = []
    for lag in _lags(sample, powers=1):
        steps = np.sort((sample.stretch[lag:] - sample.stretch[:-lag]) % sample.length)
        ends = np.flatnonzero(np.diff(steps, append=-1))
        runs = np.diff(ends, prepend=-1)
        most = int(runs.argmax())
        null = commonest(sample.length - 1, len(steps))
        told = f"a step of {steps[ends[most]]:,}, {lag} apart"
        measures.append(Measure("commonest step", int(runs[most]), null, detail=told))
    return most_surprising(measures)


def _lags(sample: Sample, *, powers: int) -> list[int]:
    lags = {*(2**power for power in range(powers + 1)), math.isqrt(sample.length - 1) + 1}
    return sorted(lag for lag in lags if lag <= len(sample.stretch) // 2)


def _parity(places: np.ndarray) -> list[Measure]:
    """How often even and odd places change (Wald and Wolfowitz's runs), and the longest run of one of them."""
    parity = places & 1
    changes = np.flatnonzero(np.diff(parity))
    count = len(parity)
    odd = int(parity.sum())
    mean = 2 * odd * (count - odd) / count
    deviation = math.sqrt(max(mean * (mean - 1) / (count - 1), 0.0)) or 1.0
    longest = int(np.diff(changes, prepend=-1, append=count - 1).max())
    return [
        Measure("changes of parity", abs(len(changes) - mean), normal_size(deviation, step=1.0), detail=f"{len(changes):,} changes"),
        Measure("longest run of one parity", longest, longest_run(count)),
    ]


def _drift(sample: Sample) -> Measure:
    """How far the mean place moves: the phase shift of data that is sorted through and through."""
    looked_at = {"in a row": sample.stretch} | ({} if sample.is_whole else {"over the whole order": sample.places})
    measures: list[Measure] = []
    for told, places in looked_at.items():
        at, distance = cusum(places)
        shift = (places[at:].mean() - places[:at].mean()) / places.std()
        detail = f"{shift:+.2f} deviations after {at:,} of {len(places):,} places {told}"
        measures.append(Measure("phase shift of sorted data", distance, brownian_bridge(), detail=detail))
    return most_surprising(measures)
