import io
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.document_buffer import BufferedComponent, BufferedMixture
from phasewise.trainer.data.loader import Loader, changed_since
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import DocumentIndex, Located
from phasewise.trainer.data.trace import TracedOrder
from tests.trainer.conftest import MakeRun
from tests.trainer.token_caches import write_token_cache


def located(cache: TokenCache) -> list[Located]:
    found: list[Located] = []
    for shard in range(len(cache.manifest.shards)):
        first = int(cache.starts[shard])
        for document in cache.documents([shard]):
            found.append(Located(document.id, document.source_file, first, len(document.tokens), shard))
            first += len(document.tokens)
    return found


def write_index(folder: Path, number: int, table: pa.Table, **how: object) -> None:
    content = io.BytesIO()
    pq.write_table(table, content, **how)  # pyright: ignore[reportArgumentType]
    manifest = read_manifest(folder)
    shards = [shard.model_dump() for shard in manifest.shards]
    shards[number]["index_digest"] = digest_of_bytes(content.getvalue())
    (folder / f"{manifest.shards[number].name}.parquet").write_bytes(content.getvalue())
    write_manifest(folder, manifest.but(shards=shards))


@pytest.fixture(scope="module")
def groups_of_three(caches: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`books` with row groups of three documents, one shard without statistics, and a file name for every seven documents."""
    folder = Path(shutil.copytree(caches["books"], tmp_path_factory.mktemp("grouped") / "books"))
    for number, shard in enumerate(read_manifest(folder).shards):
        table = pq.read_table(folder / f"{shard.name}.parquet")
        names = pa.array([f"file-{row // 7}" for row in range(len(table))], pa.string())
        table = table.set_column(1, "source_file", names)
        write_index(folder, number, table, row_group_size=3, write_statistics=number == 0)
    return folder


@settings(max_examples=60)
@given(data=st.data())
def test_ranges_are_covered_by_the_documents_that_are_there(groups_of_three: Path, data: st.DataObject):
    cache = TokenCache.open(groups_of_three)
    total = cache.manifest.tokens
    ends = st.tuples(st.integers(0, total - 1), st.integers(1, 300)).map(lambda one: (one[0], min(total, one[0] + one[1])))
    ranges = data.draw(st.lists(ends, min_size=1, max_size=5))
    first, stop = np.array([one[0] for one in ranges]), np.array([one[1] for one in ranges])
    expected = [
        (number, document, max(document.first, begin), min(document.first + document.length, end))
        for number, (begin, end) in enumerate(ranges)
        for document in located(cache)
        if document.first < end and document.first + document.length > begin
    ]
    assert [tuple(piece) for piece in DocumentIndex(cache).covering(first, stop)] == expected


def test_documents_are_found_by_id_and_by_file(groups_of_three: Path):
    cache = TokenCache.open(groups_of_three)
    index, every = DocumentIndex(cache), located(cache)
    assert index.named(("shard-00001 1",)) == [one for one in every if one.id.startswith("shard-00001 1")]
    assert index.named(("shard-00000 7", "shard-00001 7"), [1]) == [one for one in every if one.id == "shard-00001 7"]
    assert index.of_file("file-2") == [one for one in every if one.file == "file-2"]
    assert index.of_file("file-22") == []


def test_documents_without_tokens_are_in_no_range(tmp_path: Path):
    cache = TokenCache.open(write_token_cache(tmp_path / "web", [[np.arange(5), np.arange(0), np.arange(3)], [], [np.arange(4)]]))
    found = [(one.document.id, one.first, one.stop) for one in DocumentIndex(cache).covering(np.array([0]), np.array([12]))]
    assert found == [("shard-00000 0", 0, 5), ("shard-00000 2", 5, 8), ("shard-00002 0", 8, 12)]


QUESTIONS: dict[str, Callable[[DocumentIndex], object]] = {
    "covering": lambda index: index.covering(np.array([0]), np.array([index.cache.manifest.tokens])),
    "named": lambda index: index.named(("shard",)),
    "of_file": lambda index: index.of_file("nothing that is there"),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_an_index_that_was_changed_or_is_gone_is_refused_by_every_question(caches: Mapping[str, Path], tmp_path: Path, ask: Any):
    folder = Path(shutil.copytree(caches["web"], tmp_path / "web"))
    path, cache = folder / "shard-00001.parquet", TokenCache.open(folder)
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "source_file", pa.array(["elsewhere"] * len(table), pa.string())), path)
    for spoil, message in (
        (None, r"shard-00001.parquet was changed after it was written: expected the digest"),
        (lambda: path.write_bytes(b"PAR1 and nothing else"), r"shard-00001.parquet"),
        (path.unlink, r"shard-00001\.parquet was changed .* found nothing"),
    ):
        if spoil:
            spoil()
        with pytest.raises(DataError, match=message):
            ask(DocumentIndex(cache))


def test_an_index_that_leaves_out_a_document_is_refused(caches: Mapping[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(caches["web"], tmp_path / "web"))
    table = pq.read_table(folder / "shard-00000.parquet")
    write_index(folder, 0, pa.concat_tables([table.slice(0, 4), table.slice(5)]))
    with pytest.raises(DataError, match="the index must name the documents of tokens 0 to 400, found documents for"):
        DocumentIndex(TokenCache.open(folder)).covering(np.array([0]), np.array([400]))


def test_a_large_index_is_checked_where_its_footer_says_that_it_may_name_the_file(groups_of_three: Path, tmp_path: Path):
    folder = Path(shutil.copytree(groups_of_three, tmp_path / "books"))
    path = folder / "shard-00000.parquet"
    path.write_bytes(path.read_bytes().replace(b"file-0", b"file-x"))
    with pytest.raises(DataError, match=r"shard-00000\.parquet was changed after it was written"):
        DocumentIndex(TokenCache.open(folder)).of_file("file-1", checks_all=False)


ORDER = {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True, "buffer_documents": 8}


@pytest.fixture(scope="module", params=["component", "mixture"])
def run(make_run: MakeRun, request: pytest.FixtureRequest) -> RunConfig:
    rate = [{"kind": "constant", "start_step": 0, "end_step": 60, "start": 1e-3, "end": 1e-3}]
    order = {**ORDER, "buffer_over": request.param}
    return make_run(
        f"from buffers over a {request.param}", order=order, start_step=4, stop_step=60, batch=[[0, 4], [10, 8]], learning_rate=rate
    )


def test_another_size_is_another_order_and_a_resume_with_it_is_refused(run: RunConfig, make_run: MakeRun):
    contract = Loader(run).contract()
    over, changed = run.order.buffer_over, {"component": "mixture", "mixture": "component"}[run.order.buffer_over]
    assert contract["packing"] == "buffer"
    assert contract["buffer"] == {"documents": 8, "version": 1, **({"over": over} if over == "mixture" else {})}
    for documents, other_over, names in ((16, over, ["buffer"]), (8, changed, ["buffer"]), (None, "component", ["buffer", "packing"])):
        other = run.but(order=run.order.but(buffer_documents=documents, buffer_over=other_over))
        assert other.digest != run.digest
        assert changed_since(contract, Loader(other).contract()) == names
        assert not np.array_equal(Loader(other).batch(5).tokens, Loader(run).batch(5).tokens)


def traced(run: RunConfig) -> TracedOrder:
    schedule = MixtureSchedule.of_run(run)
    buffered = {
        name: BufferedComponent(name, TokenCache.open(run.caches[name]), run.order, run.model.seq_len)
        for name in schedule.realised(run.start_step, run.stop_step)
    }
    rows, mixed = {name: one.num_rows for name, one in buffered.items()}, None
    if run.order.buffer_over == "mixture":
        caches = {name: TokenCache.open(run.caches[name]) for name in schedule.components_from(run.start_step)}
        mixed = BufferedMixture(schedule, caches, run.model.seq_len, run.start_step, run.stop_step)
    return TracedOrder(schedule, run.batch, run.start_step, run.stop_step, rows, buffered, mixed)


def test_a_trace_names_the_tokens_of_every_row_and_finds_each_document_again(run: RunConfig):
    order, loader, second_host = traced(run), Loader(run), Loader(run, host=1, hosts=2)
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
        np.testing.assert_array_equal(second_host.batch(update).tokens, found.tokens[len(batch) // 2 :])
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


def test_a_buffer_over_the_mixture_has_its_shares_and_draws_each_token_once_in_a_pass(run: RunConfig):
    schedule, seq_len, tokens = MixtureSchedule.of_run(run), 50, Counter[int]()
    caches = {name: TokenCache.open(run.caches[name]) for name in schedule.components()}
    mixed = BufferedMixture(schedule, caches, seq_len, run.start_step, 240)
    drawn: dict[tuple[int, int], list[np.ndarray]] = {}
    parts = [mixed.split(mixed.row(row)) for row in range(mixed.num_rows)]
    for components, epochs, pieces in parts:
        for component, epoch, first, length in zip(components, epochs, pieces.first, pieces.length, strict=True):
            drawn.setdefault((int(component), int(epoch)), []).append(np.arange(first, first + length))
            tokens[int(component)] += int(length)
    assert max(len(set(components.tolist())) for components, _, _ in parts) > 1, "a row with several components"
    held = 16 * 60 + 2 * seq_len  # tokens of a full buffer of documents of at most 60 tokens, and rows that are cut
    for number, name in enumerate(schedule.components()):
        assert abs(tokens[number] - seq_len * schedule.realised(run.start_step, 240)[name]) <= held
        passes = sorted(epoch for component, epoch in drawn if component == number)
        for epoch in passes:
            found = np.concatenate(drawn[number, epoch])
            assert len(np.unique(found)) == len(found)
            assert len(found) == caches[name].manifest.tokens or epoch in (passes[0], *passes[-2:]), "the last documents of a pass"


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
