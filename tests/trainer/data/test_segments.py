"""Segments and positions, against loops over tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from phasewise.trainer.data.packing import PackingKind, pack, packed_segment_ids, positions, segment_ids

BEGIN = 0
batches = arrays(np.int32, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, 3))
documents = st.lists(st.integers(0, 25), max_size=15)


def slow_segment_ids(tokens: np.ndarray) -> list[list[int]]:
    rows: list[list[int]] = []
    for row in tokens.tolist():
        segment, ids = 1, []
        for place, token in enumerate(row):
            if place and token == BEGIN:
                segment += 1
            ids.append(segment)
        rows.append(ids)
    return rows


def slow_positions(ids: np.ndarray) -> list[list[int]]:
    rows: list[list[int]] = []
    for row in ids.tolist():
        before, count, found = -1, 0, []
        for segment in row:
            count = count + 1 if segment == before else 0
            found.append(count if segment else 0)
            before = segment
        rows.append(found)
    return rows


@given(tokens=batches)
def test_segments_and_positions_are_those_of_the_loops(tokens: np.ndarray):
    ids = segment_ids(tokens, BEGIN)
    assert ids.dtype == np.int32
    assert ids.tolist() == slow_segment_ids(tokens)
    assert positions(ids).dtype == np.int32
    assert positions(ids).tolist() == slow_positions(ids)


def test_a_row_that_begins_inside_a_document_starts_with_segment_1():
    tokens = np.array([[7, 8, BEGIN, 9, BEGIN], [BEGIN, 8, 8, BEGIN, BEGIN], [7, 8, 9, 7, 8]])
    ids = segment_ids(tokens, BEGIN)
    assert ids.tolist() == [[1, 1, 2, 2, 3], [1, 1, 1, 2, 3], [1, 1, 1, 1, 1]]
    assert positions(ids).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]


def test_padding_is_segment_0_at_position_0():
    packed = pack("greedy", np.array([2, 1, 4, 9]), seq_len=4)
    ids = packed_segment_ids(packed, np.arange(3))
    assert ids.tolist() == [[1, 1, 2, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert positions(ids).tolist() == [[0, 1, 0, 0], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert packed_segment_ids(pack("pad", np.array([2, 5]), seq_len=3), np.arange(2)).tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("kind", ["chunk", "pad", "greedy"])
@given(lengths=documents, seq_len=st.integers(1, 12), data=st.data())
def test_a_plan_s_segments_are_those_of_a_loop_over_its_pieces(kind: PackingKind, lengths: list[int], seq_len: int, data: st.DataObject):
    packed = pack(kind, np.array(lengths, np.int64), seq_len=seq_len)
    expected = np.zeros((packed.num_rows, seq_len), np.int32)
    for row, start, length in zip(packed.row.tolist(), packed.start.tolist(), packed.length.tolist(), strict=True):
        expected[row, start : start + length] = expected[row].max() + 1
    rows = data.draw(st.lists(st.integers(0, packed.num_rows - 1), max_size=6)) if packed.num_rows else []
    ids = packed_segment_ids(packed, np.array(rows, np.int64))  # any rows, in any order, also one twice
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, expected[rows])
    assert positions(ids).tolist() == slow_positions(ids)


@given(lengths=documents, seq_len=st.integers(1, 12))
def test_begin_of_text_tokens_and_the_plan_agree_on_chunks(lengths: list[int], seq_len: int):
    lengths = [length for length in lengths if length]
    tokens = np.concatenate([np.arange(length) for length in lengths]) if lengths else np.arange(0)  # 0 begins each document
    packed = pack("chunk", np.array(lengths, np.int64), seq_len=seq_len)
    rows = tokens[: packed.tokens_kept].reshape(-1, seq_len)
    np.testing.assert_array_equal(segment_ids(rows, BEGIN), packed_segment_ids(packed, np.arange(packed.num_rows)))
