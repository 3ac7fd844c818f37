from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import LossOn, PackingKind
from phasewise.trainer.data.cache import TokenCache, fetch
from phasewise.trainer.data.packing import ComponentRows, RowRule, counted_before, pack
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache

document_lengths = st.lists(st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 60)), max_size=40)
seq_lens = st.integers(1, 20)
KINDS: tuple[PackingKind, ...] = get_args(PackingKind)
WHOLE: tuple[PackingKind, ...] = ("pad", "greedy")
LOSSES: tuple[LossOn, ...] = get_args(LossOn)
Piece = tuple[int, int, int, int]  # row, start in the row, document, length


def slow_whole(lengths: list[int], seq_len: int, *, share_rows: bool) -> list[Piece]:
    found: list[Piece] = []
    row, used = -1, seq_len
    for document, length in enumerate(lengths):
        kept = min(length, seq_len)
        if not kept:
            continue
        if used + kept > seq_len or not share_rows:
            row, used = row + 1, 0
        found.append((row, used, document, kept))
        used += kept
    return found


@given(lengths=document_lengths, seq_len=seq_lens)
@example(lengths=[0, 0], seq_len=4)
@example(lengths=[4, 4], seq_len=4)
@example(lengths=[3], seq_len=4)
@example(lengths=[0, 9, 0], seq_len=4)
def test_plans_are_those_of_the_slow_ones(lengths: list[int], seq_len: int):
    for kind in WHOLE:
        expected = slow_whole(lengths, seq_len, share_rows=kind == "greedy")
        packed = pack(kind, np.array(lengths, np.int64), seq_len=seq_len)
        pieces = np.stack([packed.row, packed.start, packed.document, packed.length], axis=1)
        assert list(map(tuple, pieces.tolist())) == expected
        assert packed.num_rows == len({row for row, *_ in expected})
        assert packed.tokens_kept == sum(length for *_, length in expected)


def test_many_and_long_documents_are_planned_alike():
    lengths = np.random.default_rng(0).geometric(1 / 700, 50_000)
    for kind in WHOLE:
        packed = pack(kind, lengths.astype(np.int32), seq_len=4096)
        assert packed.tokens_kept == np.minimum(lengths, 4096).sum()
        assert packed.row.dtype == packed.start.dtype == packed.document.dtype == packed.length.dtype == np.int64
        assert pack(kind, np.array([2**40, 5]), seq_len=2**39).tokens_kept == 2**39 + 5


SEQ_LEN = 12
Conversation = tuple[np.ndarray, list[tuple[int, int]]]


class Place(NamedTuple):
    """One place of a row: its token, the number of its document in the row, and whether it is predicted."""

    token: int
    segment: int
    target: bool


PADDING = Place(END, 0, target=False)


