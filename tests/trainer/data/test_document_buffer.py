import itertools
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data import document_buffer
from phasewise.trainer.data.document_buffer import DocumentBuffer, Pieces
from phasewise.trainer.data.permutation import Permutation, derive_key

Choose = Callable[[int], int]  # number of live documents → which of them is drawn


def draw(key: int, number: int, live: int) -> int:
    """Which of the live documents draw `number` takes: SplitMix64 (Steele, Lea and Flood, 2014) in plain integers."""
    mask = 2**64 - 1
    mixed = (key + (number + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    mixed ^= mixed >> 31
    return ((mixed >> 24) * live) >> 40


def buffer_of(lengths: Sequence[int], *, seq_len: int, low: int, key: int = 5) -> DocumentBuffer:
    starts = np.cumsum([0, *lengths])
    stream = Permutation("feistel", length=len(lengths), key=derive_key("stream", key))
    return DocumentBuffer(starts, seq_len=seq_len, buffer_documents=low, stream=stream, key=derive_key("draws", key))


def rows_by_hand(documents: Sequence[Sequence[int]], *, seq_len: int, low: int, choose: Choose) -> list[list[int]]:
    """The report's description, token by token; documents in the order in which they come."""
    coming = deque(deque(document) for document in documents if document)
    live, rows, row = list[deque[int]](), list[list[int]](), list[int]()
    while live or coming:
        if len(live) <= low:
            while coming and len(live) < 2 * low:
                live.append(coming.popleft())
        chosen = choose(len(live))
        while live[chosen] and len(row) < seq_len:
            row.append(live[chosen].popleft())
        if not live[chosen]:
            live[chosen] = live[-1]
            live.pop()
        if len(row) == seq_len:
            rows.append(row)
            row = []
    return rows


def tokens_of(pieces: Pieces) -> list[int]:
    """The numbers of the tokens in a row, whose pieces must follow one another."""
    assert pieces.start.tolist() == [0, *np.cumsum(pieces.length)[:-1].tolist()]
    return [token for first, length in zip(pieces.first, pieces.length, strict=True) for token in range(first, first + length)]


LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


@settings(max_examples=60)
@given(LENGTHS, st.integers(1, 12), st.integers(1, 20), st.integers(0, 2**64 - 1))
def test_rows_are_those_of_a_slow_buffer_of_tokens(lengths: list[int], seq_len: int, low: int, key: int):
    buffer = buffer_of(lengths, seq_len=seq_len, low=low, key=key)
    starts = np.cumsum([0, *lengths])
    stream = Permutation("feistel", length=len(lengths), key=derive_key("stream", key))(np.arange(len(lengths)))
    draws = itertools.count()
    expected = rows_by_hand(
        [range(starts[document], starts[document + 1]) for document in stream], seq_len=seq_len, low=min(low, len(lengths)),
        choose=lambda live: draw(derive_key("draws", key), next(draws), live),
    )  # fmt: skip
    assert [tokens_of(buffer.row(number)) for number in range(buffer.num_rows)] == expected
    assert buffer.num_rows == sum(lengths) // seq_len


def test_each_live_document_is_drawn_as_often_as_any_other():
    counts = Counter(draw(derive_key("draws", key), number, 7) for key in range(50) for number in range(200))
    assert chisquare([counts[one] for one in range(7)]).pvalue > 1e-5


@pytest.fixture
def lengths() -> list[int]:
    return np.random.default_rng(3).integers(0, 90, 400).tolist()


def test_any_row_can_be_asked_for_at_any_time(lengths: list[int], monkeypatch: pytest.MonkeyPatch):
    whole = buffer_of(lengths, seq_len=32, low=16)
    monkeypatch.setattr(document_buffer, "WINDOW_ROWS", 4)
    monkeypatch.setattr(document_buffer, "WINDOWS_KEPT", 2)
    monkeypatch.setattr(document_buffer, "MAX_STATES", 3)
    small = buffer_of(lengths, seq_len=32, low=16)
    for number in np.random.default_rng(0).integers(0, whole.num_rows, 300).tolist():
        assert tokens_of(small.row(number)) == tokens_of(whole.row(number))
    for number in (-1, 10_000):
        with pytest.raises(DataError, match=rf"has no row {number}"):
            whole.row(number)


def test_the_row_of_a_token_is_found(lengths: list[int]):
    buffer = buffer_of(lengths, seq_len=32, low=16)
    expected, found = np.full((2, sum(lengths)), -1)
    for number in range(buffer.num_rows):
        expected[tokens_of(buffer.row(number))] = number
    asked = np.random.default_rng(1).permutation(sum(lengths))
    which, pieces = buffer.pieces_of(asked, asked + 1)
    found[which] = pieces.row
    np.testing.assert_array_equal(found, expected[asked])
    assert (expected == -1).sum() == sum(lengths) % 32


def test_every_piece_of_a_range_is_found_where_ranges_lie_in_one_piece_or_overlap():
    buffer = buffer_of([17, 3, 40, 25, 9, 31], seq_len=16, low=2)
    first, stop = np.array([[41, 55], [22, 26], [24, 29], [30, 30], [0, 9], [60, 85], [50, 53], [61, 64]]).T
    expected = {
        (number, row, int(at), int(begin))
        for row, pieces in enumerate(buffer.row(row) for row in range(buffer.num_rows))
        for at, begin, length in zip(pieces.start, pieces.first, pieces.length, strict=True)
        for number in range(len(first))
        if max(begin, first[number]) < min(begin + length, stop[number])
    }
    which, found = buffer.pieces_of(first, stop)
    assert len(which) == len(expected)
    assert set(zip(which.tolist(), found.row.tolist(), found.start.tolist(), found.first.tolist(), strict=True)) == expected
    assert max(Counter((row, at) for _, row, at, _ in expected).values()) > 1


def test_a_run_without_a_buffer_does_not_import_the_compiler():
    asked = "import sys, trainer.data.loader; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
