from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Loader, changed_since
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import ComponentRows, RowRule
from phasewise.trainer.data.trace import TracedOrder
from tests.trainer.conftest import MakeRun
from tests.trainer.token_caches import write_conversations

STEPS = 24
SHORT, LONG = (3, 14), (20, 45)


def talk(folder: Path, lengths: tuple[int, int], count: int, *, seed: int, answers: bool = True) -> Path:
    rng = np.random.default_rng(seed)
    documents = [np.array([0, *rng.integers(2, 256, length), 1], np.uint16) for length in rng.integers(*lengths, count)]
    pairs = [(document, [(len(document) // 2, len(document) - 1)] if answers else []) for document in documents]
    return write_conversations(folder, [pairs[: count // 2], pairs[count // 2 :]])


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("talk")
    return {name: str(talk(home / name, lengths, 60, seed=seed)) for seed, (name, lengths) in enumerate({"a": SHORT, "b": LONG}.items())}


@pytest.fixture(scope="module")
def make(make_run: MakeRun, talks: dict[str, str]) -> MakeRun:
    def made(name: str, **changes: Any) -> RunConfig:
        fields: dict[str, Any] = {"caches": talks, "mixture": [[0, {"a": 60, "b": 40}]], "packing": "greedy", "loss_on": "answers"}
        return make_run(name, **{**fields, **changes})

    return made


@pytest.fixture(scope="module")
def run(make: MakeRun) -> RunConfig:
    return make("packed")


def test_a_batch_has_the_rows_that_the_mixture_and_the_permutations_say(run: RunConfig, talks: dict[str, str]):
    loader = Loader(run)
    schedule = MixtureSchedule.of_run(run)
    laid = {name: ComponentRows(TokenCache.open(folder), RowRule("greedy", "answers"), 32) for name, folder in talks.items()}
    order = TracedOrder(schedule, run.batch, 0, STEPS, {name: one.num_rows for name, one in laid.items()})
    padding = 0
    for step in range(STEPS):
        batch, draws = loader.batch(step), order.of_update(step)
        assert batch.targets is not None
        for place, (component, row) in enumerate(zip(draws.component.tolist(), draws.row.tolist(), strict=True)):
            one, number = laid[order.names[component]], np.array([row])
            segments = one.segment_ids(number)
            assert segments is not None
            np.testing.assert_array_equal(batch.segment_ids[place], segments[0])
            np.testing.assert_array_equal(batch.targets[place], one.targets(number)[0])
            [first], [used] = one.firsts(number).tolist(), one.used(number).tolist()
            text = np.concatenate([document.tokens for document in one.cache.documents()])
            np.testing.assert_array_equal(batch.tokens[place, :used], text[first : first + used])
            padding += 32 - used
        assert not (batch.targets & (batch.segment_ids == 0)).any()
    assert padding > 100
    rows = {name: one.num_rows for name, one in laid.items()}
    assert any(draw > rows[name] for name, draw in order.drawn.items()), "some come again in a second pass"
    for name in rows:
        found = order.of_rows(name, np.arange(rows[name]))
        assert len(found.row) == order.drawn[name]


BUFFER = {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True, "buffer_documents": 8}
SPLIT = [*({"packing": kind} for kind in ("pad", "greedy", "chunk")), {"packing": "chunk", "order": BUFFER, "loss_on": "all"}]


@pytest.mark.parametrize("changes", SPLIT, ids=str)
@pytest.mark.parametrize("hosts", [2, 4])
def test_any_split_over_hosts_gives_the_same_batch(make: MakeRun, changes: dict[str, Any], hosts: int):
    run = make("on hosts", **changes)
    for step in (0, 9, 23):
        parts = [Loader(run, host=host, hosts=hosts).batch(step) for host in range(hosts)]
        whole = Loader(run).batch(step)
        for name in ("tokens", "segment_ids", *(() if whole.targets is None else ("targets",))):
            np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


def test_another_packing_or_another_loss_is_another_run_and_a_resume_with_it_is_refused(run: RunConfig):
    contract = Loader(run).contract()
    assert (contract["packing"], contract["packing_version"], contract["loss_on"]) == ("greedy", 1, "answers")
    for changes, names in (
        ({"loss_on": "all"}, ["loss_on"]), ({"packing": "pad"}, ["components", "packing"]),
        ({"packing": "chunk"}, ["components", "packing", "packing_version"]),
    ):  # fmt: skip
        other = run.but(**changes)
        assert other.digest != run.digest
        assert changed_since(contract, Loader(other).contract()) == names


def test_a_changed_answer_is_another_cache(tmp_path: Path):
    was, now = (TokenCache.open(talk(tmp_path / str(answers), SHORT, 60, seed=0, answers=answers)).manifest for answers in (True, False))
    assert was.content != now.content
    assert [shard.digest for shard in was.shards] == [shard.digest for shard in now.shards]


def test_a_batch_without_a_target_and_a_buffer_without_whole_rows_are_refused(make: MakeRun, talks: dict[str, str], tmp_path: Path):
    both = {"caches": {**talks, "b": str(talk(tmp_path / "b", SHORT, 60, seed=5, answers=False))}, "mixture": [[0, {"a": 50, "b": 50}]]}
    Loader(make("some answers", batch=[[0, 4]], **both)).check_targets()
    run = make("no answers", batch=[[0, 1]], **both)
    loader = Loader(run)
    first = next(step for step in range(STEPS) if not loader.batch(step).targets.any())  # type: ignore[union-attr]
    with pytest.raises(DataError, match=rf"found none in the 1 rows of step {first + 1} of phase no answers"):
        loader.check_targets()
    for changes in ({"packing": "greedy", "loss_on": "all"}, {"packing": "chunk", "loss_on": "answers"}):
        with pytest.raises(ValidationError, match=r"order\.buffer_documents must go with packing chunk and loss_on all"):
            run.but(order=BUFFER, **changes)
