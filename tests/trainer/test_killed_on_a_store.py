"""A trainer whose machine is lost goes on bit for bit on another one, from what was kept on the store."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.store.publisher import Kept, Publisher
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.files import is_committed
from phasewise.trainer.loop import train
from tests.trainer.conftest import MakeRun, RowsOf, StartTrainer, WaitUntil

pytestmark = pytest.mark.timeout(240)  # a guard against hanging
RUN_NAME = "tiny-proxy"


def test_a_killed_trainer_goes_on_in_a_fresh_folder_bit_for_bit(
    gcs: Path, tmp_path: Path, home: Path, make_run: MakeRun, start_trainer: StartTrainer, wait_until: WaitUntil, rows_of: RowsOf
):
    def run_on(machine: str) -> Any:
        return make_run("kept", output=str(tmp_path / machine / "runs" / RUN_NAME / "kept"))

    whole = run_on("undisturbed")
    expected = train(whole)

    lost = run_on("lost")
    folder = RunFolder.at(lost.output)
    folder.path.parent.mkdir(parents=True)
    folder.compilation_cache.symlink_to(home / "compilation-cache")
    with Publisher(Kept(tmp_path / "lost", gcs, RUN_NAME), every_seconds=0.05) as publisher:
        process = start_trainer(lost, hang="13")
        wait_until(process, lambda: is_committed(folder.checkpoint(12)))
        assert publisher.publish()
        process.kill()
        process.wait()

    fresh = run_on("fresh")
    with Publisher(Kept(tmp_path / "fresh", gcs, RUN_NAME), every_seconds=0.05):
        assert any(RunFolder.at(fresh.output).checkpoints.iterdir())
        result = train(fresh)
    assert rows_of(fresh) == rows_of(whole)
    assert result["params_digest"] == expected["params_digest"]
