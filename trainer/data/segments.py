"""Which document each token of a row belongs to, and its position within it: what keeps documents in one row apart."""

import numpy as np
from jaxtyping import Int

from phasewise.trainer.data.packing import Packed


def segment_ids(tokens: Int[np.ndarray, "b t"], begin_of_text: int) -> Int[np.ndarray, "b t"]:
    """1, 2, … along each row: a segment starts at each begin-of-text token and at the row's start, where a document may go on. int32.

    Rows are full of tokens here. For rows with padding, which tokens alone do not show, use `packed_segment_ids`.
    """
    begins = tokens == begin_of_text
    ids = np.cumsum(begins, axis=1, dtype=np.int32)
    ids += ~begins[:, :1]
    return ids


def packed_segment_ids(packed: Packed, rows: Int[np.ndarray, " b"]) -> Int[np.ndarray, "b t"]:
    """The same for some rows of a packing plan, from its pieces: 1, 2, … along each row, and 0 for padding. int32."""
    first, behind = np.searchsorted(packed.row, rows, "left"), np.searchsorted(packed.row, rows, "right")
    counts = behind - first
    asked = np.repeat(np.arange(len(rows)), counts)
    pieces = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    used = np.bincount(asked, weights=packed.length[pieces], minlength=len(rows))
    ids = np.zeros((len(rows), packed.seq_len), np.int32)
    ids[asked, packed.start[pieces]] = 1
    np.cumsum(ids, axis=1, out=ids)
    ids[np.arange(packed.seq_len) >= used[:, None]] = 0
    return ids


def positions(segment_ids: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
    """0, 1, 2, … within each segment; padding (segment 0) is at 0. int32."""
    place = np.arange(segment_ids.shape[1], dtype=np.int32)
    begins = np.ones(segment_ids.shape, bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    within = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    within[segment_ids == 0] = 0
    return within
