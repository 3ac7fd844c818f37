"""The baseline must be what it says it is."""

import numpy as np
import pytest

from experiments.bench.permutation import LevanterArithmetic
from phasewise.trainer.data.permutation import Permutation


@pytest.mark.parametrize("length", [2, 1000, 2**20, 1_100_000, 10**9 + 7, 2**33 + 5])
def test_the_baseline_is_the_record_s_permutation(length: int):
    indices = np.unique(np.linspace(0, length - 1, 2000).astype(np.int64))
    baseline = LevanterArithmetic(length, 7)
    record = Permutation.build("feistel_levanter", length=length, key=7)
    assert np.array_equal(baseline(indices), record(indices))
    assert [baseline.at(int(index)) for index in indices[-20:]] == record(indices[-20:]).tolist()
