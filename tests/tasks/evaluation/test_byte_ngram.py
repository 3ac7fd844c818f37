import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from phasewise.tasks.evaluation.ngram_baselines import ByteNgram, ngram_bits_per_byte
from phasewise.trainer.base.errors import DataError

TRAIN = ["the cat sat on the mat", "a cat é ate the rat", "", "x", "the\nthe\nthe", "aaaaaaaa"]
UNSEEN = ["the bat sat", "é", "zq", "at the rat the cat\n"]


class SlowNgram:
    """The recursion, one byte at a time, over dictionaries."""

    def __init__(self, texts: list[str], max_order: int) -> None:
        self.followers: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
        for data in (text.encode() for text in texts):
            for position, byte in enumerate(data):
                for length in range(min(position, max_order - 1) + 1):
                    self.followers[data[position - length : position]][byte] += 1

    def probability(self, byte: int, context: bytes) -> float:
        below = self.probability(byte, context[1:]) if context else 1 / 256
        seen = self.followers.get(context)
        return (seen[byte] + len(seen) * below) / (seen.total() + len(seen)) if seen else below


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6, 8])
def test_equals_the_recursion_over_dictionaries(order: int) -> None:
    slow = SlowNgram(TRAIN, order)
    expected = [
        slow.probability(byte, data[max(0, position - order + 1) : position])
        for data in (text.encode() for text in UNSEEN)
        for position, byte in enumerate(data)
    ]
    np.testing.assert_allclose(ByteNgram.fit(TRAIN, order).probabilities(UNSEEN)[-1], expected, rtol=1e-12)
    np.testing.assert_allclose(ByteNgram.fit(TRAIN, 8).probabilities(UNSEEN)[order - 1], expected, rtol=1e-12)


@pytest.mark.parametrize("context", ["", "t", "th", "zz", "the ", "aaaa"])
def test_probabilities_of_all_bytes_sum_to_one(context: str) -> None:
    # Only 128 bytes are a text by themselves: the share of the others follows from symmetry, as none above 127 but é was seen.
    model = ByteNgram.fit([text.replace("é", "e") for text in TRAIN], 5)
    ascii_mass = sum(model.probabilities([context + chr(byte)])[:, -1] for byte in range(128))
    unseen = model.probabilities([context + chr(127)])[:, -1]
    np.testing.assert_allclose(ascii_mass + 128 * unseen, 1, rtol=1e-12)


def test_contexts_do_not_reach_into_the_text_before() -> None:
    model = ByteNgram.fit(["ab", "cd"], 2)
    joined = model.probabilities(["bc"])[1, -1]
    apart = model.probabilities(["b", "c"])[1, -1]
    assert joined == apart == pytest.approx((1 + 4 / 256) / 8)
    assert model.probabilities(["ab"])[1, -1] == pytest.approx((1 + joined) / 2)


def test_bits_per_byte_by_order_and_component() -> None:
    held_out = {"prose": ["the cat sat", "the rat"], "other": ["zzzz"]}
    measured = ngram_bits_per_byte(TRAIN, held_out, orders=(3, 5))
    probabilities = ByteNgram.fit(TRAIN, 3).probabilities(held_out["prose"])[-1]
    assert measured[3].components["prose"] == pytest.approx(-sum(map(math.log2, probabilities)) / 18)
    assert measured[5].macro == pytest.approx(np.mean([*measured[5].components.values()]))
    assert measured[3].components["prose"] < 8 < measured[3].components["other"]


def test_nothing_to_fit_or_to_measure_is_refused() -> None:
    with pytest.raises(DataError, match="found 0 bytes"):
        ByteNgram.fit(["", ""], 3)
    with pytest.raises(DataError, match="found none for law"):
        ngram_bits_per_byte(TRAIN, {"code": ["x"], "law": [""]})
    with pytest.raises(ValueError, match="between 1 and 8"):
        ByteNgram.fit(TRAIN, 9)
