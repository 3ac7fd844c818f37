"""What a hand-off refuses: each leaf by its name, each declaration that does nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.hand_off import state_to_start_from
from phasewise.trainer.state import params_digest
from tests.trainer.checkpoints.conftest import Build, Parent, assert_equal


def test_undeclared_gains_are_refused(build: Build, llama: Parent):
    message = r"params\.blocks\.\w+_norm is nothing in .*, not float32\[2, 8\]: declare 'qk_norm' in the hand-off's `fresh`"
    with pytest.raises(CheckpointError, match=message):
        state_to_start_from(build(qk_norm=True, start=llama.start()))
    with pytest.raises(CheckpointError, match="declare 'qk_norm'"):
        state_to_start_from(build(qk_norm=True, start=llama.start("optimizer", "ema")))


def test_gains_cannot_be_left_out(build: Build, qwen: Parent):
    message = r"params\.blocks\.\w+_norm of .*24 would be dropped: a phase cannot leave out weights"
    with pytest.raises(CheckpointError, match=message):
        state_to_start_from(build(start=qwen.start("optimizer", "ema")))


def test_a_leaf_of_the_parent_that_nothing_takes_is_refused(build: Build, llama: Parent, tmp_path: Path):
    """As if an optimizer had kept more than the child's does."""
    richer = llama.state._replace(optimizer={**llama.state.optimizer._asdict(), "third": jnp.ones(3)})  # pyright: ignore
    with Checkpoints(tmp_path, build()) as checkpoints:
        checkpoints.save(24, richer, {})
    parent = Parent(tmp_path / "24", llama.state)
    with pytest.raises(CheckpointError, match=r"optimizer\.third of .*24 would be dropped: declare 'optimizer' in the hand-off's `fresh`"):
        state_to_start_from(build(start=parent.start()))
    assert_equal(state_to_start_from(build(start=parent.start("optimizer"))).params, llama.state.params)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"d_ff": 64}, r"params\.blocks\.down is float32\[2, 48, 32\] in .*, not float32\[2, 64, 32\]: the model must have the parent's"),
        ({"tied_head": True}, r"params\.head of .*24 would be dropped: a phase cannot leave out weights"),
    ],
)
def test_another_shape_is_refused(build: Build, llama: Parent, shape: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        state_to_start_from(build(start=llama.start("optimizer", "ema"), **shape))


@pytest.mark.parametrize(
    ("fresh", "kind", "message"),
    [
        (["ema"], {"ema_decay": None}, "'ema' is declared, and the phase's state has no such part: take it out"),
        (["rolling"], {"windows": False}, "'rolling' is declared, and"),
        (["qk_norm"], {}, "'qk_norm' is declared, and"),
        (["ema", "ema"], {}, "'ema' is declared twice"),
    ],
)
def test_idle_declarations_are_refused(build: Build, llama: Parent, fresh: list[str], kind: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        state_to_start_from(build(start=llama.start(*fresh), **kind))


def test_fresh_and_grafted_at_once_is_refused(build: Build, llama: Parent, qwen: Parent):
    with pytest.raises(CheckpointError, match="'rolling' is declared twice: make it fresh or graft it from one checkpoint"):
        state_to_start_from(build(start=llama.start("rolling", rolling=qwen)))


def test_other_weights_than_planned_are_refused(build: Build, llama: Parent):
    start = {**llama.start(), "params_digest": "0" * 64}
    found = params_digest(llama.state.params)[:12]
    with pytest.raises(CheckpointError, match=rf"expected {'0' * 12}, found {found}\. Run the recipe again"):
        state_to_start_from(build(start=start))


def test_a_missing_or_damaged_parent_is_refused(build: Build, leave: Callable[..., Parent], tmp_path: Path):
    parent = leave()
    missing = {**parent.start(), "checkpoint": str(tmp_path / "24")}
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*24\. Train the phase that ends there first"):
        state_to_start_from(build(start=missing))
    (parent.checkpoint / "digests.json").unlink()
    with pytest.raises(CheckpointError, match=r"24 was never committed .*Restore it from a copy, or start its phase again"):
        state_to_start_from(build(start=parent.start()))
