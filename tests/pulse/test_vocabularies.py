"""The arithmetic of the experiment on vocabularies: bits per byte of files together, and how sure it is."""

import numpy as np
import pytest

from tests.pulse.vocabularies import drawn_again, vocabularies_of_kinds


def test_files_that_are_alike_leave_no_doubt():
    assert drawn_again(np.array([[20.0, 40.0, 60.0]]), np.array([10, 20, 30])) == (2.0, 2.0, 2.0)


def test_files_count_by_their_bytes():
    assert drawn_again(np.array([[10.0, 300.0]]), np.array([10, 100])).value == pytest.approx(310 / 110)


def test_seeds_that_differ_are_in_the_interval():
    """Files are alike: all doubt is that of the seeds. Their mean is the value."""
    sizes = np.full(50, 10)
    found = drawn_again(np.array([np.full(50, 20.0), np.full(50, 30.0), np.full(50, 40.0), np.full(50, 50.0)]), sizes)
    assert found.value == pytest.approx(3.5)
    assert (found.low, found.high) == (pytest.approx(2.5), pytest.approx(4.5))


def test_sizes_are_to_each_other_as_the_record_s():
    tables = vocabularies_of_kinds()
    assert [one.size for one in tables["one size"]] == [2048] * 3
    assert [(one.split, one.size) for one in tables["sizes as the record's"]] == [("llama2", 2048), ("neox", 3216), ("llama3", 8208)]


def test_the_interval_is_that_of_the_mean():
    """Of 400 files with a spread of one, the mean is known to 1.96 / √400 either way."""
    bits = np.random.default_rng(1).normal(3.0, 1.0, 400)
    found = drawn_again(bits[None], np.ones(400))
    assert found.value == pytest.approx(bits.mean())
    assert (found.low - found.value, found.high - found.value) == pytest.approx((-0.098, 0.098), abs=0.012)
