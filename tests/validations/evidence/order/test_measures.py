import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from phasewise.trainer.data.permutation import Kind, Permutation
from phasewise.validations.evidence.order.measures import SAMPLED, STRETCH, Sample, measure_order, take_sample, walsh_hadamard

LENGTHS = (2**20, 10**6, 786_432, 10**9 + 7, 2**33 + 5)
RATE = 1e-6


@dataclass(frozen=True)
class Table:
    places: np.ndarray

    @property
    def length(self) -> int:
        return len(self.places)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        return self.places[indices]

    def inverse(self, places: np.ndarray) -> np.ndarray:
        return np.argsort(self.places, kind="stable")[places]


@dataclass(frozen=True)
class Stride:
    length: int
    stride: int

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        return indices * self.stride % self.length

    def inverse(self, places: np.ndarray) -> np.ndarray:
        return places * pow(self.stride, -1, self.length) % self.length


def sampled(shuffle: Permutation | Stride | Table) -> Sample:
    return take_sample(shuffle.length, shuffle, shuffle.inverse)


def random_sample(rng: np.random.Generator, length: int) -> Sample:
    """What `take_sample` would see of a true random permutation: places that were not drawn before."""
    if length <= STRETCH:
        places = rng.permutation(length)
        return Sample(length, places, np.arange(length), places)
    indices = np.unique(rng.integers(0, length, SAMPLED))
    count = STRETCH + len(indices)
    if length < 8 * count:
        places = rng.permutation(length)
        return Sample(length, places[:STRETCH], indices, places[indices])
    drawn = rng.integers(0, length, 2 * count)
    _, first = np.unique(drawn, return_index=True)
    places = drawn[np.sort(first)]
    return Sample(length, places[:STRETCH], indices, places[STRETCH:count])


def judge(sample: Sample, rate: float = RATE) -> list[dict[str, Any]]:
    measures = measure_order(sample)
    return [one.judged(rate / len(measures)) for one in measures]


def alarms(sample: Sample) -> set[str]:
    return {one["name"] for one in judge(sample) if not one["passes"]}


def of_kind(kind: Kind, length: int, key: int) -> Sample:
    return sampled(Permutation(kind, length=length, key=key))


@pytest.mark.parametrize("length", LENGTHS)
def test_feistel_passes_and_the_record_s_do_not(length: int):
    for key in range(2):
        assert not alarms(of_kind("feistel", length, key))
        measured = {one["name"]: one for one in judge(of_kind("feistel_levanter", length, key))}
        flaw = measured["place's bit with one bit of the index"]
        assert (flaw["passes"], flaw["value"] > 0.5) == (False, True)
        assert flaw["detail"].startswith(f"bit 0 with bit {(length - 1).bit_length() // 2 if length < 2**33 else 17}")
        assert "commonest step" in alarms(of_kind("linear", length, key))


def test_feistel_passes_at_small_lengths():
    """Odd ones above all, where a network walks furthest; the rate is one false alarm in ten thousand for all of these together."""
    orders = [(length, key) for length in (1, 2, 3, 15, 17, 31, 101, 333, 1001, 4095, 4097) for key in range(10)]
    found = [(length, key, name) for length, key in orders for name in alarms(of_kind("feistel", length, key))]
    assert found == []


@pytest.mark.parametrize("length", [2**12, 10_007, 70_001])
def test_levanter_s_lowest_bit_shows_in_short_ranges_too(length: int):
    assert any("place's bit" in name for name in alarms(of_kind("feistel_levanter", length, 3)))


@pytest.mark.parametrize("stride", [1, 3, 2**33 + 4, 2**15])
def test_an_unlucky_stride_shifts_sorted_data(stride: int):
    found = alarms(sampled(Stride(2**33 + 5, stride)))
    assert {"phase shift of sorted data", "sorted data, too uneven", "commonest step", "close pairs in a batch, too many"} <= found


