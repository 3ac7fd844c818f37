import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run as build_run_of_recipe
from phasewise.tasks.home import Home
from phasewise.tasks.store.publisher import Kept, keeping
from phasewise.tasks.training import execution as execution_module
from phasewise.tasks.training import kubernetes_cluster, launchers
from phasewise.tasks.training import select_launcher as selection
from phasewise.tasks.training.execution import CPU, ONE_DEVICE, Machine, execution_here, execution_summary, in_words, machine_here
from phasewise.tasks.training.launchers import DONE_SECONDS, GRACE_SECONDS, Attempt, LocalLauncher, ProcessGroup, decisive
from phasewise.tasks.training.select_launcher import select_launcher
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.config import Execution, Mesh, RunConfig, Steps
from phasewise.trainer.preflight.spec import run_of
from tests.tasks.training.conftest import BuildRun
from tests.trainer.preflight.models import LLAMA_8B, step_of

FOUR = Machine("gpu", "NVIDIA H100 80GB HBM3", 4)


class Member:
    def __init__(self, number: int) -> None:
        self.name, self.log_before = f"host{number}", 0
        self.ended: int | None = None

    def code(self) -> int | None:
        return self.ended

    def stop(self, *_: float) -> None:
        pass

    wait = close = stop

    def kill(self) -> None:
        self.ended = -signal.SIGKILL if self.ended is None else self.ended


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def grouped(folder: Path) -> tuple[ProcessGroup, list[Member], Clock]:
    clock, members = Clock(), [Member(number) for number in range(3)]
    group = ProcessGroup(folder, clock=clock)
    group.processes.extend(members)
    return group, members, clock


@pytest.mark.parametrize(("codes", "expected"), [
    ([0, 0], 0), ([5, -9], -9), ([-6, 5], 5), ([75, 75], 75), ([75, -9], -9), ([4, -9, -6], 4), ([5, 3, 4], 3), ([0, 7, 75], 7),
    ([0, 5], 5), ([0, 120], 120), ([75, -15], 75), ([9, 5], 9), ([9, 7], 7),
])  # fmt: skip
def test_the_reason_counts_and_not_what_followed(codes: list[int], expected: int):
    assert decisive(codes) == decisive(reversed(codes)) == expected


def test_where_one_is_lost_the_others_are_ended_and_it_is_named(tmp_path: Path):
    group, members, clock = grouped(tmp_path)
    RunFolder(tmp_path).log(1).write_text("noise\ntrainer: out of memory\n")
    assert group.look() is None
    members[1].ended = -signal.SIGKILL
    assert group.look() is None
    clock.now += GRACE_SECONDS + 1
    assert group.look() is None
    assert group.look() == -signal.SIGKILL
    assert [member.ended for member in members] == [-signal.SIGKILL] * 3
    assert RunFolder(tmp_path).log(0).read_text() == "trainer: host 1 (host1) was ended by SIGKILL: out of memory\n"


def test_those_that_save_have_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    group, members, clock = grouped(tmp_path)
    monkeypatch.setenv("PHASEWISE_STOP_SECONDS", "100")
    members[0].ended = 75
    group.look()
    clock.now += 99
    assert group.look() is None
    assert members[1].ended is None
    members[1].ended = members[2].ended = 75
    assert group.look() == 75


def test_one_that_does_not_end_with_those_that_are_done_is_lost(tmp_path: Path):
    group, members, clock = grouped(tmp_path)
    members[0].ended = members[1].ended = 0
    group.look()
    clock.now += DONE_SECONDS + 1
    group.look()
    assert group.look() == 5
    assert "host 2 (host2) did not end with the others" in RunFolder(tmp_path).log(0).read_text()


# ── environments ──


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
    monkeypatch.setattr(launchers, "find_spec", lambda name: object() if plugin and name == launchers.GPU_PLUGINS[0] else None)
    return root


