"""How a phase was computed: read from its run's folder, and never from the plan of now."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run
from phasewise.tasks.home import Home
from phasewise.tasks.training import execution as module
from phasewise.tasks.training.execution import CPU, ONE_DEVICE, Machine, execution_here, execution_summary, find_machine, in_words
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Execution, Mesh, RunConfig, Steps
from phasewise.trainer.preflight.spec import run_of
from tests.trainer.preflight.models import LLAMA_8B, step_of

FOUR = Machine("gpu", "NVIDIA H100 80GB HBM3", 4)


def llama_run(batch: int = 8, **model: Any) -> RunConfig:
    return run_of(step_of(LLAMA_8B.but(**model), batch), Execution())


def test_a_machine_without_an_accelerator_is_its_cpu_and_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_devices_of_jax", lambda environment: pytest.fail("jax was asked"))
    assert find_machine({}, tmp_path) == CPU
    assert find_machine({"JAX_PLATFORMS": "cpu"}, tmp_path) == CPU
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert find_machine({"JAX_PLATFORMS": "cpu"}, tmp_path) == CPU


def test_where_there_is_an_accelerator_jax_is_asked(tmp_path: Path):
    """Here jax finds a CPU all the same, and says so; where it does not start, that is said with what to do."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TPU_SKIP_MDS_QUERY": "1"}
    environment.pop("JAX_PLATFORMS", None)
    assert find_machine(environment, tmp_path) == CPU
    with pytest.raises(TrainingError, match=r"jax does not start here \(ended with code 1\): .* Set JAX_PLATFORMS=cpu to train on the CPU"):
        find_machine({**environment, "JAX_PLATFORMS": "nonsense"}, tmp_path)


def test_several_devices_are_used_where_they_cut_every_batch():
    assert execution_here(llama_run(8), FOUR) == Execution(mesh=Mesh(fsdp=4))
    assert execution_here(llama_run(6), FOUR) == ONE_DEVICE
    longer = [llama_run(8).learning_rate[0].but(end_step=2)]
    changing = llama_run(8).but(batch=Steps[int](((0, 8), (1, 6))), stop_step=2, learning_rate=longer)
    assert execution_here(changing, FOUR) == ONE_DEVICE


@pytest.mark.parametrize(
    ("changes", "machine", "mesh", "words"),
    [
        ({"compute_dtype": "float32"}, CPU, Mesh(), "1 × CPU, float32, XLA attention"),
        ({}, Machine("gpu", "NVIDIA H200", 1), Mesh(), "1 × H200, bfloat16, cuDNN attention"),
        ({"compute_dtype": "float32"}, FOUR, Mesh(fsdp=4), "4 × H100 80GB HBM3, float32, XLA attention"),
        ({}, FOUR, Mesh(), "1 of 4 × H100 80GB HBM3, bfloat16, cuDNN attention"),
        ({}, Machine("tpu", "TPU v6 lite", 8), Mesh(fsdp=8), "8 × TPU v6 lite, bfloat16, Splash attention"),
    ],
)
def test_it_is_said(changes: dict[str, Any], machine: Machine, mesh: Mesh, words: str):
    assert in_words(llama_run(**changes).but(execution=Execution(mesh=mesh)), machine) == words


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    return build_run(recipe, phase, Home.open(str(tmp_path)), dict.fromkeys(phase.components, Path("nowhere")))


def written(run: RunConfig, **execution: object) -> Path:
    folder = Path(run.output)
    made = run.but(execution=Execution.model_validate({**run.execution.model_dump(), **execution}))
    write_json(RunFolder(folder).run_file, made.model_dump(mode="json"))
    return folder


@pytest.mark.parametrize(
    ("execution", "words"),
    [
        ({}, "local: 1 device, float32, everything kept, the batch at once; from its start to its end"),
        ({"mesh": Mesh(fsdp=2, tensor=3)}, "local: 6 devices (fsdp 2, tensor 3), float32,"),
        ({"mesh": Mesh(replica=2, expert=4)}, "local: 8 devices (replica 2, expert 4), float32,"),
        ({"attention": "splash"}, "local: 1 device, float32, Splash attention, everything kept,"),
        ({"remat": "full"}, "local: 1 device, float32, blocks computed again,"),
        ({"microbatch_sequences": 4}, "everything kept, the batch in parts of 4 sequences;"),
    ],
)
def test_what_was_executed_is_said(run: RunConfig, execution: dict[str, object], words: str):
    assert words in execution_summary(written(run, **execution), "local")


def test_a_run_that_went_on_says_from_where(run: RunConfig):
    folder = written(run)
    append_event(folder, "restart", None, "the trainer was ended by SIGKILL; going on from its beginning")
    append_event(folder, "stalled", 7, "it stalled")
    append_event(folder, "resumed", 1200, "going on")
    assert execution_summary(folder, "local").endswith("; it went on from the beginning, step 1,200")


def test_what_was_computed_otherwise_before_is_named(run: RunConfig):
    folder = written(run, mesh=Mesh(fsdp=2))
    append_event(folder, "resumed", 1060, "going on from step 1,060 of 2,000")
    text = "going on from step 1,060 by another plan, on the same batches, and no longer bit for bit: execution.mesh.fsdp: 1 → 2"
    append_event(folder, "replanned", 1060, text)
    words = execution_summary(folder, "local")
    assert words.startswith("local: 2 devices (fsdp 2)")
    assert words.endswith("; it went on from step 1,060; to step 1,060 otherwise (execution.mesh.fsdp: 1 → 2)")