def conversation(length: int, first: int, rng: np.random.Generator) -> Conversation:
    """A document with different tokens and up to two answers, one of which may end with its last token but one."""
    edges = sorted(rng.choice(np.arange(1, length), min(4, 2 * ((length - 1) // 2)), replace=False).tolist())
    return np.array([BEGIN, *range(first, first + length - 2), END], np.uint16), list(zip(edges[::2], edges[1::2], strict=True))


def test_what_are_no_lengths_is_refused():
    for lengths, seq_len in (([3, -1], 4), ([3.0], 4), ([[3, 4]], 4), ([3], 0)):
        with pytest.raises(DataError, match="expected one length from 0 per document"):
            pack("pad", np.array(lengths), seq_len=seq_len)


@pytest.fixture(scope="module")
def conversations() -> list[list[Conversation]]:
    """Two shards, and documents shorter than a row, as long as one, and longer."""
    rng = np.random.default_rng(3)
    lengths = [4, 3, 12, 30, 5, 5, 2, 13, 7, 25, 3, 3, 3, 12, 6]
    firsts = np.cumsum([2, *lengths]).tolist()
    every = [conversation(length, first, rng) for length, first in zip(lengths, firsts, strict=False)]
    return [every[:7], every[7:]]


@pytest.fixture(scope="module")
def cache(conversations: list[list[Conversation]], tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    return TokenCache.open(write_conversations(tmp_path_factory.mktemp("conversations") / "talk", conversations))


def slow_rows(conversations: list[list[Conversation]], kind: PackingKind, loss_on: LossOn) -> list[list[Place]]:
    rows: list[list[Place]] = [[]]
    for document, answers in (one for shard in conversations for one in shard):
        places = [(int(token), loss_on == "all" or any(first <= at < stop for first, stop in answers)) for at, token in enumerate(document)]
        if kind != "chunk":
            places = places[:SEQ_LEN]
            if rows[-1] and (kind == "pad" or len(rows[-1]) + len(places) > SEQ_LEN):
                rows.append([])
        for number, (token, counts) in enumerate(places):
            if len(rows[-1]) == SEQ_LEN:
                rows.append([])
            row = rows[-1]
            segment = 1 if not row else row[-1].segment + (number == 0)
            row.append(Place(token, segment, counts and bool(row) and (kind == "chunk" or number > 0)))
    if kind == "chunk":
        return [row for row in rows if len(row) == SEQ_LEN]
    return [row + [PADDING] * (SEQ_LEN - len(row)) for row in rows]


@pytest.mark.parametrize("loss_on", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_targets_are_those_of_the_reference(
    conversations: list[list[Conversation]], cache: TokenCache, kind: PackingKind, loss_on: LossOn
):
    laid = ComponentRows(cache, RowRule(kind, loss_on), SEQ_LEN)
    expected = slow_rows(conversations, kind, loss_on)
    assert laid.num_rows == len(expected)
    rows = np.random.default_rng(0).permutation(laid.num_rows)
    tokens, places = np.zeros((len(rows), SEQ_LEN), np.int32), np.arange(len(rows))[::-1]
    fetch(laid.read(rows, tokens, places))
    segments, targets, counts = laid.segment_ids(rows), laid.targets(rows), laid.targets_of(rows)
    for number, row in enumerate(rows.tolist()):
        assert tokens[places[number]].tolist() == [place.token for place in expected[row]]
        assert targets[number].tolist() == [place.target for place in expected[row]]
        assert counts[number] == sum(place.target for place in expected[row])
        if segments is not None:
            assert segments[number].tolist() == [place.segment for place in expected[row]]
    assert (segments is None) == (kind == "chunk")


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_and_its_tokens_are_found_from_each_other(cache: TokenCache, kind: PackingKind):
    laid = ComponentRows(cache, RowRule(kind), SEQ_LEN)
    rows = np.arange(laid.num_rows)
    firsts, used = laid.firsts(rows), laid.used(rows)
    of_token = {token: row for row in rows.tolist() for token in range(firsts[row], firsts[row] + used[row])}
    for token in range(cache.manifest.tokens):
        assert list(laid.between(token, token + 1)) == ([of_token[token]] if token in of_token else [])
    assert list(laid.between(0, cache.manifest.tokens)) == rows.tolist()
    assert sum(used) == len(of_token) < cache.manifest.tokens


def test_answers_of_plain_text_are_refused_and_a_component_without_documents_has_no_row(tmp_path: Path):
    cache = TokenCache.open(write_token_cache(tmp_path / "web", [[np.array([BEGIN, 5, 6, END], np.uint16)]]))
    with pytest.raises(DataError, match=r"component web must be of conversations if only answers count, found plain text"):
        ComponentRows(cache, RowRule("greedy", "answers"), SEQ_LEN)
    empty = TokenCache.open(write_conversations(tmp_path / "empty", [[]]))
    for kind in KINDS:
        laid = ComponentRows(empty, RowRule(kind, "answers"), SEQ_LEN)
        assert (laid.num_rows, len(laid.targets_of(np.arange(0)))) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8))
def test_tokens_are_counted_as_in_a_loop(gaps: list[tuple[int, int]]):
    edges = np.cumsum(np.array(gaps, np.int64).reshape(-1)).reshape(-1, 2) if gaps else np.empty((0, 2), np.int64)
    expected = [any(start <= token < stop for start, stop in edges) for token in range(60)]
    assert counted_before(edges, np.arange(60)).tolist() == [sum(expected[:number]) for number in range(60)]
