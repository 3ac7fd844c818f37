import re
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.store.publisher import Kept, keeping
from phasewise.tasks.training import kubernetes_cluster
from phasewise.tasks.training import select_launcher as selection
from phasewise.tasks.training.launchers import LocalLauncher
from phasewise.tasks.training.select_launcher import select_launcher
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Execution, Mesh, RunConfig
from phasewise.trainer.preflight.spec import run_of
from tests.trainer.preflight.models import LLAMA_8B, step_of

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
