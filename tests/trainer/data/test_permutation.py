import itertools
from collections import Counter, defaultdict

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, combine_pvalues

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.permutation import PERMUTATION_VERSIONS, Kind, Permutation, derive_key
from phasewise.validations.evidence.order.measures import measure_order, take_sample


def permute(kind: Kind, indices: np.ndarray, *, length: int, key: int) -> np.ndarray:
    return Permutation(kind, length=length, key=key)(indices)


KINDS: tuple[Kind, ...] = ("linear", "linear_levanter", "feistel", "feistel_levanter")
keys = st.integers(0, 2**64 - 1)

PROBED_LENGTHS = (2**15, 2**20, 786_432, 10**9 + 7, 2**33 + 5)
NUM_KEYS = 4
ALPHA = 1e-6
"""A measure's false alarms on true random permutations, for all keys together; fifteen measures over five lengths make less than 0.01 %."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(length=st.integers(1, 100_000), key=keys)
@example(length=4097, key=1)
@example(length=2**16, key=1)
@example(length=2**16 + 1, key=1)
@example(length=316**2, key=1)
@example(length=316**2 + 1, key=2**64 - 1)
@example(length=100_000, key=0)
def test_every_place_is_taken_once(kind: Kind, length: int, key: int):
    permutation = Permutation(kind, length=length, key=key)
    places = permutation(np.arange(length))
    np.testing.assert_array_equal(np.sort(places), np.arange(length))
    np.testing.assert_array_equal(permutation.inverse(places), np.arange(length))


@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_the_network_is_a_bijection_also_where_the_default_shuffles(key: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.trainer.data.permutation.MAX_SHUFFLED_LENGTH", 0)
    for length in range(1, 150):
        permutation = Permutation("feistel", length, key)
        places = permutation(np.arange(length))
        np.testing.assert_array_equal(np.sort(places), np.arange(length))
        np.testing.assert_array_equal(permutation.inverse(places), np.arange(length))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(length=st.integers(1, 2**40), key=keys, data=st.data())
def test_an_index_alone_goes_where_it_goes_among_others_and_comes_back(kind: Kind, length: int, key: int, data: st.DataObject):
    indices = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    permutation = Permutation(kind, length=min(length, data.draw(st.sampled_from([10_000, 2**33, 2**40]))), key=key)
    indices = [index % permutation.length for index in indices]
    places = permutation(np.array(indices))
    assert [int(permutation(np.array(index))) for index in indices] == places.tolist()
    assert permutation.inverse(places).tolist() == indices


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64, np.uint8])
def test_shape_and_indices_are_kept_and_places_are_int64(kind: Kind, dtype: type[np.generic]):
    indices = np.arange(60, dtype=dtype).reshape(3, 4, 5)
    places = permute(kind, indices, length=61, key=5)
    assert places.shape == (3, 4, 5)
    assert places.dtype == np.int64
    np.testing.assert_array_equal(indices.ravel(), np.arange(60))
    np.testing.assert_array_equal(permute(kind, indices.T, length=61, key=5), places.T)
    assert int(permute(kind, np.array(7, dtype), length=61, key=5)) == places.flat[7]
    assert permute(kind, np.empty((0, 3), dtype), length=61, key=5).shape == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_outside_and_what_is_no_integer_are_refused(kind: Kind):
    permutation = Permutation(kind, length=61, key=5)
    for number in (-1, 61, 2**62, -(2**63), 2**64 - 1):
        for map_numbers in (permutation, permutation.inverse):
            with pytest.raises(DataError, match=f"from 0 to 60, found {number}"):
                map_numbers(np.array([3, number, 4], np.uint64 if number > 2**63 else np.int64))
    for other, name in ((1.0, "float64"), (True, "bool")):
        with pytest.raises(DataError, match=f"needs integers, found {name}"):
            permutation(np.array([other]))
    for length, key, found in ((0, 1, 0), (-5, 1, -5), (2**40 + 1, 1, 2**40 + 1), (10, -1, -1), (10, 2**64, 2**64)):
        with pytest.raises(DataError, match=f"found {found}"):
            Permutation(kind, length=length, key=key)


@pytest.mark.parametrize("length", [10**9 + 7, 2**32, 2**32 + 1, 2**33 - 9, 2**39 + 23, 2**40, 12, 1])
def test_linear_is_exact(length: int):
    indices = [0, 1 % length, length - 1, length // 2, *np.random.default_rng(1).integers(0, length, 2000).tolist()]
    for key in (0, 1, 2**64 - 1):
        places = permute("linear", np.array(indices), length=length, key=key).tolist()
        offset, multiplier = places[0], (places[1] - places[0]) % length
        assert places == [(offset + i * multiplier) % length for i in indices]


def levanter_reference(index: int, *, length: int, seed: int) -> int:
    """Levanter's rules in Python's integers: the power of two above, its bits in two parts, five rounds, again while outside."""
    above = 1
    while above < length:
        above *= 2
    num_bits = above.bit_length() - 1
    modulus = 2 ** (num_bits - num_bits // 2)
    round_keys = np.random.Generator(np.random.PCG64(seed)).integers(0, modulus, size=5, dtype=np.uint64)
    while True:
        upper, lower = divmod(index, modulus)
        for round_key in round_keys:
            upper, lower = lower, upper ^ ((lower * 2654435761 + int(round_key)) % modulus)
        index = upper * modulus + lower
        if index < length:
            return index


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 2**20, 1_100_000, 10**9 + 7, 2**33 + 5, 2**39 + 1, 2**40])
def test_feistel_levanter_is_levanter_s(length: int):
    rng = np.random.default_rng(length)
    for seed in (0, 7, 2**30 - 1):
        indices = np.concatenate([rng.integers(0, length, 60), [0, length - 1]])
        expected = [levanter_reference(int(index), length=length, seed=seed) for index in indices]
        assert permute("feistel_levanter", indices, length=length, key=seed).tolist() == expected


@pytest.mark.parametrize("length", [1, 2, 3, 12, 1000, 2**20, 30030 * 3000, 94_906_265])
def test_linear_levanter_is_levanter_s_for_the_same_key(length: int):
    """Levanter's rules with its own types: NumPy multiplies the drawn int64 and an unsigned index in float64."""
    for number in (0, 7):
        seed = jax.random.randint(jax.random.fold_in(jax.random.key(number), 3), (), 0, 2**30).item()
        generator = np.random.Generator(np.random.PCG64(seed))
        a, b = np.int64(1), np.int64(0)
        while length > 1:
            a = generator.integers(1, length)
            if np.gcd(a, length) == 1:
                b = generator.integers(0, length)
                break
        indices = np.unique([0, length - 1, *np.random.default_rng(1).integers(0, length, 200)])
        expected = [int((a * np.array(index).astype(np.uint64) + b) % length) for index in indices]
        assert permute("linear_levanter", indices, length=length, key=seed).tolist() == expected


