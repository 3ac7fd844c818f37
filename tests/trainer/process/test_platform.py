import importlib.util
from pathlib import Path

import pytest

from phasewise.trainer.process import platform
from phasewise.trainer.process.platform import spare_search


@pytest.fixture(autouse=True)
def _with_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_spec", lambda name: importlib.util.find_spec("json") if name == "libtpu" else None)


def chosen(root: Path, **environment: str) -> str | None:
    spare_search(environment, root=root)
    return environment.get("JAX_PLATFORMS")


def pci(root: Path, vendor: str) -> None:
    folder = root / "sys/bus/pci/devices/0000:00:04.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")


def test_without_an_accelerator_jax_is_asked_to_use_the_cpu(tmp_path: Path) -> None:
    pci(tmp_path, "0x1af4")
    assert chosen(tmp_path) == "cpu"


def test_without_libtpu_there_is_nothing_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_spec", lambda _name: None)
    assert chosen(tmp_path) is None


def test_what_somebody_said_stays(tmp_path: Path) -> None:
    assert chosen(tmp_path, JAX_PLATFORMS="tpu,cpu") == "tpu,cpu"


@pytest.mark.parametrize("device", ["dev/accel0", "dev/vfio/0", "dev/nvidia0", "dev/dxg", "dev/kfd"])
def test_a_device_leaves_the_choice_to_jax(tmp_path: Path, device: str) -> None:
    (tmp_path / device).parent.mkdir(parents=True)
    (tmp_path / device).touch()
    assert chosen(tmp_path) is None


def test_a_tpu_on_the_bus_leaves_the_choice_to_jax(tmp_path: Path) -> None:
    pci(tmp_path, "0x1ae0")
    assert chosen(tmp_path) is None


@pytest.mark.parametrize("name", ["TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "MEGASCALE_COORDINATOR_ADDRESS", "JAX_FORCE_TPU_INIT"])
def test_an_environment_of_tpus_leaves_the_choice_to_jax(tmp_path: Path, name: str) -> None:
    assert chosen(tmp_path, **{name: "x"}) is None
