from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.state import leaves_of, state_to_start_from
from phasewise.trainer.step import TrainState, init_state, params_digest
from tests.trainer.checkpoints.conftest import Build, Parent, assert_equal


@pytest.mark.parametrize(
    ("fresh", "kind", "message"),
    [
        ([], {"qk_norm": True}, r"params\.blocks\.\w+_norm is nothing in .*, not float32\[2, 8\]: declare 'qk_norm' in the hand-off's "),
        (["optimizer", "ema"], {"qk_norm": True}, "declare 'qk_norm'"),
        (["optimizer", "ema"], {"d_ff": 64}, r"blocks\.down is float32\[2, 48, 32\] in .*, not float32\[2, 64, 32\]: the model must have"),
        (["optimizer", "ema"], {"tied_head": True}, r"params\.head of .*24 would be dropped: a phase cannot leave out weights"),
        (["ema"], {"ema_decay": None}, "'ema' is declared, and the phase's state has no such part: take it out"),
        (["rolling"], {"windows": False}, "'rolling' is declared, and"),
        (["qk_norm"], {}, "'qk_norm' is declared, and"),
        (["ema", "ema"], {}, "'ema' is declared twice"),
    ],
)
def test_undeclared_changes_and_idle_declarations_are_refused(
    build: Build, llama: Parent, fresh: list[str], kind: dict[str, Any], message: str
):
    with pytest.raises(CheckpointError, match=message):
        state_to_start_from(build(start=llama.start(*fresh), **kind))


def test_a_leaf_of_the_parent_that_nothing_takes_is_refused(build: Build, llama: Parent, tmp_path: Path):
    richer = llama.state._replace(optimizer={**llama.state.optimizer._asdict(), "third": jnp.ones(3)})  # pyright: ignore
    with Checkpoints(tmp_path, build()) as checkpoints:
        checkpoints.save(24, richer, {})
    parent = Parent(tmp_path / "24", llama.state)
    with pytest.raises(CheckpointError, match=r"optimizer\.third of .*24 would be dropped: declare 'optimizer' in the hand-off's `fresh`"):
        state_to_start_from(build(start=parent.start()))
    assert_equal(state_to_start_from(build(start=parent.start("optimizer"))).params, llama.state.params)


def test_other_weights_than_planned_and_a_missing_or_damaged_parent_are_refused(build: Build, leave: Callable[..., Parent], tmp_path: Path):
    parent = leave()
    found = params_digest(parent.state.params)[:12]
    for change, message in (
        ({"params_digest": "0" * 64}, rf"expected {'0' * 12}, found {found}\. Run the recipe again"),
        ({"checkpoint": str(tmp_path / "24")}, r"no checkpoint at .*24\. Train the phase that ends there first"),
        ({}, r"24 was never committed .*Restore it from a copy, or start its phase again"),
    ):
        if not change:
            (parent.checkpoint / "digests.json").unlink()
        with pytest.raises(CheckpointError, match=message):
            state_to_start_from(build(start={**parent.start(), **change}))


@pytest.mark.parametrize("kind", ["adamw", "adamc", "nadamw"])
def test_a_hand_off_carries_everything_also_to_a_relative_of_its_optimizer(build: Build, llama: Parent, kind: str):
    assert_equal(state_to_start_from(build(kind, start=llama.start())), llama.state)


def experts(**balancing: Any) -> dict[str, Any]:
    shape = {"num_experts": 4, "num_active": 2, "num_shared": 1, "d_expert": 8, "route_scale": 1.0, "num_dense_layers": 1}
    return {"experts": {**shape, "balancing": balancing, "sequence_loss": 0.0}}


SMEBU, SIGN = experts(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5), experts(kind="sign", rate=1e-3)
"""Models with experts: SMEBU keeps momentum, sign updates keep none."""