@pytest.mark.parametrize("length", PROBED_LENGTHS)
def test_feistel_cannot_be_distinguished_from_random(length: int):
    p_values: dict[str, list[float]] = defaultdict(list)
    for number in range(NUM_KEYS):
        permutation = Permutation("feistel", length=length, key=derive_key("probe", number))
        for measure in measure_order(take_sample(length, permutation, permutation.inverse)):
            p_values[measure.name].append(measure.p_value)
    for name, found in p_values.items():
        _, together = np.asarray(combine_pvalues(found, method="fisher"))
        assert together > ALPHA, name


@pytest.mark.parametrize("length", [3, 5])
def test_feistel_gives_every_order_of_a_few_alike(length: int):
    orders = list(itertools.permutations(range(length)))
    counts = Counter(tuple(permute("feistel", np.arange(length), length=length, key=key).tolist()) for key in range(3000))
    assert chisquare([counts[order] for order in orders]).pvalue > 1e-6


@pytest.mark.parametrize("length", [2**16, 10**9 + 7])
def test_orders_of_other_keys_and_lengths_are_unrelated(length: int):
    orders = [permute("feistel", np.arange(65_535), length=length - shorter, key=key) for key in range(5) for shorter in (0, 1)]
    correlations = np.asarray(np.corrcoef(np.stack(orders).astype(np.float64)))
    assert np.abs(correlations[np.triu_indices(10, 1)]).max() < 5.5 / 256  # one false alarm in 10^6 for the 45 of them


def test_keys_depend_on_every_part_and_on_where_it_ends():
    parts: list[tuple[str | int, ...]] = [("a", 1), ("a", 2), ("b", 1), ("a", "b", 1), ("ab", 1), ("a", 11), ("a", 1, 1)]
    made = {derive_key(*part) for part in parts if 0 <= derive_key(*part) < 2**64}
    assert len(made) == len(parts)


def test_the_orders_are_those_of_their_versions():
    assert PERMUTATION_VERSIONS == {"linear": 1, "linear_levanter": 1, "feistel": 2, "feistel_levanter": 1}
    assert derive_key("component", 0, "books", 0) == 7911865551608456141
    indices = np.arange(5)
    assert permute("linear", indices, length=1000, key=1).tolist() == [887, 138, 389, 640, 891]
    assert permute("feistel", indices, length=1000, key=1).tolist() == [493, 109, 519, 710, 147]
    assert permute("feistel", indices, length=10**6, key=1).tolist() == [318030, 280833, 989936, 243193, 967839]
    assert permute("feistel_levanter", indices, length=10**6, key=1).tolist() == [391952, 358128, 885168, 949552, 371440]
    distant = {kind: int(permute(kind, np.array(2**39), length=2**40, key=2**63)) for kind in KINDS}
    assert distant.pop("linear_levanter") == 106050795364
    assert distant == {"linear": 445117168372, "feistel": 1029002464395, "feistel_levanter": 22177216250}
