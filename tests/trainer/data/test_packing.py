"""No token twice, none lost but those reported, rows never overfull, order kept; each plan against a slow one."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.packing import Packed, PackingKind, pack

KINDS: tuple[PackingKind, ...] = get_args(PackingKind)
documents = st.lists(st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 60)), max_size=40)
seq_lens = st.integers(1, 20)

Piece = tuple[int, int, int, int, int]
"""Row, start in the row, document, offset in the document, length."""


def pieces(packed: Packed) -> list[Piece]:
    columns = (packed.row, packed.start, packed.document, packed.offset, packed.length)
    return [(row, start, document, offset, length) for row, start, document, offset, length in np.stack(columns, axis=1).tolist()]


def slow_chunk(lengths: list[int], seq_len: int) -> list[Piece]:
    """Token by token."""
    stream = [(document, offset) for document, length in enumerate(lengths) for offset in range(length)]
    found: list[Piece] = []
    for row in range(len(stream) // seq_len):
        for start, (document, offset) in enumerate(stream[row * seq_len : (row + 1) * seq_len]):
            if start and found[-1][2] == document:
                found[-1] = (*found[-1][:4], found[-1][4] + 1)
            else:
                found.append((row, start, document, offset, 1))
    return found


def slow_whole(lengths: list[int], seq_len: int, *, share_rows: bool) -> list[Piece]:
    """Document by document."""
    found: list[Piece] = []
    row, used = -1, seq_len
    for document, length in enumerate(lengths):
        kept = min(length, seq_len)
        if not kept:
            continue
        if used + kept > seq_len or not share_rows:
            row, used = row + 1, 0
        found.append((row, used, document, 0, kept))
        used += kept
    return found


@given(lengths=documents, seq_len=seq_lens)
@example(lengths=[], seq_len=4)
@example(lengths=[0, 0], seq_len=4)
@example(lengths=[4, 4], seq_len=4)
@example(lengths=[3], seq_len=4)
@example(lengths=[0, 9, 0], seq_len=4)
def test_plans_are_those_of_the_slow_ones(lengths: list[int], seq_len: int):
    array = np.array(lengths, np.int64)
    assert pieces(pack("chunk", array, seq_len=seq_len)) == slow_chunk(lengths, seq_len)
    assert pieces(pack("pad", array, seq_len=seq_len)) == slow_whole(lengths, seq_len, share_rows=False)
    assert pieces(pack("greedy", array, seq_len=seq_len)) == slow_whole(lengths, seq_len, share_rows=True)


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=documents, seq_len=seq_lens)
def test_no_token_is_twice_and_the_sums_add_up(kind: PackingKind, lengths: list[int], seq_len: int):
    packed = pack(kind, np.array(lengths, np.int64), seq_len=seq_len)
    places = np.zeros((packed.num_rows, seq_len), int)
    taken = [np.zeros(length, int) for length in lengths]
    for row, start, document, offset, length in pieces(packed):
        assert length > 0
        assert start + length <= seq_len
        places[row, start : start + length] += 1
        taken[document][offset : offset + length] += 1
    assert places.max(initial=0) <= 1
    assert all(tokens.max(initial=0) <= 1 for tokens in taken)
    assert packed.tokens_kept == places.sum() == sum(tokens.sum() for tokens in taken)
    assert packed.tokens_cut == sum(lengths) - packed.tokens_kept
    assert packed.tokens_padding == places.size - packed.tokens_kept
    assert places.any(axis=1).all()  # no row is all padding
    np.testing.assert_array_equal(places, np.sort(places, axis=1)[:, ::-1])  # padding is last


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=documents, seq_len=seq_lens)
def test_pieces_come_in_the_order_of_rows_and_of_documents(kind: PackingKind, lengths: list[int], seq_len: int):
    found = pieces(pack(kind, np.array(lengths, np.int64), seq_len=seq_len))
    assert [piece[:2] for piece in found] == sorted({piece[:2] for piece in found})
    assert [piece[2:4] for piece in found] == sorted({piece[2:4] for piece in found})


@given(lengths=documents, seq_len=seq_lens)
def test_chunk_is_the_reshaped_concatenation(lengths: list[int], seq_len: int):
    tokens = np.arange(sum(lengths))
    texts = np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else []
    packed = pack("chunk", np.array(lengths, np.int64), seq_len=seq_len)
    rows = np.full((packed.num_rows, seq_len), -1)
    for row, start, document, offset, length in pieces(packed):
        rows[row, start : start + length] = texts[document][offset : offset + length]
    np.testing.assert_array_equal(rows, tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len))
    assert packed.tokens_cut < seq_len


@pytest.mark.parametrize("kind", KINDS)
def test_many_documents_are_planned_alike(kind: PackingKind):
    """Sizes at which a cut-off or an overflow would show; sums in Python's integers."""
    lengths = np.random.default_rng(0).geometric(1 / 700, 50_000)
    packed = pack(kind, lengths.astype(np.int32), seq_len=4096)
    assert packed.tokens_kept + packed.tokens_cut == sum(lengths.tolist())
    assert packed.tokens_kept + packed.tokens_padding == packed.num_rows * 4096
    assert packed.row.dtype == packed.start.dtype == packed.document.dtype == packed.offset.dtype == packed.length.dtype == np.int64
    large = pack(kind, np.array([2**40, 5]), seq_len=2**39)
    assert (large.tokens_kept, large.tokens_cut) == {"chunk": (2**40, 5), "pad": (2**39 + 5, 2**39), "greedy": (2**39 + 5, 2**39)}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_are_no_lengths_is_refused(kind: PackingKind):
    with pytest.raises(DataError, match="least value of -1"):
        pack(kind, np.array([3, -1]), seq_len=4)
    with pytest.raises(DataError, match="found float64"):
        pack(kind, np.array([3.0]), seq_len=4)
    with pytest.raises(DataError, match=r"shape \(1, 2\)"):
        pack(kind, np.array([[3, 4]]), seq_len=4)
    with pytest.raises(DataError, match="seq_len 0"):
        pack(kind, np.array([3]), seq_len=0)
