from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.files import remove_checkpoint, saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.loop import train
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.replay import replay
from phasewise.trainer.row_losses import SHARD_STEPS, RowLossesFile, read_row_losses
from tests.trainer.conftest import MakeRun

pytestmark = pytest.mark.usefixtures("built_once")
LAST = SHARD_STEPS + 3


def losses_of(run: RunConfig) -> dict[int, np.ndarray]:
    return read_row_losses(RunFolder(run.output).row_losses, 1, run.stop_step)


def checkpoints_before(run: RunConfig, step: int) -> None:
    for later in [one for one in saved_steps(RunFolder(run.output).checkpoints) if one >= step]:
        remove_checkpoint(RunFolder(run.output).checkpoint(later))


@pytest.mark.parametrize("restored_step", [0, 5, SHARD_STEPS, SHARD_STEPS + 1, LAST])
def test_each_step_has_one_record_after_a_resume_also_after_a_torn_one(tmp_path: Path, restored_step: int):
    first = RowLossesFile(tmp_path, restored_step=0)
    for step in range(1, LAST + 1):
        first.append(step, np.full(step % 4, step, np.float32))
    first.write()
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes() + last.read_bytes()[:9])
    again = RowLossesFile(tmp_path, restored_step=restored_step)
    for step in range(restored_step + 1, LAST + 1):
        again.append(step, np.full(1, np.nan, np.float32))
    again.write(sync=True)
    found = read_row_losses(tmp_path, 1, LAST)
    assert list(found) == list(range(1, LAST + 1))
    for step, losses in found.items():
        np.testing.assert_array_equal(losses, np.full(step % 4, step, np.float16) if step <= restored_step else [np.nan])
    assert list(read_row_losses(tmp_path, SHARD_STEPS - 1, SHARD_STEPS + 1)) == [SHARD_STEPS - 1, SHARD_STEPS, SHARD_STEPS + 1]


@pytest.mark.parametrize("changes", [{}, {"packing": "greedy"}], ids=["chunk", "greedy"])
def test_the_rows_of_a_step_have_its_loss_in_micro_batches_as_in_one_and_after_a_resume(make_run: MakeRun, changes: dict[str, Any]):
    """Also where the batch grows within the phase. The tokens of a row are its weight."""
    name = f"row losses {len(changes)}"
    run = make_run(name, **changes, stop_step=12)
    train(run)
    loader, found = Loader(run), losses_of(run)
    for row in read_metrics(RunFolder(run.output).metrics):
        batch, losses = loader.batch(row["step"] - 1), found[row["step"]]
        weights = np.full(len(losses), 31) if batch.targets is None else batch.targets.sum(axis=1)
        assert len(losses) == row["sequences"]
        assert np.average(losses, weights=weights) == pytest.approx(row["loss"], rel=1e-3)
    parts = make_run(f"{name} in parts", **changes, stop_step=12, execution={"microbatch_sequences": 2})
    train(parts)
    for step, losses in losses_of(parts).items():
        np.testing.assert_allclose(losses, found[step], rtol=2e-3)
    checkpoints_before(run, 12)
    train(run)
    again = losses_of(run)
    assert list(again) == list(range(1, 13))
    assert all(np.array_equal(again[step], found[step]) for step in found)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_replay_names_the_layer_whose_weights_a_checkpoint_spoils_and_no_other(make_run: MakeRun, layer: int):
    run = make_run(f"spoiled {layer}", checkpoints={"every_steps": 3, "every_minutes": None, "keep_all": True})
    train(run)
    sound = replay(run, 19, [(2, 0, 8), (2, 8, 24)])
    assert sound["from_step"] == 15
    assert sound["named"] is None or sound["loss"] - sound["loss_before"] < 0.05
    assert sound["loss"] == pytest.approx(read_metrics(RunFolder(run.output).metrics)[18]["loss"], rel=1e-5)
    assert np.average(sound["pieces"], weights=[7, 24]) == pytest.approx(float(losses_of(run)[19][2]), rel=1e-3)
    with Checkpoints(RunFolder(run.output).checkpoints, run) as checkpoints:
        state = checkpoints.restore(18, Loader(run).contract())
        blocks = jax.tree.map(lambda leaf: leaf.at[layer].multiply(6.0), state.params["blocks"])
        checkpoints_before(run, 18)
        checkpoints.save(18, state._replace(params={**state.params, "blocks": blocks}), Loader(run).contract())
    train(run)
    found = replay(run, 19)
    assert (found["from_step"], found["named"]) == (15, f"layer {layer}")
    assert found["loss"] > sound["loss"] + 0.1
