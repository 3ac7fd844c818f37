"""A model of the Llama family becomes one of the Qwen3 family in the middle of its training, as Marin 32B did at step 80,000."""

from collections.abc import Callable
from typing import Any

import pytest

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.config import RunConfig
from phasewise.trainer.loop import train
from phasewise.trainer.metrics import Row

MakeRun = Callable[..., RunConfig]
RowsOf = Callable[[RunConfig], list[Row]]
SWITCH, STOP, FEW = 120, 132, 5


def phase(make_run: MakeRun, name: str, start_step: int, stop_step: int, **changes: Any) -> RunConfig:
    """On one component, at a constant rate after a warm-up: nothing but the architecture changes between two of them."""
    plain = make_run(name)
    rates = [{"kind": "constant", "start_step": start_step, "end_step": stop_step, "start": 3e-3, "end": 3e-3}]
    if start_step == 0:
        rates = [
            {"kind": "linear", "start_step": 0, "end_step": 20, "start": 0.0, "end": 3e-3},
            {"kind": "constant", "start_step": 20, "end_step": stop_step, "start": 3e-3, "end": 3e-3},
        ]
    qk_norm = changes.pop("qk_norm", False)
    return make_run(
        name,
        start_step=start_step,
        stop_step=stop_step,
        learning_rate=rates,
        model={**plain.model.model_dump(), "qk_norm": qk_norm},
        batch=[[0, 8]],
        mixture=[[0, {"books": 100}]],
        checkpoints={"every_steps": 1000, "every_minutes": None, "keep_all": False},
        **changes,
    )


@pytest.fixture(scope="module")
def start(make_run: MakeRun) -> dict[str, Any]:
    """The hand-off from a trained Llama, which declares nothing yet."""
    result = train(phase(make_run, "llama", 0, SWITCH))
    return {"checkpoint": result["checkpoint"], "params_digest": result["params_digest"], "fresh": []}


def losses(rows: list[Row]) -> list[float]:
    return [row["loss"] for row in rows]


def test_the_loss_is_close_after_the_switch_and_recovers(make_run: MakeRun, rows_of: RowsOf, start: dict[str, Any]):
    """Against the same training without the switch: the same batches."""
    stayed = phase(make_run, "stayed", SWITCH, STOP, start=start)
    switched = phase(make_run, "switched", SWITCH, STOP, start={**start, "fresh": ["qk_norm"]}, qk_norm=True)
    train(stayed)
    train(switched)
    gaps = [loss - other for loss, other in zip(losses(rows_of(switched)), losses(rows_of(stayed)), strict=True)]
    assert losses(rows_of(stayed))[0] < 2.0, "from ln 256 = 5.5 it has learnt"
    assert 0.001 < gaps[0] < 0.1, gaps
    assert max(map(abs, gaps[FEW:])) < gaps[0] / 2, gaps


def test_a_switch_that_is_not_declared_is_refused(make_run: MakeRun, start: dict[str, Any]):
    run = phase(make_run, "undeclared", SWITCH, STOP, start=start, qk_norm=True)
    with pytest.raises(CheckpointError, match=r"params\.blocks\.\w+_norm is nothing in .*declare 'qk_norm' in the hand-off's `fresh`"):
        train(run)
