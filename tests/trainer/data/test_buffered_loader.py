from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.document_buffer import BufferedComponent
from phasewise.trainer.data.loader import Loader, changed_since
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import DocumentIndex
from phasewise.trainer.data.trace import TracedOrder
from tests.trainer.conftest import MakeRun
from tests.trainer.token_caches import write_token_cache

ORDER = {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True, "buffer_documents": 8}


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    rate = [{"kind": "constant", "start_step": 0, "end_step": 60, "start": 1e-3, "end": 1e-3}]
    return make_run("from buffers", order=ORDER, stop_step=60, batch=[[0, 4], [10, 8]], learning_rate=rate)


def test_another_size_is_another_order_and_a_resume_with_it_is_refused(run: RunConfig, make_run: MakeRun):
    contract = Loader(run).contract()
    assert (contract["packing"], contract["buffer"]) == ("buffer", {"documents": 8, "version": 1})
    for documents, names in ((16, ["buffer"]), (None, ["buffer", "packing"])):
        other = run.but(order=run.order.but(buffer_documents=documents))
        assert other.digest != run.digest
        assert changed_since(contract, Loader(other).contract(), other) == names
        assert not np.array_equal(Loader(other).batch(3).tokens, Loader(run).batch(3).tokens)


def traced(run: RunConfig) -> TracedOrder:
    schedule = MixtureSchedule.of_run(run)
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
    forward: Counter[tuple[Any, ...]] = Counter()
    for update in range(run.start_step, run.stop_step):
        draws, batch = order.of_update(update), np.full((run.batch.at(update), run.model.seq_len), -1)
        for number, name in enumerate(order.names):
            mine = draws.chosen(draws.component == number)
            for draw, at, first, stop in zip(*order.runs_of(name, mine), strict=True):
                batch[mine.place[draw], at : at + stop - first] = tokens[name][first:stop]
                forward[name, update, mine.place[draw], mine.epoch[draw], mine.row[draw], at, first, stop] += 1
        found = loader.batch(update)
        np.testing.assert_array_equal(batch, found.tokens)
        begins = np.zeros_like(batch)
        begins[[piece[2] for piece in forward if piece[1] == update], [piece[5] for piece in forward if piece[1] == update]] = 1
        np.testing.assert_array_equal(np.cumsum(begins, axis=1), found.segment_ids, "a document a segment, also where one goes on")
    backward: Counter[tuple[object, ...]] = Counter()
    for name, cache in caches.items():
        starts = DocumentIndex(cache).starts()
        which, draws, runs = order.of_ranges(name, starts[:-1], starts[1:])
        assert (starts[which] <= runs.first).all()
        assert (runs.stop <= starts[which + 1]).all()
        backward.update((name, *row) for row in zip(*(draws[:2]), *(draws[3:]), *(runs[1:]), strict=True))
    assert backward == forward
    assert {piece[3] for piece in forward} >= {0, 1}, "more than one pass"


def test_an_index_that_leaves_out_tokens_is_refused(tmp_path: Path):
    folder = write_token_cache(tmp_path / "web", [[np.arange(5), np.arange(7)], [np.arange(9), np.arange(11)]])
    path = folder / "shard-00000.parquet"
    index = pq.read_table(path)
    pq.write_table(index.set_column(3, "length", pa.array([5, 6], pa.int64())), path)
    manifest = read_manifest(folder)
    shards = (manifest.shards[0].but(index_digest=digest_of_file(path)), *manifest.shards[1:])
    write_manifest(folder, manifest.but(shards=shards))
    with pytest.raises(DataError, match=r"must follow one another over 12 tokens, found 2 with 11 tokens"):
        DocumentIndex(TokenCache.open(folder)).starts()
