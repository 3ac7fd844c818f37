import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

from phasewise.flows.plan import build_run
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.hand_off import both_in_words
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.status.verdict_inputs import changes_of_contract, hand_off_facts
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import CheckpointError, TrainingError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.validations.evidence.caches import hand_off_evidence
from tests.validations.conftest import CacheMaker, build_tokenizer

PROXY = load_recipe("marin-8b", "proxy")
CHILDREN = [phase for phase in PROXY.phases if phase.parent]
OCELOT = PROXY.phase("ocelot")
Train = Callable[[Phase], RunConfig]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    maker = CacheMaker(tmp_path_factory.mktemp("caches"), build_tokenizer())
    return {name: maker.write(name, [f"A text of {name}, which is long enough to fill a row. " * 20]) for name in PROXY.components}


@pytest.fixture
def trained(home: Home, caches: dict[str, Path]) -> Train:
    import jax.numpy as jnp
    import optax

    from phasewise.trainer.checkpoints.checkpointer import Checkpoints
    from phasewise.trainer.step import TrainState

    def train(child: Phase) -> RunConfig:
        parent = PROXY.phase(child.parent or "")
        for ancestor in PROXY.lineage(parent):
            write_sealed(home.run(PROXY.run_name, ancestor.name) / "result.json", {"params_digest": "digest"})
        run = build_run(PROXY, parent, home, caches)
        write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
        weights = {"weight": jnp.zeros(2)}
        optimizer = optax.ScaleByAdamState(jnp.zeros((), jnp.int32), weights, weights)
        with Checkpoints(Path(run.output) / "checkpoints", run) as checkpoints:
            checkpoints.save(child.start_step, TrainState(weights, optimizer, None), Loader(run).contract())
        return build_run(PROXY, child, home, caches)

    return train


@pytest.mark.parametrize("phase", CHILDREN, ids=lambda phase: phase.name)
def test_a_parent_that_was_trained_as_the_recipe_says_leaves_only_what_is_declared(trained: Train, phase: Phase):
    table = hand_off_evidence(*hand_off_facts(PROXY, phase, trained(phase)))
    assert set(table["status"]) == {"declared and found"}, table
    assert table["before"].str.len().max() < 200
    assert table["after"].str.len().max() < 200


def test_a_recipe_that_was_edited_after_its_parent_was_trained_is_found_out(trained: Train):
    run = trained(OCELOT)
    path = Path(run.start.checkpoint if run.start else "").parents[1] / "run.json"
    was = read_json(path)
    write_sealed(path, {**was, "order": {**was["order"], "seed": 7}})
    declared, found = hand_off_facts(PROXY, OCELOT, run)
    assert found["order"] == ("seed 7", f"seed {run.order.seed}")
    assert declared is not None
    assert "order" not in declared
    write_sealed(path, {})
    with pytest.raises(TrainingError, match=r"run\.json must have the settings of phase kestrel"):
        hand_off_facts(PROXY, OCELOT, run)


def test_a_parent_without_its_checkpoint_is_refused(home: Home, caches: dict[str, Path]):
    write_sealed(home.run(PROXY.run_name, "kestrel") / "result.json", {"params_digest": "digest"})
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        hand_off_facts(PROXY, OCELOT, build_run(PROXY, OCELOT, home, caches))


CONTRACT: dict[str, Any] = {
    "seed": 0, "permutation": {"kind": "feistel", "version": 2}, "packing": "chunk", "block_sequences": 2048, "seq_len": 128,
    "batch": [[0, 8], [50, 16]], "mixture": [[0, {"web": 70.0, "code": 30.0}]],
    "components": {"web": {"content": "a" * 64, "rows": 10}, "code": {"content": "b" * 64, "rows": 20}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (["permutation", "version"], 3, {"order": ("permutation kind feistel, version 2", "permutation kind feistel, version 3")}),
        (["seed"], 1, {"order": ("seed 0", "seed 1")}),
        (["packing"], "pad", {"packing": ("chunk", "pad")}),
        (["packing"], "buffer", {}),  # the buffer is a part of the order
        (["buffer"], {"documents": 8}, {"order": ("buffer none", "buffer documents 8")}),
        (["loss_on"], "answers", {"loss_on": ("all", "answers")}),
        (["unheard_of"], 1, {"order": ("unheard_of none", "unheard_of 1")}),
        (["batch"], [[0, 8]], {"batches so far": ("50 16", "50 none")}),
        (["batch"], [[0, 8], [50, 16], [100, 32]], {}),
        (["mixture"], [[0, {"web": 60.0, "code": 40.0}]], {"mixtures so far": ("0 web 70, code 30", "0 web 60, code 40")}),
        (["mixture"], [[0, {"web": 70.0, "code": 30.0}], [100, {"web": 100.0}]], {}),
        (["components", "code", "content"], "c" * 64, {"data of code": ("b" * 16, "c" * 16)}),
        (["components", "new"], {"content": "d" * 64, "rows": 1}, {}),
        (["seq_len"], 256, {}),
    ],
)
def test_each_part_of_the_contract_is_compared(path: list[str], value: Any, expected: dict[str, Any]):
    after = copy.deepcopy(CONTRACT)
    at = after
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    assert changes_of_contract(CONTRACT, after, 100) == expected


def test_caches_are_compared_by_content():
    before, after = ({**CONTRACT, "components": {"web": {"manifest": name * 64, "content": "c" * 64, "rows": 10}}} for name in "ab")
    assert changes_of_contract(before, after, 100) == {}
    other = {**after, "components": {"web": {**after["components"]["web"], "content": "d" * 64}}}
    assert changes_of_contract(before, other, 100) == {"data of web": ("c" * 16, "d" * 16)}


def test_large_values_are_reported_where_they_differ():
    shares = {f"c{number}": 10.0 for number in range(10)}
    assert both_in_words(shares, {**shares, "c3": 12.5}) == ("c3 10", "c3 12.5")
    assert both_in_words(shares, {}) == ("c0 10, c1 10, c2 10, c3 10 and 6 more", "c0 none, c1 none, c2 none, c3 none and 6 more")
    assert both_in_words(None, 0.995) == ("none", "0.995")
    assert both_in_words((1024,), (1024, 3072)) == ("1024", "1024, 3072")
