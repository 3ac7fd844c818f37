import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.config import DataOrder, RunConfig, Steps
from phasewise.trainer.data import loader as loader_module
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Batch, Loader, changed_since
from phasewise.trainer.data.manifest import Manifest, read_manifest, write_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.permutation import PERMUTATION_VERSIONS, Permutation, derive_key
from phasewise.trainer.data.trace import Draws, TracedOrder
from tests.trainer.conftest import MakeRun
from tests.trainer.token_caches import write_token_cache


@pytest.fixture
def copied(make_run: MakeRun, caches: Mapping[str, Path], tmp_path: Path) -> RunConfig:
    folders = {name: shutil.copytree(folder, tmp_path / "tokens" / name / "train-first") for name, folder in caches.items()}
    return make_run("contract", caches={name: str(folder) for name, folder in folders.items()})


def prepared_again(copied: RunConfig, *, name: str = "train-second", **changes: Any) -> RunConfig:
    """The copied with its caches in other folders, as another reader made them."""
    caches = {component: shutil.copytree(folder, Path(folder).with_name(name)) for component, folder in copied.caches.items()}
    for copy in caches.values():
        fields = read_manifest(copy).model_dump(mode="json")
        write_manifest(copy, Manifest.model_validate({**fields, "reader": "another", **changes}))
    return copied.but(caches={component: str(copy) for component, copy in caches.items()})


def test_other_content_and_another_component_are_a_change_and_the_same_bytes_by_other_code_are_none(copied: RunConfig):
    was, again = Loader(copied).contract(), prepared_again(copied)
    now = Loader(again).contract()
    assert was != now
    assert changed_since(was, now) == []
    assert changed_since(was, {**now, "seed": 3}) == ["seed"]
    fewer = {**was, "components": {name: cache for name, cache in was["components"].items() if name != "web"}}
    assert changed_since(was, fewer) == changed_since(fewer, was) == ["components"]
    other = prepared_again(again, name="train-third", tokenizer_digest="another")
    assert changed_since(was, Loader(other).contract()) == ["components"]


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    return make_run("loader")


@pytest.fixture(scope="module")
def long_run(make_run: MakeRun) -> RunConfig:
    """Batches of 12 and 24 over many passes; they lie across the spans for which the order is computed at once."""
    rate = [{"kind": "constant", "start_step": 0, "end_step": 400, "start": 1e-3, "end": 1e-3}]
    return make_run("long", stop_step=400, batch=[[0, 12], [50, 24]], learning_rate=rate)


def rows_by_hand(folder: Path, seq_len: int) -> np.ndarray:
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in sorted(folder.glob("*.bin"))]).astype(np.int32)
    return tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len)


@pytest.mark.parametrize("step", [0, 9, 10, 14, 23])
def test_a_batch_is_what_mixture_permutation_and_cache_say(run: RunConfig, caches: Mapping[str, Path], step: int):
    """Each sequence for itself: its component and position from the mixture, its place from the permutation, its row from the files."""
    schedule, expected = MixtureSchedule.of_run(run), list[np.ndarray]()
    rows = {name: rows_by_hand(folder, 32) for name, folder in caches.items()}
    for number, position in zip(*schedule.draw(schedule.sequences_before(step), schedule.sequences_before(step + 1)), strict=True):
        name = schedule.components()[number]
        epoch, within = divmod(int(position), len(rows[name]))
        key = derive_key("component", run.order.seed, name, epoch)
        place = Permutation(run.order.permutation, length=len(rows[name]), key=key)(np.array([within]))[0]
        expected.append(rows[name][int(place)])
    np.testing.assert_array_equal(Loader(run).batch(step).tokens, np.stack(expected))


def test_a_batch_tells_documents_apart(run: RunConfig):
    batch = Loader(run).batch(12)
    for tokens, segments in zip(batch.tokens, batch.segment_ids, strict=True):
        segment = 0 if tokens[0] == 0 else 1
        for place, token in enumerate(tokens):
            segment += token == 0
            assert segments[place] == segment
    assert batch.segment_ids is batch.segment_ids


@settings(max_examples=25)
@given(first=st.integers(0, 400), steps=st.integers(0, 12), threads=st.integers(1, 3), ahead=st.integers(1, 5))
def test_iterating_gives_the_same_batches_as_asking(long_run: RunConfig, first: int, steps: int, threads: int, ahead: int):
    loader, stop = Loader(long_run), min(400, first + steps)
    found = list(loader.batches(first, stop, threads=threads, ahead=ahead))
    assert len(found) == stop - first
    for step, batch in enumerate(found, start=first):
        np.testing.assert_array_equal(batch.tokens, loader.batch(step).tokens)


@settings(max_examples=25)
@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 399))
def test_any_split_over_hosts_gives_the_same_global_batch(long_run: RunConfig, hosts: int, step: int):
    parts = [Loader(long_run, host=host, hosts=hosts).batch(step).tokens for host in range(hosts)]
    assert len({len(part) for part in parts}) == 1
    np.testing.assert_array_equal(np.concatenate(parts), Loader(long_run).batch(step).tokens)


