from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.document_buffer import BufferedComponent
from phasewise.trainer.data.document_index import DocumentIndex
from phasewise.trainer.data.loader import Loader, changed_since
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.trace import TracedOrder
from tests.trainer.conftest import MakeRun, WriteCache

ORDER = {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True, "buffer_documents": 8}


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    """Some passes over each component."""
    rate = [{"kind": "constant", "start_step": 0, "end_step": 60, "start": 1e-3, "end": 1e-3}]
    return make_run("from buffers", order=ORDER, stop_step=60, batch=[[0, 4], [10, 8]], learning_rate=rate)


def numbered(write_cache: WriteCache, folder: Path, lengths: list[int]) -> tuple[Path, dict[int, tuple[int, int]]]:
    """A cache in which no two tokens are the same, but for the one that begins a document: token → document and place in it."""
    documents: list[np.ndarray] = []
    places: dict[int, tuple[int, int]] = {}
    number = 2
    for document, length in enumerate(lengths):
        body = np.arange(number, number + length - 1, dtype=np.uint16)
        places.update({int(token): (document, place + 1) for place, token in enumerate(body)})
        documents.append(np.array([0, *body], np.uint16))
        number += length - 1
    half = len(documents) // 2
    return write_cache(folder, [documents[:half], documents[half:]]), places


@pytest.fixture(scope="module")
def told_apart(
    make_run: MakeRun, model: object, write_cache: WriteCache, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunConfig, dict[int, tuple[int, int]], int]:
    """One component, one row a step, two passes."""
    lengths = np.random.default_rng(4).integers(2, 120, 90).tolist()
    folder, places = numbered(write_cache, tmp_path_factory.mktemp("numbered") / "web", lengths)
    rows = sum(lengths) // 32
    rate = [{"kind": "constant", "start_step": 0, "end_step": 2 * rows, "start": 1e-3, "end": 1e-3}]
    fields = {"stop_step": 2 * rows, "batch": [[0, 1]], "mixture": [[0, {"web": 100}]], "learning_rate": rate}
    return make_run("told apart", order=ORDER, caches={"web": str(folder)}, **fields), places, rows


def test_documents_are_told_apart_also_where_one_goes_on_in_a_row(told_apart: tuple[RunConfig, dict[int, tuple[int, int]], int]):
    run, places, rows = told_apart
    loader = Loader(run)
    goes_on = 0
    read: Counter[int] = Counter()
    for step in range(rows):
        batch = loader.batch(step)
        tokens, segments, positions = batch.tokens[0], batch.segment_ids[0], batch.positions[0]
        assert segments.dtype == np.int32
        for segment in range(1, segments[-1] + 1):
            inside = np.flatnonzero(segments == segment)
            found = [places.get(int(token)) for token in tokens[inside]]
            documents = {place[0] for place in found if place}
            assert len(documents) <= 1
            assert [place for place in found[1:] if place is None] == [], "a segment has its begin token first, or none"
            assert np.diff([place[1] for place in found if place]).tolist() == [1] * (sum(map(bool, found)) - 1)
            for document in documents:
                first = 0 if found[0] is None else found[0][1]
                alone = first == 1 and not read[document]  # its begin token was the last of a row
                assert alone or first == read[document], "from its head on"
                read[document] = first + len(inside)
                goes_on += bool(first and inside[0])
            np.testing.assert_array_equal(positions[inside], np.arange(len(inside)))
    assert goes_on > 5


def test_another_size_is_another_order_and_a_resume_with_it_is_refused(run: RunConfig, make_run: MakeRun):
    contract = Loader(run).contract()
    assert (contract["packing"], contract["buffer"]) == ("buffer", {"documents": 8, "version": 1})
    for documents, names in ((16, ["buffer"]), (None, ["buffer", "packing"])):
        other = run.but(order=run.order.but(buffer_documents=documents))
        assert other.digest != run.digest
        assert changed_since(contract, Loader(other).contract(), other) == names
        assert not np.array_equal(Loader(other).batch(3).tokens, Loader(run).batch(3).tokens)


def traced(run: RunConfig) -> TracedOrder:
    schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
    buffered = {
        name: BufferedComponent(name, TokenCache.open(run.caches[name]), run.order, run.model.seq_len)
        for name in schedule.realised(run.start_step, run.stop_step)
    }
    rows = {name: one.num_rows for name, one in buffered.items()}
    return TracedOrder(schedule, run.batch, run.start_step, run.stop_step, rows, buffered)


def test_a_trace_names_the_tokens_of_every_row_and_finds_each_document_again(run: RunConfig):
    order, loader = traced(run), Loader(run)
    caches = {name: TokenCache.open(run.caches[name]) for name in order.rows}
    tokens = {name: cache.rows(np.arange(1), cache.manifest.tokens)[0] for name, cache in caches.items()}
    forward: Counter[tuple[object, ...]] = Counter()
    for update in range(run.start_step, run.stop_step):
        draws, batch = order.of_update(update), np.full((run.batch.at(update), run.model.seq_len), -1)
        for number, name in enumerate(order.names):
            mine = draws.chosen(draws.component == number)
            for draw, at, first, stop in zip(*order.runs_of(name, mine), strict=True):
                batch[mine.place[draw], at : at + stop - first] = tokens[name][first:stop]
                forward[name, update, mine.place[draw], mine.epoch[draw], mine.row[draw], at, first, stop] += 1
        np.testing.assert_array_equal(batch, loader.batch(update).tokens)
    backward: Counter[tuple[object, ...]] = Counter()
    for name, cache in caches.items():
        starts = DocumentIndex(cache).starts()
        which, draws, runs = order.of_ranges(name, starts[:-1], starts[1:])
        assert (starts[which] <= runs.first).all()
        assert (runs.stop <= starts[which + 1]).all()
        backward.update((name, *row) for row in zip(*(draws[:2]), *(draws[3:]), *(runs[1:]), strict=True))
    assert backward == forward
    assert {piece[3] for piece in forward} >= {0, 1}, "more than one pass"


def test_an_index_that_leaves_out_tokens_is_refused(write_cache: WriteCache, tmp_path: Path):
    folder, _ = numbered(write_cache, tmp_path / "web", [5, 7, 9, 11])
    path = folder / "shard-00000.parquet"
    index = pq.read_table(path)
    pq.write_table(index.set_column(3, "length", pa.array([5, 6], pa.int64())), path)
    manifest = read_manifest(folder)
    shards = (manifest.shards[0].but(index_digest=digest_of_file(path)), *manifest.shards[1:])
    write_manifest(folder, manifest.but(shards=shards))
    with pytest.raises(DataError, match=r"must follow one another over 12 tokens, found 2 with 11 tokens"):
        DocumentIndex(TokenCache.open(folder)).starts()
