"""Batches against what the cache's tokens give by hand, and what a loader refuses to open."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from trainer.config import RunConfig
from trainer.data.loader import Loader
from trainer.data.manifest import read_manifest
from trainer.data.mixture import MixtureSchedule
from trainer.data.permutation import derive_key, permute
from trainer.errors import DataError

MakeRun = Callable[..., RunConfig]
WriteCache = Callable[..., Path]


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    return make_run("loader")


def rows_by_hand(folder: Path, seq_len: int) -> np.ndarray:
    """All whole rows of a cache, from its files alone."""
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in sorted(folder.glob("*.bin"))]).astype(np.int32)
    return tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len)


def test_a_batch_is_what_mixture_permutation_and_cache_say(run: RunConfig, caches: Mapping[str, Path]):
    loader, schedule = Loader(run), MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
    rows = {name: rows_by_hand(folder, 32) for name, folder in caches.items()}
    for step in (0, 9, 10, 14, 23):
        components, positions = schedule.batch(step)
        expected: list[np.ndarray] = []
        for number, position in zip(components, positions, strict=True):
            name = schedule.components()[number]
            epoch, within = divmod(int(position), len(rows[name]))
            key = derive_key("component", run.order.seed, name, epoch)
            place = permute(run.order.permutation, np.array([within]), length=len(rows[name]), key=key)[0]
            expected.append(rows[name][int(place)])
        np.testing.assert_array_equal(loader.batch(step), np.stack(expected))


def test_a_batch_has_the_size_of_its_step_and_is_always_the_same(run: RunConfig):
    loader = Loader(run)
    assert [loader.batch(step).shape for step in (9, 10)] == [(4, 32), (8, 32)]
    assert loader.batch(0).dtype == np.int32
    np.testing.assert_array_equal(loader.batch(12), Loader(run).batch(12))


def test_iterating_gives_the_same_batches_as_asking(run: RunConfig):
    loader = Loader(run)
    found = list(loader.batches(7, 24))
    assert len(found) == 17
    for step, batch in enumerate(found, start=7):
        np.testing.assert_array_equal(batch, loader.batch(step))


def test_no_batches_between_a_step_and_itself(run: RunConfig):
    assert list(Loader(run).batches(24, 24)) == []


@pytest.mark.parametrize("permutation", ["linear", "feistel"])
def test_a_pass_reads_every_row_once_and_the_next_one_in_another_order(make_run: MakeRun, caches: Mapping[str, Path], permutation: str):
    rows = rows_by_hand(caches["web"], 32)
    run = make_run(
        "one pass",
        batch=[[0, len(rows)]],
        mixture=[[0, {"web": 100}]],
        order={"seed": 1, "permutation": permutation, "block_sequences": 16},
    )
    passes = [[row.tobytes() for row in Loader(run).batch(step)] for step in range(2)]
    everything = Counter(row.tobytes() for row in rows)
    assert [Counter(each) for each in passes] == [everything, everything]
    assert passes[0] != passes[1]
    assert passes[0] != [row.tobytes() for row in rows]


def test_another_component_moves_no_row_of_this_one(make_run: MakeRun):
    """Keys are by name: what books gives, in order, does not depend on who else is there."""

    def rows_of_books(mixture: dict[str, float]) -> list[bytes]:
        run = make_run("by name", mixture=[[0, mixture]], batch=[[0, 8]])
        loader, schedule = Loader(run), MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
        number = schedule.components().index("books")
        return [row.tobytes() for step in range(5) for row in loader.batch(step)[schedule.batch(step)[0] == number]]

    assert rows_of_books({"books": 50, "web": 50}) == rows_of_books({"books": 50, "code": 50})


def test_the_contract_holds_everything_that_decides_the_order(run: RunConfig, caches: Mapping[str, Path]):
    contract = Loader(run).contract()
    assert contract == {
        "seed": 11,
        "permutation": {"kind": "feistel", "version": 1},
        "block_sequences": 16,
        "seq_len": 32,
        "batch": [[0, 4], [10, 8]],
        "mixture": [[0, {"books": 60, "code": 40}], [14, {"books": 30, "code": 30, "web": 40}]],
        "components": {
            name: {"manifest": read_manifest(folder).digest, "rows": len(rows_by_hand(folder, 32))} for name, folder in caches.items()
        },
    }
    assert json.loads(json.dumps(contract)) == contract  # a checkpoint gives it back as JSON does


def test_only_what_the_phase_draws_is_opened(make_run: MakeRun, caches: Mapping[str, Path]):
    """`books` was drawn before the phase; its cache need not be there any more."""
    web = str(caches["web"])
    segment = {"kind": "constant", "start_step": 14, "end_step": 24, "start": 1e-3, "end": 1e-3}
    run = make_run(
        "later",
        start_step=14,
        mixture=[[0, {"books": 100}], [14, {"web": 100}]],
        learning_rate=[segment],
        caches={"web": web},
    )
    assert set(Loader(run).contract()["components"]) == {"web"}
    assert Loader(run).batch(14).shape == (8, 32)


def test_a_damaged_cache_is_refused_before_the_first_batch(make_run: MakeRun, caches: Mapping[str, Path], tmp_path: Path):
    broken = Path(shutil.copytree(caches["code"], tmp_path / "code"))
    run = make_run("damaged", caches={**{name: str(folder) for name, folder in caches.items()}, "code": str(broken)})
    shard = broken / "shard-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"code/shard-00001\.bin: the manifest says \d+ bytes, found \d+"):
        Loader(run)
    (broken / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"code is not a finished token cache: it has no manifest\.json"):
        Loader(run)


def test_a_component_shorter_than_a_row_is_refused(make_run: MakeRun, tmp_path: Path, write_cache: WriteCache):
    short = write_cache(tmp_path / "books", [[np.arange(31)]])
    run = make_run("short", mixture=[[0, {"books": 100}]], caches={"books": str(short)})
    with pytest.raises(DataError, match=r"component books has 31 tokens, not one row of 32"):
        Loader(run)