def test_momentum_of_balancing_is_carried_let_go_or_declared_fresh(build: Build, leave: Callable[..., Parent]):
    smebu, sign = leave(2, **SMEBU), leave(3, **SIGN)
    assert jax.tree.leaves(smebu.state.balancing)
    assert_equal(state_to_start_from(build(start=smebu.start(), **SMEBU)), smebu.state)
    without = state_to_start_from(build(start=smebu.start(), **SIGN))
    assert_equal((without.params, without.balancing), (smebu.state.params, None))
    with pytest.raises(CheckpointError, match=r"declare 'balancing' in the hand-off's `fresh`"):
        state_to_start_from(build(start=sign.start(), **SMEBU))
    begun = state_to_start_from(build(start=sign.start("balancing"), **SMEBU))
    assert_equal(begun.params, sign.state.params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(begun.balancing))


def assert_owned(state: TrainState) -> None:
    """No two leaves share memory: the step takes that of each."""
    assert len({leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)}) == len(jax.tree.leaves(state))


def test_from_scratch_all_is_fresh_and_so_is_what_is_declared(build: Build, llama: Parent):
    initial = init_state(build())
    declared = TrainState(llama.state.params, initial.optimizer, llama.state.params, initial.rolling)
    for start, expected in ((None, initial), (llama.start("ema", "optimizer", "rolling"), declared)):
        found = state_to_start_from(build(start=start))
        assert_equal(found, expected)
        assert_owned(found)


def test_what_a_parent_lacks_may_be_made_again(build: Build, leave: Callable[..., Parent]):
    bare = leave(ema_decay=None, windows=False)
    run = build(start=bare.start("ema", "rolling"))
    expected = init_state(run)._replace(params=bare.state.params, optimizer=bare.state.optimizer, ema=bare.state.params)
    assert_equal(state_to_start_from(run), expected)
    message = r"phase child cannot start from .*24: ema\.\S+ is nothing in .*24, not float32\[.*\]: declare 'ema' in .*; .* and \d+ more\."
    for fresh, said in (("rolling", message), ("ema", r"rolling\.losses\.values is nothing in .*declare 'rolling'")):
        with pytest.raises(CheckpointError, match=said):
            state_to_start_from(build(start=bare.start(fresh)))


def test_gains_come_from_another_checkpoint_or_are_fresh_with_their_moments_and_averages(build: Build, llama: Parent, qwen: Parent):
    of_qwen, gains = leaves_of(qwen.state), ("query_norm", "key_norm")
    for name, leaf in leaves_of(state_to_start_from(build(qk_norm=True, start=llama.start(qk_norm=qwen)))).items():
        assert np.array_equal(leaf, (of_qwen if name.endswith(gains) else leaves_of(llama.state))[name]), name
    found = state_to_start_from(build(qk_norm=True, start=llama.start("qk_norm")))
    assert_owned(found)
    named, parent = leaves_of(found), leaves_of(llama.state)
    values = {"params": 1.0, "ema": 1.0, "optimizer.mu": 0.0, "optimizer.nu": 0.0}
    fresh = {f"{field}.blocks.{gain}": value for field, value in values.items() for gain in gains}
    assert named.keys() == parent.keys() | fresh.keys()
    for name, leaf in named.items():
        assert np.array_equal(leaf, np.full((2, 8), fresh[name]) if name in fresh else parent[name]), name
    assert named["optimizer.count"] == parent["optimizer.count"] != 0


def test_the_step_is_the_same_program_for_a_new_and_for_a_restored_state(build: Build, llama: Parent):
    with Checkpoints(llama.checkpoint.parent, build()) as checkpoints:
        restored = checkpoints.restore(24, {})
    starts = (None, llama.start("ema", "optimizer", "rolling"), llama.start())
    states = [restored, *(state_to_start_from(build(start=start)) for start in starts)]
    assert len({jax.jit(lambda state: state).lower(state).as_text() for state in states}) == 1, "else a restart compiles again"


def test_leaves_are_placed_where_the_shardings_say(build: Build, llama: Parent):
    there = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    for start in (None, llama.start("ema", "optimizer")):
        run = build(start=start)
        shardings = jax.tree.map(lambda _: there, jax.eval_shape(lambda run=run: init_state(run)))
        assert {leaf.sharding for leaf in jax.tree.leaves(state_to_start_from(run, shardings))} == {there}
