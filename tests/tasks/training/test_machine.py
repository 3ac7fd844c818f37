"""What a run on `local` computes on, by what the machine has."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training import machine as module
from phasewise.tasks.training.machine import CPU, ONE_DEVICE, Machine, execution_here, find_machine, in_words
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.config import Execution, Mesh, RunConfig, Steps
from phasewise.trainer.preflight.spec import run_of
from tests.trainer.preflight.models import LLAMA_8B, step_of

FOUR = Machine("gpu", "NVIDIA H100 80GB HBM3", 4)


def run(batch: int = 8, **model: Any) -> RunConfig:
    return run_of(step_of(LLAMA_8B.but(**model), batch), Execution())


def test_a_machine_without_an_accelerator_is_its_cpu_and_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_asked", lambda environment: pytest.fail("jax was asked"))
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


def test_one_device_is_as_it_always_was():
    assert execution_here(run(), CPU) == ONE_DEVICE == Execution()
    assert execution_here(run(), Machine("cpu", "CPU", 8)) == ONE_DEVICE
    assert execution_here(run(), Machine("gpu", "NVIDIA H200", 1)) == ONE_DEVICE


def test_several_devices_are_used_where_they_cut_every_batch():
    assert execution_here(run(8), FOUR) == Execution(mesh=Mesh(fsdp=4))
    assert execution_here(run(6), FOUR) == ONE_DEVICE
    longer = [run(8).learning_rate[0].but(end_step=2)]
    changing = run(8).but(batch=Steps[int](((0, 8), (1, 6))), stop_step=2, learning_rate=longer)
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
    assert in_words(run(**changes).but(execution=Execution(mesh=mesh)), machine) == words
