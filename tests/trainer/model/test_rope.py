"""Frequencies against explicit formulas, and rotations as rotations."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import Llama3RopeScaling, Rope
from phasewise.trainer.model.decoder import frequencies, rotate, rotations

LLAMA3 = Llama3RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=8192)


def test_plain_frequencies_are_powers_of_theta():
    found = frequencies(Rope(theta=500_000.0, scaling=None), 128)
    assert found.shape == (64,)
    assert found[0] == 1.0
    for plane in (1, 31, 63):
        assert found[plane] == pytest.approx(math.exp(-math.log(500_000.0) * 2 * plane / 128), rel=1e-12)


def test_llama3_keeps_fast_planes_and_slows_slow_ones_down():
    plain = frequencies(Rope(theta=500_000.0, scaling=None), 128)
    stretched = frequencies(Rope(theta=500_000.0, scaling=LLAMA3), 128)
    wavelengths = 2 * math.pi / plain
    fast, slow = wavelengths < 8192 / 4, wavelengths > 8192 / 1
    assert fast.sum() > 10
    assert slow.sum() > 10
    np.testing.assert_array_equal(stretched[fast], plain[fast])
    np.testing.assert_allclose(stretched[slow], plain[slow] / 8, rtol=1e-12)


def test_llama3_interpolates_between_them():
    plain = frequencies(Rope(theta=500_000.0, scaling=None), 128)
    stretched = frequencies(Rope(theta=500_000.0, scaling=LLAMA3), 128)
    between = [plane for plane, f in enumerate(plain) if 8192 / 4 <= 2 * math.pi / f <= 8192]
    assert len(between) >= 3
    for plane in between:
        smooth = (8192 / (2 * math.pi / plain[plane]) - 1.0) / (4.0 - 1.0)
        assert stretched[plane] == pytest.approx((1 - smooth) * plain[plane] / 8 + smooth * plain[plane], rel=1e-12)
        assert plain[plane] / 8 < stretched[plane] < plain[plane]


def test_rotations_keep_lengths_and_depend_on_distance_alone():
    rope = Rope(theta=10_000.0, scaling=None)
    rng = np.random.default_rng(0)
    query, key = np.repeat(rng.normal(size=(2, 1, 1, 1, 8)), 20, axis=2).astype(np.float32)
    turned_query, turned_key = (np.asarray(rotate(x, rotations(rope, 20, 8)))[0, :, 0] for x in (query, key))
    np.testing.assert_allclose(np.linalg.norm(turned_query, axis=-1), np.linalg.norm(query[0, :, 0], axis=-1), rtol=1e-6)
    scores = turned_query @ turned_key.T
    for distance in (0, 1, 5):
        diagonal = np.diagonal(scores, -distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert abs(scores[5, 0] - scores[0, 0]) > 1e-2


def test_position_zero_is_not_turned():
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 8)).astype(np.float32)
    turned = rotate(jnp.asarray(x), rotations(Rope(theta=10_000.0, scaling=None), 3, 8))
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
