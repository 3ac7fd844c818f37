"""Bijections at every length, exact arithmetic, and keys that matter."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.data.permutation import Kind, derive_key, permute

KINDS: tuple[Kind, ...] = ("linear", "feistel")
lengths = st.integers(1, 10_000)
keys = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("kind", KINDS)
@given(length=lengths, key=keys)
@example(length=1, key=0)
@example(length=2, key=0)
@example(length=3, key=2**64 - 1)
@example(length=4096, key=1)
@example(length=4097, key=1)
def test_every_place_is_taken_once(kind: Kind, length: int, key: int):
    places = permute(kind, np.arange(length), length=length, key=key)
    np.testing.assert_array_equal(np.sort(places), np.arange(length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2**40 - 1, 2**40 - 87, 2**39 + 1, 10**12])
def test_no_two_of_a_hundred_thousand_meet_in_a_huge_range(kind: Kind, length: int):
    rng = np.random.default_rng(0)
    indices = np.unique(np.concatenate([rng.integers(0, length, 90_000), np.arange(5000), length - 1 - np.arange(5000)]))
    places = permute(kind, indices, length=length, key=3)
    assert places.max() < length
    assert len(np.unique(places)) == len(indices)


@pytest.mark.parametrize("kind", KINDS)
@given(length=lengths, key=keys, data=st.data())
def test_any_index_alone_goes_where_it_goes_among_all(kind: Kind, length: int, key: int, data: st.DataObject):
    whole = permute(kind, np.arange(length), length=length, key=key)
    chosen = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
    np.testing.assert_array_equal(permute(kind, np.array(chosen), length=length, key=key), whole[chosen])


@pytest.mark.parametrize("kind", KINDS)
def test_the_shape_is_kept_and_the_indices_too(kind: Kind):
    indices = np.arange(60).reshape(3, 4, 5)
    places = permute(kind, indices, length=61, key=5)
    assert places.shape == (3, 4, 5)
    np.testing.assert_array_equal(indices.ravel(), np.arange(60))


@pytest.mark.parametrize("kind", ["linear", "feistel"])
def test_one_index_alone_may_come_without_a_shape(kind: Kind):
    assert int(permute(kind, np.array(7), length=61, key=5)) == permute(kind, np.array([7]), length=61, key=5)[0]


@pytest.mark.parametrize("length", [10**9 + 7, 2**39 + 23, 2**40 - 1, 12, 1])
def test_linear_is_exact(length: int):
    """Affine over Python's integers: f(i) = f(0) + i · (f(1) − f(0)) mod length, also where a product does not fit 64 bits."""
    rng = np.random.default_rng(1)
    indices = [0, 1 % length, length - 1, length // 2, *(int(i) for i in rng.integers(0, length, 2000))]
    for key in (0, 1, 2**64 - 1):
        places = [int(place) for place in permute("linear", np.array(indices), length=length, key=key)]
        offset, multiplier = places[0], (places[1] - places[0]) % length
        assert places == [(offset + i * multiplier) % length for i in indices]


@pytest.mark.parametrize("length", [10**9 + 7, 2**39 + 23])
def test_linear_multiplies_by_large_numbers(length: int):
    """Else neighbours would stay neighbours, and the exactness above would say nothing."""
    multipliers: list[int] = []
    for key in range(20):
        first, second = (int(place) for place in permute("linear", np.array([0, 1]), length=length, key=key))
        multipliers.append((second - first) % length)
    assert max(multipliers) > length // 2
    assert sum(length // 100 < m < length - length // 100 for m in multipliers) >= 18


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1000, 2**16, 10**9 + 7])
def test_another_key_is_another_order(kind: Kind, length: int):
    indices = np.arange(1000)
    orders = np.stack([permute(kind, indices, length=length, key=key) for key in range(20)])
    assert len(np.unique(orders, axis=0)) == 20
    meetings = np.mean(orders[0] == orders[1:])
    assert meetings < 0.02


@pytest.mark.parametrize("num_bits", [15, 16])
@pytest.mark.parametrize("key", range(4))
def test_feistel_s_bits_are_not_bits_of_the_index(key: int, num_bits: int):
    """The lowest bit of the place decides odd and even shards; an affine map would hand one of the index's bits on to it."""
    indices = np.arange(2**num_bits)
    places = permute("feistel", indices, length=2**num_bits, key=key).astype(np.int64)
    bits_of = lambda values: (values[:, None] >> np.arange(num_bits)) & 1  # noqa: E731
    correlations = np.corrcoef(bits_of(indices).T, bits_of(places).T)[:num_bits, num_bits:]
    assert np.abs(correlations[:, 0]).max() < 0.1
    assert np.abs(correlations).max() < 0.1


def test_linear_does_hand_the_lowest_bit_on():
    """What the test above rules out, shown on the kind that has it: at a power of two the lowest bit of the place is that of the index."""
    places = permute("linear", np.arange(2**16), length=2**16, key=0).astype(np.int64)
    assert abs(np.corrcoef(np.arange(2**16) & 1, places & 1)[0, 1]) == pytest.approx(1.0)


def test_feistel_leaves_no_trace_of_the_order():
    places = permute("feistel", np.arange(50_000), length=50_000, key=9).astype(np.float64)
    assert abs(np.corrcoef(np.arange(50_000), places)[0, 1]) < 0.02
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.02
    gaps = np.abs(np.diff(places)) / 50_000
    assert gaps.mean() == pytest.approx(1 / 3, abs=0.01)  # as for two independent draws


def test_keys_depend_on_every_part_and_on_where_it_ends():
    parts: list[tuple[str | int, ...]] = [("a", 1), ("a", 2), ("b", 1), ("a", "b", 1), ("ab", 1), ("a", 11), ("a", 1, 1)]
    made = {derive_key(*part) for part in parts}
    assert len(made) == len(parts)
    assert all(0 <= key < 2**64 for key in made)


def test_the_order_is_that_of_version_1():
    """Changing the order of existing runs needs another `PERMUTATION_VERSION`: a resume compares it."""
    indices = np.arange(5)
    assert derive_key("component", 0, "books", 0) == 7911865551608456141
    assert permute("linear", indices, length=1000, key=1).tolist() == [887, 138, 389, 640, 891]
    assert permute("feistel", indices, length=1000, key=1).tolist() == [183, 904, 7, 64, 794]
