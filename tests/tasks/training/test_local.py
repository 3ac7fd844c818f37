"""What the processes of this machine are started with: platform, devices, addresses."""

import signal
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training import local
from phasewise.tasks.training.launchers import DONE_SECONDS, GRACE_SECONDS, Attempt, ProcessGroup, decisive
from phasewise.tasks.training.local import LocalLauncher
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.run_folder import RunFolder
from tests.tasks.training.conftest import BuildRun


class Member:
    """A process that ends when a test says so."""

    def __init__(self, number: int, *, dies: bool = True) -> None:
        self.name, self.log_before, self.ended, self.dies = f"host{number}", 0, None, dies
        self.asked = 0

    ended: int | None

    def code(self) -> int | None:
        return self.ended

    def wait(self, seconds: float) -> None:
        pass

    def stop(self) -> None:
        self.asked += 1

    def kill(self) -> None:
        if self.ended is None:
            self.ended = -signal.SIGKILL

    def close(self) -> None:
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def members() -> list[Member]:
    return [Member(number) for number in range(3)]


@pytest.fixture
def group(tmp_path: Path, members: list[Member], clock: Clock) -> ProcessGroup:
    found = ProcessGroup(tmp_path, clock=clock)
    for member in members:
        found.processes.append(member)
    return found


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([5, -signal.SIGKILL], -signal.SIGKILL),
        ([-signal.SIGABRT, 5], 5),
        ([75, 75], 75),
        ([75, -signal.SIGKILL], -signal.SIGKILL),
        ([4, -signal.SIGKILL, -signal.SIGABRT], 4),
        ([5, 3, 4], 3),
        ([0, 7, 75], 7),
        ([0, 5], 5),
        ([0, 120], 120),
        ([75, -signal.SIGTERM], 75),
        ([9, 5], 9),
        ([9, 7], 7),
    ],
)
def test_the_reason_counts_and_not_what_followed(codes: list[int], expected: int):
    assert decisive(codes) == expected
    assert decisive(reversed(codes)) == expected


def test_where_one_is_lost_the_others_are_ended_and_it_is_named(group: ProcessGroup, members: list[Member], clock: Clock, tmp_path: Path):
    RunFolder(tmp_path).log(1).write_text("noise\ntrainer: out of memory\n")
    assert group.look() is None
    members[1].ended = -signal.SIGKILL
    assert group.look() is None
    clock.now += GRACE_SECONDS + 1
    assert group.look() is None
    assert group.look() == -signal.SIGKILL
    assert [member.ended for member in members] == [-signal.SIGKILL] * 3
    assert RunFolder(tmp_path).log(0).read_text() == "trainer: host 1 (host1) was ended by SIGKILL: out of memory\n"


def test_those_that_save_have_their_time(group: ProcessGroup, members: list[Member], clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_STOP_SECONDS", "100")
    members[0].ended = 75
    group.look()
    clock.now += 99
    assert group.look() is None
    assert members[1].ended is None
    members[1].ended = members[2].ended = 75
    assert group.look() == 75


def test_one_that_does_not_end_with_those_that_are_done_is_lost(group: ProcessGroup, members: list[Member], clock: Clock, tmp_path: Path):
    members[0].ended = members[1].ended = 0
    group.look()
    clock.now += DONE_SECONDS + 1
    group.look()
    assert group.look() == 5
    assert "host 2 (host2) did not end with the others" in RunFolder(tmp_path).log(0).read_text()


@pytest.fixture
def life(build_run: BuildRun) -> Any:
    def build(**mesh: int) -> Attempt:
        run = build_run("environments").but(execution={"mesh": mesh})
        return Attempt(run, Path(run.output) / "run.json")

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


def test_a_gpu_that_jax_cannot_use_is_said(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    [environment] = LocalLauncher(root=with_gpus(tmp_path, 1, monkeypatch, plugin=False)).environments(life(), {})
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert "there is a GPU, and jax has no plugin for it: this trains on the CPU" in caplog.text


def test_virtual_devices_are_dealt_out(life: Any, tmp_path: Path):
    found = LocalLauncher(2, root=tmp_path).environments(life(replica=2, fsdp=2), {"XLA_FLAGS": "--other"})
    assert [one["XLA_FLAGS"] for one in found] == ["--other --xla_force_host_platform_device_count=2"] * 2
    [one] = LocalLauncher(root=tmp_path).environments(life(fsdp=4), {"JAX_NUM_CPU_DEVICES": "4"})
    assert "XLA_FLAGS" not in one


def test_processes_that_do_not_divide_the_devices_are_refused(life: Any, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"found 4 devices in execution.mesh for 3 processes"):
        LocalLauncher(3, root=tmp_path).environments(life(fsdp=4), {})
