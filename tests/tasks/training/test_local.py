"""What the processes of this machine are started with: platform, devices, addresses."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training import local
from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.protocol import Life
from phasewise.trainer.base.errors import ConfigError
from tests.tasks.training.conftest import BuildRun


@pytest.fixture
def life(build_run: BuildRun) -> Any:
    def build(**mesh: int) -> Life:
        run = build_run("environments").but(execution={"mesh": mesh})
        return Life(run, Path(run.output) / "run.json")

    return build


def with_gpus(root: Path, count: int, monkeypatch: pytest.MonkeyPatch, *, plugin: bool = True) -> Path:
    (root / "dev").mkdir()
    for name in ["nvidiactl", *(f"nvidia{number}" for number in range(count))]:
        (root / "dev" / name).touch()
    monkeypatch.setattr(local, "find_spec", lambda name: object() if plugin and name == local.GPU_PLUGINS[0] else None)
    return root


def test_one_process_without_an_accelerator_has_the_environment_and_the_cpu(life: Any, tmp_path: Path):
    [environment] = LocalLauncher(root=tmp_path).environments(life(), {"A": "b"})
    assert environment == {"A": "b", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def test_what_somebody_said_stays(life: Any, tmp_path: Path):
    given = {"JAX_PLATFORMS": "tpu,cpu", "TF_CPP_MIN_LOG_LEVEL": "0"}
    assert LocalLauncher(root=tmp_path).environments(life(), given) == [given]


def test_a_machine_with_a_gpu_trains_on_it(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    [environment] = LocalLauncher(root=with_gpus(tmp_path, 2, monkeypatch)).environments(life(), {})
    assert "JAX_PLATFORMS" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "0", "the memory of the other one is left to others"


def test_each_process_has_a_gpu_of_its_own(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = LocalLauncher(root=with_gpus(tmp_path, 4, monkeypatch)).environments(life(fsdp=4), {})
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "1", "2", "3"]
    assert [one["JAX_PROCESS_ID"] for one in found] == ["0", "1", "2", "3"]
    assert {one["JAX_NUM_PROCESSES"] for one in found} == {"4"}
    assert len({(one["JAX_COORDINATOR_ADDRESS"], one["PHASEWISE_LAUNCH"]) for one in found}) == 1


def test_only_gpus_that_may_be_used_are(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = LocalLauncher(2, root=with_gpus(tmp_path, 8, monkeypatch))
    found = launcher.environments(life(fsdp=4), {"CUDA_VISIBLE_DEVICES": "7,5,3,1"})
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["7,5", "3,1"]
    with pytest.raises(ConfigError, match=r"needs 4 devices, found 2 GPUs \(6, 4\)"):
        launcher.environments(life(fsdp=4), {"CUDA_VISIBLE_DEVICES": "6,4"})


def test_a_gpu_that_jax_cannot_use_is_said(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    [environment] = LocalLauncher(root=with_gpus(tmp_path, 1, monkeypatch, plugin=False)).environments(life(), {})
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert "there is a GPU, and jax has no plugin for it: this trains on the CPU" in caplog.text


def test_a_gpu_is_left_alone_where_the_cpu_was_asked_for(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert LocalLauncher(root=with_gpus(tmp_path, 1, monkeypatch)).environments(life(), given) == [given]


def test_virtual_devices_are_dealt_out(life: Any, tmp_path: Path):
    found = LocalLauncher(2, root=tmp_path).environments(life(replica=2, fsdp=2), {"XLA_FLAGS": "--other"})
    assert [one["XLA_FLAGS"] for one in found] == ["--other --xla_force_host_platform_device_count=2"] * 2
    [one] = LocalLauncher(root=tmp_path).environments(life(fsdp=4), {"JAX_NUM_CPU_DEVICES": "4"})
    assert "XLA_FLAGS" not in one


def test_processes_that_do_not_divide_the_devices_are_refused(life: Any, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"found 4 devices in execution.mesh for 3 processes"):
        LocalLauncher(3, root=tmp_path).environments(life(fsdp=4), {})


def test_what_is_left_over_from_another_launch_is_refused_before_anything_starts(life: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "3")
    with pytest.raises(ConfigError, match="found MEGASCALE_SLICE_ID=3 in the environment"):
        LocalLauncher().start(life())