def test_a_host_reads_only_its_rows_and_a_batch_that_hosts_cannot_share_is_refused(run: RunConfig, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    read_rows = loader_module.TokenCache.read_rows

    def count(cache: loader_module.TokenCache, numbers: np.ndarray, out: np.ndarray, places: np.ndarray):
        asked.extend(numbers)
        return read_rows(cache, numbers, out, places)

    monkeypatch.setattr(loader_module.TokenCache, "read_rows", count)
    Loader(run, host=1, hosts=4).batch(12)
    assert len(asked) == 2
    with pytest.raises(ConfigError, match=r"the batch from step 0 must fall into equal parts, found 4 sequences for 8 hosts: take a batch"):
        Loader(run, host=0, hosts=8)
    for host, hosts in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=rf"found host {host} of {hosts}\."):
            Loader(run, host=host, hosts=hosts)


def loader_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("loader")}


def test_so_many_batches_are_prepared_ahead_and_no_more(long_run: RunConfig):
    asked, others, go_on = list[int](), loader_threads(), threading.Event()

    class Held(Loader):
        def batch(self, step: int) -> Batch:
            asked.append(step)
            assert step == 0 or go_on.wait(30)
            return super().batch(step)

    batches = Held(long_run).batches(0, 400, threads=8, ahead=3)
    assert asked == []
    next(batches)
    while len(asked) < 4:
        time.sleep(0.01)
    go_on.set()
    batches.close()
    assert sorted(asked) == [0, 1, 2, 3]
    assert loader_threads() <= others


def test_an_error_comes_where_its_batch_would(long_run: RunConfig):
    class Failing(Loader):
        def batch(self, step: int) -> Batch:
            if step == 2:
                raise DataError("step 2 cannot be read")
            return super().batch(step)

    others = loader_threads()
    batches, whole = Failing(long_run).batches(0, 400, threads=2, ahead=4), Loader(long_run)
    for step in range(2):
        np.testing.assert_array_equal(next(batches).tokens, whole.batch(step).tokens)
    with pytest.raises(DataError, match="step 2 cannot be read"):
        next(batches)
    assert loader_threads() <= others


def test_the_contract_holds_everything_that_decides_the_order(run: RunConfig, caches: Mapping[str, Path]):
    contract = Loader(run).contract()
    manifests = {name: read_manifest(folder) for name, folder in caches.items()}
    assert contract == {
        "seed": 11, "permutation": {"kind": "feistel", "version": PERMUTATION_VERSIONS["feistel"]}, "packing": "chunk",
        "block_sequences": 16, "rounding": "largest_remainder", "first_step": 0, "seq_len": 32, "batch": [[0, 4], [10, 8]],
        "mixture": [[0, {"books": 60, "code": 40}], [14, {"books": 30, "code": 30, "web": 40}]],
        "components": {
            name: {"manifest": one.digest, "content": one.content, "rows": len(rows_by_hand(caches[name], 32))}
            for name, one in manifests.items()
        },
    }  # fmt: skip
    assert json.loads(json.dumps(contract)) == contract  # a checkpoint gives it back as JSON does
    assert Loader(run, host=1, hosts=2).contract() == contract


def test_only_what_the_phase_draws_is_opened(make_run: MakeRun, caches: Mapping[str, Path]):
    rate = [{"kind": "constant", "start_step": 14, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    mixture = [[0, {"books": 100}], [14, {"web": 100}]]
    run = make_run("later", start_step=14, mixture=mixture, learning_rate=rate, caches={"web": str(caches["web"])})
    assert set(Loader(run).contract()["components"]) == {"web"}
    assert Loader(run).batch(14).tokens.shape == (8, 32)


def test_caches_here_and_on_a_store_give_equal_batches(make_run: MakeRun, caches: Mapping[str, Path], store: Path):
    for name, folder in caches.items():
        (store / name).mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            (store / name / file.name).write_bytes(file.read_bytes())
    run = make_run("on a store", caches={name: str(store / name) for name in caches})
    stored, here = Loader(run), Loader(make_run("here"))
    assert stored.contract() == here.contract()
    for step, batch in enumerate(stored.batches(8, 16), start=8):
        np.testing.assert_array_equal(batch.tokens, here.batch(step).tokens)
        np.testing.assert_array_equal(batch.segment_ids, here.batch(step).segment_ids)


def test_a_component_shorter_than_a_row_and_two_tokenizers_are_refused(make_run: MakeRun, caches: Mapping[str, Path], tmp_path: Path):
    short = write_token_cache(tmp_path / "books", [[np.arange(31)]])
    with pytest.raises(DataError, match=r"component books has 31 tokens, not one row of 32"):
        Loader(make_run("short", mixture=[[0, {"books": 100}]], caches={"books": str(short)}))
    other = write_token_cache(tmp_path / "code", [[np.arange(64)]], begin_of_text=2)
    run = make_run("two tokenizers", caches={**{name: str(folder) for name, folder in caches.items()}, "code": str(other)})
    with pytest.raises(DataError, match=r"must begin and end with the same tokens, found 0 and 1 in web, 2 and 1 in code: prepare"):
        Loader(run)


SHARES = st.sampled_from([{"a": 60.0, "b": 40.0}, {"a": 10.0, "b": 20.0, "c": 70.0}, {"c": 50.0, "d": 50.0}, {"b": 100.0}])


def traced(run: RunConfig) -> TracedOrder:
    schedule = MixtureSchedule.of_run(run)
    rows = {name: TokenCache.open(run.caches[name]).num_rows(32) for name in schedule.realised(run.start_step, run.stop_step)}
    return TracedOrder(schedule, run.batch, run.start_step, run.stop_step, rows)


def as_set(draws: Draws) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(column.tolist() for column in draws), strict=True))