def test_a_lucky_stride_is_too_even():
    length = 2**33 + 5
    stride = next(number for number in range(round(length * (math.sqrt(5) - 1) / 2), length) if math.gcd(number, length) == 1)
    assert {"sorted data, too even", "close pairs in a batch, too few", "commonest step"} <= alarms(sampled(Stride(length, stride)))


FLAWS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "phase shift of sorted data": lambda rng, places: np.concatenate([*map(rng.permutation, np.array_split(np.sort(places), 2))]),
    "sorted data, too uneven": lambda rng, places: np.sort(places).reshape(64, -1)[rng.permutation(64)].ravel(),
    "interleaved data, too uneven": lambda rng, places: np.concatenate([rng.permutation(np.arange(start, 4096, 4)) for start in range(4)]),
    "serial correlation": lambda rng, places: np.argsort(np.argsort(np.repeat(rng.random(1024), 4) + rng.random(4096) / 2)),
    "changes of parity": lambda rng, places: np.stack([rng.permutation(2048) * 2, rng.permutation(2048) * 2 + 1], axis=1).ravel(),
    "close pairs in a batch, too many": lambda rng, places: places.reshape(-1, 2)[np.argsort(places[::2])].T.ravel(),
}


@pytest.mark.parametrize("flaw", [*FLAWS])
def test_each_flaw_is_found_by_its_name(flaw: str):
    rng = np.random.default_rng(1)
    places = FLAWS[flaw](rng, rng.permutation(4096))
    assert sorted(places) == list(range(4096))
    assert flaw in alarms(sampled(Table(places)))


@pytest.mark.parametrize("length", [40, 2**20])
def test_what_is_no_permutation_is_found(length: int):
    class Collapsed(Stride):
        def __call__(self, indices: np.ndarray) -> np.ndarray:
            return super().__call__(indices) // 2 * 2

    assert "places not taken exactly once" in alarms(sampled(Collapsed(length, 7)))
    assert "places not taken exactly once" not in alarms(sampled(Stride(length, 7)))


@pytest.mark.parametrize(("length", "count"), [(100, 300), (1000, 300), (10**9 + 7, 12)])
def test_the_rate_of_false_alarms_is_what_is_asked_for(length: int, count: int):
    """At a loose rate that can be seen: no more alarms than it says, save by chance (one in 10^6), and at short lengths some."""
    rng, rate = np.random.default_rng(length), 0.05
    alarmed = sum(any(not one["passes"] for one in judge(random_sample(rng, length), rate)) for _ in range(count))
    assert binomtest(alarmed, count, rate, alternative="greater").pvalue > 1e-6
    assert count < 100 or alarmed > 0


def test_every_measure_s_tail_is_as_far_out_as_it_says():
    rng, count = np.random.default_rng(5), 2000
    p_values = defaultdict[str, list[float]](list)
    for _ in range(count):
        for one in measure_order(random_sample(rng, 64)):
            p_values[one.name].append(one.p_value)
    assert len(p_values) == 15
    for name, found in p_values.items():
        for rate in (0.05, 0.005):
            assert binomtest(int((np.array(found) <= rate).sum()), count, rate, alternative="greater").pvalue > 1e-6, (name, rate)


@pytest.mark.parametrize("length", [50, 2**20])
def test_the_limit_is_where_the_p_value_crosses_the_rate(length: int):
    for one in measure_order(random_sample(np.random.default_rng(2), length))[1:]:
        limit = one.limit(1e-4)
        outward = 1 if one.null.bound == "max" else -1
        beyond, within = limit + outward * (1e-3 * abs(limit) + 1), limit - outward * 1e-6 * abs(limit)
        assert one.tries * one.null.chance(beyond) < 1e-4, one.name
        assert one.tries * one.null.chance(within) >= 1e-4 * 0.999, one.name


def test_the_transform_holds_every_correlation():
    signs = np.random.default_rng(3).choice([-1.0, 1.0], (2, 64))
    masks, inputs = np.arange(64)[:, None], np.arange(64)[None, :]
    characters = 1 - 2 * (np.bitwise_count(masks & inputs) & 1).astype(float)
    np.testing.assert_allclose(walsh_hadamard(signs), signs @ characters.T)
