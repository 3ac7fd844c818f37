"""The plan that preflight compiled is what the trainer executes; another plan goes on with the same batches, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.preflight.preflight import preflight_setup
from phasewise.tasks.preflight.setup import Setup
from phasewise.tasks.training import replanned as module
from phasewise.tasks.training.differences import execution_differences
from phasewise.tasks.training.replanned import note_changed_plan
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.checkpoints.files import remove_checkpoint
from phasewise.trainer.config import Execution, Mesh, RunConfig
from phasewise.trainer.events import read_events
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.preflight.spec import StepShape
from tests.tasks.training.conftest import STEPS, BuildRun

DEVICES = 2


def train(run: RunConfig) -> None:
    """In a process that sees two devices, of which a run may use one."""
    path = Path(run.output) / "run.json"
    write_json(path, run.model_dump(mode="json"))
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "phasewise.trainer", str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def planned(build_run: BuildRun, tmp_path_factory: pytest.TempPathFactory) -> Execution:
    """What preflight finds for two devices of this CPU: it is compiled here, by another process than the trainer's."""
    run = build_run("planned")
    step = StepShape(
        model=run.model, optimizer=run.optimizer, batch_sequences=2, keeps_average=False, clips_update_rms=False, update_norm_window=None,
        skip_step_window=None,
    )  # fmt: skip
    setup = Setup(phase="planned", slice="cpu-2", stretches=((0, STEPS),), step=step)
    report = preflight_setup(setup, Home(tmp_path_factory.mktemp("home")))
    assert report["fits"]
    assert not report["estimated"]
    assert report["collectives"], "weights that are cut over two devices are gathered"
    assert report["gib_per_chip"]["peak"] == pytest.approx(0, abs=0.05)
    return Execution.model_validate(report["execution"])


def test_a_plan_is_executed_and_a_changed_one_goes_on_with_the_same_batches(
    build_run: BuildRun, planned: Execution, monkeypatch: pytest.MonkeyPatch
):
    assert (planned.mesh, planned.attention) == (Mesh(fsdp=2), "xla")
    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    run = build_run("planned")
    assert note_changed_plan(run) is None, "nothing is there to go on from"
    result = Path(run.output) / "result.json"
    train(run)
    write_sealed(result, {"run_digest": run.digest})
    assert note_changed_plan(run.but(execution=planned)) is None, "nothing is left to go on with"
    result.unlink()
    before = [row["loss"] for row in read_metrics(Path(run.output) / "metrics.jsonl")]
    assert note_changed_plan(run) is None, "nothing changed"

    remove_checkpoint(Path(run.output) / "checkpoints" / str(STEPS))
    again = run.but(execution=planned)
    text = note_changed_plan(again)
    assert text is not None
    assert "going on from step 60 by another plan, on the same batches, and no longer bit for bit" in text
    assert "execution.mesh.fsdp: 1 → 2" in text
    assert said == [f"planned: {text}"]
    (event,) = [one for one in read_events(run.output) if one["kind"] == "replanned"]
    assert (event["step"], event["text"]) == (60, text)
    train(again)
    after = [row["loss"] for row in read_metrics(Path(run.output) / "metrics.jsonl")]
    assert after[:60] == before[:60]
    assert after[60:] == pytest.approx(before[60:], rel=1e-4)
    assert len(after) == STEPS


def test_another_run_in_the_folder_is_no_changed_plan(build_run: BuildRun, planned: Execution):
    other = build_run("planned", peak=2e-2).but(execution=planned)
    assert note_changed_plan(other) is None


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"mesh": Mesh(fsdp=2)}, ["execution.mesh.fsdp"]),
        ({"remat": "full"}, ["execution.remat"]),
        ({"attention": "xla"}, ["execution.attention"]),
        ({"expert_kernel": "ragged"}, ["execution.expert_kernel"]),
        ({"microbatch_sequences": 1}, ["execution.microbatch_sequences"]),
        ({"loss_chunk_tokens": 16}, ["execution.loss_chunk_tokens"]),
        ({"stall_seconds": 5.0, "step_stall_seconds": None, "save_stall_seconds": 3.0, "restore_stall_seconds": 3.0}, []),
    ],
)
def test_every_field_of_an_execution_decides_bits_or_is_a_time_limit(build_run: BuildRun, changes: dict[str, object], fields: list[str]):
    run = build_run("fields")
    assert [one.field for one in execution_differences(run, run.but(execution=run.execution.but(**changes)))] == fields


def test_the_cases_above_are_all_fields():
    named = {"mesh", "remat", "attention", "expert_kernel", "microbatch_sequences", "loss_chunk_tokens"}
    assert set(Execution.model_fields) == named | {"stall_seconds", "step_stall_seconds", "save_stall_seconds", "restore_stall_seconds"}