def all_forward(order: TracedOrder) -> Counter[tuple[int, ...]]:
    return sum((as_set(order.of_update(update)) for update in range(order.start_update, order.stop_update)), Counter())


LATER = [{"kind": "constant", "start_step": 12, "end_step": 24, "start": 1e-3, "end": 1e-3}]
LINEAR = {"seed": 3, "permutation": "linear", "block_sequences": 10, "cut_blocks": True}
CHANGES: dict[str, dict[str, object]] = {
    "a switch of mixture and batch": {}, "linear": {"order": LINEAR},
    "as Levanter": {"order": {**LINEAR, "permutation": "feistel_levanter", "rounding": "floor"}},
    "a later phase": {"start_step": 12, "learning_rate": LATER},
    "begun again": {"start_step": 12, "learning_rate": LATER, "order": {**LINEAR, "permutation": "feistel", "first_step": 12}},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_forward_names_the_rows_that_the_loader_reads(name: str, make_run: MakeRun, caches: Mapping[str, Path]):
    run = make_run(f"traced {name}", **CHANGES[name])
    order, loader = traced(run), Loader(run)
    for update in range(run.start_step, run.stop_step):
        draws, tokens = order.of_update(update), loader.batch(update).tokens
        assert len(draws.row) == len(tokens)
        for place, (component, row) in enumerate(zip(draws.component, draws.row, strict=True)):
            cache = TokenCache.open(caches[order.names[component]])
            np.testing.assert_array_equal(cache.rows(np.array([row]), 32)[0], tokens[place])
            assert as_set(order.of_update(update, place)) == as_set(draws.chosen(np.array([place])))


@settings(max_examples=25)
@given(
    batch=st.lists(st.integers(1, 9), min_size=1, max_size=3), mixture=st.lists(SHARES, min_size=1, max_size=3),
    steps=st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 10), st.integers(1, 10)), start=st.integers(0, 20),
    kind=st.sampled_from(list(PERMUTATION_VERSIONS)), rows=st.tuples(*[st.integers(1, 40)] * 4), begins_anew=st.booleans(),
)  # fmt: skip
def test_both_ways_agree_whatever_the_schedules(batch, mixture, steps, start, kind, rows, begins_anew):  # pyright: ignore
    sizes = Steps[int](tuple((number * steps[0], size) for number, size in enumerate(batch)))
    shares = Steps[dict[str, float]](tuple((number * steps[1], share) for number, share in enumerate(mixture)))
    order = DataOrder(seed=steps[2], permutation=kind, block_sequences=10, first_step=start if begins_anew else 0, cut_blocks=True)
    schedule = MixtureSchedule(batch=sizes, mixture=shares, order=order)
    traced_order = TracedOrder(schedule, sizes, start, start + steps[3], dict(zip("abcd", rows, strict=True)))
    forward = all_forward(traced_order)
    in_use = {name: count for name, count in traced_order.rows.items() if name in traced_order.names}
    backward = sum((as_set(traced_order.of_rows(name, np.arange(count))) for name, count in in_use.items()), Counter())
    assert backward == forward
    assert sum(forward.values()) == schedule.sequences_before(start + steps[3]) - schedule.sequences_before(start)


def test_a_billion_sequences_are_not_iterated_over():
    batch = Steps[int](((0, 1024), (20_000, 3072), (180_000, 4096)))
    mixture = Steps[dict[str, float]](((0, {"a": 90.0, "b": 10.0}), (100_000, {"a": 50.0, "b": 50.0}), (200_000, {"a": 100.0})))
    order = DataOrder(seed=1, permutation="feistel", block_sequences=2048, cut_blocks=True)
    schedule = MixtureSchedule(batch=batch, mixture=mixture, order=order)
    traced_order = TracedOrder(schedule, batch, 0, 250_000, {"a": 10**9, "b": 10**9 // 7})
    for update in (0, 19_999, 20_000, 99_999, 100_000, 249_999):
        draws = traced_order.of_update(update)
        for number, name in enumerate(traced_order.names):
            mine = draws.chosen(draws.component == number)
            if mine.row.size:
                few = mine.chosen(np.arange(min(3, mine.row.size)))
                assert set(as_set(few)) <= set(as_set(traced_order.of_rows(name, few.row)))
