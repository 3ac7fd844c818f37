"""How documents are laid into rows of one length: plans over the documents' lengths alone, which touch no token.

`chunk` concatenates all documents and cuts the whole into rows (Marin's pre-training). `pad` gives each document a row of its own
(supervised fine-tuning). `greedy` fills rows with whole documents in their order (Trinity's fine-tuning).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import PackingKind

PACKING_VERSION = 1
"""Raised where a plan lays the same documents otherwise."""


@dataclass(frozen=True)
class Packed:
    """A plan. Its arrays have one entry a piece, which is a run of one document's tokens in one row; they are ordered by row and start.

    Attributes:
        row: which row the piece lies in, from 0.
        start: where in the row it starts.
        document: which document it is of, by its place among the lengths. Documents without tokens have no piece.
        offset: where in the document it starts.
        length: its tokens, at least one.
        tokens_cut: tokens of the documents that are in no row.
        tokens_padding: places in the rows that hold no token; they come after the row's last piece.
    """

    row: Int[np.ndarray, " p"]
    start: Int[np.ndarray, " p"]
    document: Int[np.ndarray, " p"]
    offset: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]
    seq_len: int
    num_rows: int
    tokens_kept: int
    tokens_cut: int
    tokens_padding: int


def pack(kind: PackingKind, lengths: Int[np.ndarray, " n"], *, seq_len: int) -> Packed:
    """Lay documents of these lengths, in their order, into rows of `seq_len` tokens.

    Args:
        kind: `chunk` splits documents where a row ends and leaves out the last row if it is not full; `pad` and `greedy` keep the first
            `seq_len` tokens of a document and never split it; `greedy` starts a row where the next document does not fit.
        lengths: tokens of each document, 0 allowed.
    """
    lengths = np.asarray(lengths)
    if seq_len < 1:
        raise DataError(f"Rows need a length of at least one token, found seq_len {seq_len}.")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise DataError(
            f"Packing needs one integer from 0 on per document, found {lengths.dtype} of shape {lengths.shape}"
            + (f" with a least value of {lengths.min()}: these are no lengths." if lengths.size else ".")
        )
    return {"chunk": _chunk, "pad": _pad, "greedy": _greedy}[kind](lengths.astype(np.int64), seq_len)


def _chunk(lengths: np.ndarray, seq_len: int) -> Packed:
    """In the concatenation a piece starts where a document does and where a row does; an empty document starts where the next one does."""
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    num_rows = total // seq_len
    kept = num_rows * seq_len
    begins = ends - lengths
    place = np.sort(np.concatenate([begins[begins < kept], np.arange(num_rows) * seq_len]), kind="stable")  # merges two sorted runs
    place = place[np.diff(place, prepend=-1) > 0]
    document = np.searchsorted(ends, place, "right")
    return Packed(
        row=place // seq_len,
        start=place % seq_len,
        document=document,
        offset=place - begins[document],
        length=np.diff(place, append=kept),
        seq_len=seq_len,
        num_rows=num_rows,
        tokens_kept=kept,
        tokens_cut=total - kept,
        tokens_padding=0,
    )


def _pad(lengths: np.ndarray, seq_len: int) -> Packed:
    document = np.flatnonzero(lengths)
    return _whole(lengths, document, np.arange(len(document)), seq_len)


def _greedy(lengths: np.ndarray, seq_len: int) -> Packed:
    """`following[d]` is the document that starts the next row where `d` starts one; only the hops along it are a loop."""
    document = np.flatnonzero(lengths)
    length = np.minimum(lengths[document], seq_len)
    ends = np.cumsum(length)
    following = np.searchsorted(ends, ends - length + seq_len, "right").tolist()
    starts_row = np.zeros(len(document), np.int64)
    first = 0
    while first < len(following):
        starts_row[first] = 1
        first = following[first]
    return _whole(lengths, document, np.cumsum(starts_row) - 1, seq_len)


def _whole(lengths: np.ndarray, document: np.ndarray, row: np.ndarray, seq_len: int) -> Packed:
    """A plan of undivided documents, each with its row."""
    length = np.minimum(lengths[document], seq_len)
    begins = np.cumsum(length) - length
    first_of_row = np.searchsorted(row, row, "left")
    num_rows, kept = int(row[-1]) + 1 if len(row) else 0, int(length.sum())
    return Packed(
        row=row,
        start=begins - begins[first_of_row],
        document=document,
        offset=np.zeros_like(document),
        length=length,
        seq_len=seq_len,
        num_rows=num_rows,
        tokens_kept=kept,
        tokens_cut=int(lengths.sum()) - kept,
        tokens_padding=num_rows * seq_len - kept,
    )