def test_without_an_accelerator_or_its_plugin_it_is_the_cpu(
    life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    [environment] = LocalLauncher(root=tmp_path).environments(life(), {"A": "b"})
    assert environment == {"A": "b", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    caplog.set_level("INFO")
    [environment] = LocalLauncher(root=with_gpus(tmp_path, 1, monkeypatch, plugin=False)).environments(life(), {})
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert "there is a GPU, and jax has no plugin for it: this trains on the CPU" in caplog.text


def test_each_process_has_a_gpu_of_its_own(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = LocalLauncher(root=with_gpus(tmp_path, 4, monkeypatch))
    [one] = launcher.environments(life(), {})
    assert "JAX_PLATFORMS" not in one
    assert one["CUDA_VISIBLE_DEVICES"] == "0", "the memory of the other ones is left to others"
    found = launcher.environments(life(fsdp=4), {})
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "1", "2", "3"]
    assert [one["JAX_PROCESS_ID"] for one in found] == ["0", "1", "2", "3"]
    assert {one["JAX_NUM_PROCESSES"] for one in found} == {"4"}
    assert len({(one["JAX_COORDINATOR_ADDRESS"], one["PHASEWISE_LAUNCH"]) for one in found}) == 1
    with pytest.raises(ConfigError, match="needs 8 devices, found 4 GPUs"):
        launcher.environments(life(fsdp=8), {})


def test_virtual_devices_are_dealt_out_among_processes_that_divide_them(life: Any, tmp_path: Path):
    found = LocalLauncher(2, root=tmp_path).environments(life(replica=2, fsdp=2), {"XLA_FLAGS": "--other"})
    assert [one["XLA_FLAGS"] for one in found] == ["--other --xla_force_host_platform_device_count=2"] * 2
    [one] = LocalLauncher(root=tmp_path).environments(life(fsdp=4), {"JAX_NUM_CPU_DEVICES": "4"})
    assert "XLA_FLAGS" not in one
    with pytest.raises(ConfigError, match=r"found 4 devices in execution.mesh for 3 processes"):
        LocalLauncher(3, root=tmp_path).environments(life(fsdp=4), {})


# ── what a phase computes on, and did ──


def llama_run(batch: int = 8, **model: Any) -> RunConfig:
    return run_of(step_of(LLAMA_8B.but(**model), batch), Execution())


def test_jax_is_asked_where_there_is_an_accelerator_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(execution_module, "_devices_of_jax", lambda environment: pytest.fail("jax was asked"))
        assert machine_here({}, tmp_path) == CPU
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev" / "nvidia0").touch()
        assert machine_here({"JAX_PLATFORMS": "cpu"}, tmp_path) == CPU
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TPU_SKIP_MDS_QUERY": "1"}
    environment.pop("JAX_PLATFORMS", None)
    assert machine_here(environment, tmp_path) == CPU
    with pytest.raises(TrainingError, match=r"jax does not start here \(ended with code 1\): .* Set JAX_PLATFORMS=cpu to train on the CPU"):
        machine_here({**environment, "JAX_PLATFORMS": "nonsense"}, tmp_path)


def test_several_devices_are_used_where_they_cut_every_batch():
    assert execution_here(llama_run(8), FOUR) == Execution(mesh=Mesh(fsdp=4))
    assert execution_here(llama_run(6), FOUR) == ONE_DEVICE
    longer = [llama_run(8).learning_rate[0].but(end_step=2)]
    changing = llama_run(8).but(batch=Steps[int](((0, 8), (1, 6))), stop_step=2, learning_rate=longer)
    assert execution_here(changing, FOUR) == ONE_DEVICE


@pytest.mark.parametrize(("changes", "machine", "mesh", "words"), [
    ({"compute_dtype": "float32"}, CPU, Mesh(), "1 × CPU, float32, XLA attention"),
    ({}, FOUR, Mesh(), "1 of 4 × H100 80GB HBM3, bfloat16, cuDNN attention"),
    ({}, Machine("tpu", "TPU v6 lite", 8), Mesh(fsdp=8), "8 × TPU v6 lite, bfloat16, Splash attention"),
])  # fmt: skip
def test_what_a_phase_will_compute_on_is_said(changes: dict[str, Any], machine: Machine, mesh: Mesh, words: str):
    assert in_words(llama_run(**changes).but(execution=Execution(mesh=mesh)), machine) == words


def written(folder: Path, **execution: object) -> Path:
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    run = build_run_of_recipe(recipe, phase, Home.open(str(folder)), dict.fromkeys(phase.components, Path("nowhere")))
    made = run.but(execution=Execution.model_validate({**run.execution.model_dump(), **execution}))
    write_sealed(RunFolder(run.output).run_file, made.model_dump(mode="json"))
    return Path(run.output)


def test_what_was_executed_and_how_it_went_on_is_said(tmp_path: Path):
    executions: dict[str, dict[str, object]] = {
        "local: 1 device, float32, everything kept, the batch at once; from its start to its end": {},
        "local: 6 devices (fsdp 2, tensor 3), float32,": {"mesh": Mesh(fsdp=2, tensor=3)},
        "local: 1 device, float32, Splash attention, everything kept,": {"attention": "splash"},
        "local: 1 device, float32, blocks computed again,": {"remat": "full"},
        "everything kept, the batch in parts of 4 sequences;": {"microbatch_sequences": 4},
    }
    for words, execution in executions.items():
        assert words in execution_summary(written(tmp_path, **execution), "local")
    folder = written(tmp_path, mesh=Mesh(fsdp=2))
    append_event(folder, "restart", None, "the trainer was ended by SIGKILL; resuming from its beginning")
    append_event(folder, "stalled", 7, "it stalled")
    append_event(folder, "resumed", 1060, "resuming from step 1,060 of 2,000")
    text = "resuming from step 1,060 by another plan, on the same batches, and no longer bit for bit: execution.mesh.fsdp: 1 → 2"
    append_event(folder, "replanned", 1060, text)
    words = execution_summary(folder, "local")
    assert words.startswith("local: 2 devices (fsdp 2)")
    assert words.endswith("; it resumed from the beginning, step 1,060; to step 1,060 otherwise (execution.mesh.fsdp: 1 → 2)")


GKE = {"PHASEWISE_LAUNCHER": "jobset", "PHASEWISE_GKE_IMAGE": "registry/phasewise:1"}
TPU = {"PHASEWISE_LAUNCHER": "tpu_vm", "PHASEWISE_TPU_HOSTS": "one, two"}


def run(devices: int = 8) -> RunConfig:
    return run_of(step_of(LLAMA_8B, 8), Execution(mesh=Mesh(fsdp=devices)))


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_cluster.Cluster, "__init__", lambda self, namespace: setattr(self, "namespace", namespace))


def test_without_a_word_a_phase_is_trained_here_in_so_many_processes_as_are_named(monkeypatch: pytest.MonkeyPatch):
    for name, environment in (("v5e-8", {}), ("v5e-8", {"PHASEWISE_LAUNCHER": ""}), ("local", GKE), ("local", TPU)):
        assert isinstance(select_launcher(run(), name, environment), LocalLauncher)
    given: list[int | None] = []
    monkeypatch.setattr(selection, "LocalLauncher", given.append)
    for value in ("", "4"):
        select_launcher(run(), "local", {"PHASEWISE_PROCESSES": value})
    assert given == [None, 4]


def test_what_is_for_a_home_on_a_store_reaches_the_pods(gcs: Path, tmp_path: Path):
    on_store = run().but(phase="kestrel", output=str(tmp_path / "runs" / "tiny-proxy" / "kestrel"))
    said = {
        "PHASEWISE_GKE_SCRATCH": "/mnt/disks/ssd0", "PHASEWISE_SEND_SECONDS": "7", "XLA_FLAGS": "--a",
        "PHASEWISE_PUBLISH_SECONDS": "9", "PHASEWISE_JOIN_SECONDS": "1", "JAX_PLATFORMS": "cpu", "JAX_PROCESS_ID": "3", "HOME": "/root",
    }  # fmt: skip
    with keeping(Kept(tmp_path, gcs, "tiny-proxy")):
        launcher: Any = select_launcher(on_store, "v5e-8", {**GKE, **said})
        plain: Any = select_launcher(on_store, "v5e-8", GKE)
        with pytest.raises(ConfigError, match=r"kestrel has its home on a store, .* found the volume home in PHASEWISE_GKE_CLAIM"):
            select_launcher(on_store, "v5e-8", {**GKE, "PHASEWISE_GKE_CLAIM": "home", "PHASEWISE_GKE_MOUNT": "/mnt"})
        with pytest.raises(ConfigError, match="must be a folder of the node, from / on, or 'memory', found 'ssd'"):
            select_launcher(on_store, "v5e-8", {**GKE, "PHASEWISE_GKE_SCRATCH": "ssd"})
    settings = launcher.settings
    assert (settings.scratch, settings.send_seconds) == ("/mnt/disks/ssd0", 7.0)
    assert settings.passed_on == {"XLA_FLAGS": "--a", "PHASEWISE_PUBLISH_SECONDS": "9"}
    assert (plain.settings.scratch, plain.settings.send_seconds) == (None, 120.0)


def test_each_slice_of_a_phase_has_its_workers_with_their_settings():
    more = {"PYTHON": "/opt/python", "PROJECT": "/opt/phasewise", "KNOWN_HOSTS": "known", "KEY": "key"}
    hosts = "2x v5e-8 = one,me@two:2222;three,four | v5e-8=five,six"
    environment = {**TPU, "PHASEWISE_TPU_HOSTS": hosts, **{f"PHASEWISE_TPU_{name}": value for name, value in more.items()}}
    first: Any = select_launcher(run(16), "2x v5e-8", environment)
    second: Any = select_launcher(run(8), "v5e-8", environment)
    workers = first.workers
    assert workers.slices == (("one", "me@two:2222"), ("three", "four"))
    assert [workers.python, workers.project, str(workers.known_hosts), str(workers.key)] == list(more.values())
    assert second.workers.slices == (("five", "six"),)
    with pytest.raises(ConfigError, match=r"must name the workers of v5e-16, found those of 2x v5e-8, v5e-8: add '\| v5e-16=…'"):
        select_launcher(run(16), "v5e-16", environment)


@pytest.mark.parametrize(("devices", "environment", "words"), [
    (8, {"PHASEWISE_LAUNCHER": "slurm"}, "PHASEWISE_LAUNCHER must be one of local, jobset, tpu_vm, found 'slurm'"),
    (8, {"PHASEWISE_PROCESSES": "0"}, "PHASEWISE_PROCESSES must be a whole number above 0, found '0'"),
    (8, {"PHASEWISE_PROCESSES": "two"}, "PHASEWISE_PROCESSES must be a whole number above 0, found 'two'"),
    (8, {"PHASEWISE_PROCESSES": "3"}, "equally many of its 8 devices, found 3 in PHASEWISE_PROCESSES"),
    (4, GKE, "must have the 8 devices of v5e-8, found 4 in execution.mesh"),
    (8, {"PHASEWISE_LAUNCHER": "jobset"}, "needs the image that every host starts in PHASEWISE_GKE_IMAGE, found none"),
    (8, {**GKE, "PHASEWISE_GKE_CLAIM": "home"}, "PHASEWISE_GKE_CLAIM and PHASEWISE_GKE_MOUNT must be set both or not at all"),
    (8, {**GKE, "PHASEWISE_GKE_SCRATCH": "/a"}, "PHASEWISE_GKE_SCRATCH is for a home on a store"),
    (8, {"PHASEWISE_LAUNCHER": "tpu_vm"}, "needs the workers of the slice in PHASEWISE_TPU_HOSTS, found none"),
    (8, {**TPU, "PHASEWISE_TPU_HOSTS": "one,two,three"}, "v5e-8 has 1 × 2 hosts, found 3 in PHASEWISE_TPU_HOSTS"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(devices: int, environment: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        select_launcher(run(devices), "v5e-8", environment)
