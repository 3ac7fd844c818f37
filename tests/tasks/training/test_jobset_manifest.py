"""The manifest of a JobSet: it holds against the schema, and says what must agree with what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.jobset_manifest import ClusterSettings, build_manifest, host_names
from phasewise.tasks.training.launchers import Attempt
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import as_path
from tests.tasks.training.schema import SCHEMA, schema_problems

BareLife = Callable[..., Attempt]
KEPT = Kept(Path("/scratch/phasewise/0123"), as_path("gs://bucket/home"), "marin-8b-full")
SETTINGS = ClusterSettings(image="registry/phasewise:1", claim="home", mount="/mnt/phasewise", service_account="trainer", stop_seconds=45.5)
SLICES = ["v4-2048", "2x v5e-256", "4x v5p-512", "v6e-4", "tpu7x-8"]


def manifest_on(name: str, life: Attempt, **changes: Any) -> Any:
    return build_manifest(life, find_slice(name), SETTINGS.model_copy(update=changes), name="phasewise-0123456789ab")


def on_store(name: str, life: Attempt, **changes: Any) -> Any:
    settings = SETTINGS.but(claim=None, mount=None, **changes)
    return build_manifest(life, find_slice(name), settings, name="phasewise-0123456789ab", kept=KEPT)


def pod_of(manifest: Any) -> Any:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def env_of(manifest: Any) -> dict[str, Any]:
    [container] = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


@pytest.mark.skipif(not SCHEMA.exists(), reason="the schema of JobSet is not here; the check of our own covers what we write")
@pytest.mark.parametrize("name", SLICES)
def test_it_holds_against_the_schema(bare_life: BareLife, name: str):
    manifest = manifest_on(name, bare_life())
    assert schema_problems(manifest) == schema_problems(on_store(name, bare_life())) == []
    assert (
        schema_problems(on_store(name, bare_life(), scratch="memory")) == schema_problems(on_store(name, bare_life(), scratch="/a")) == []
    )
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["tolerate"] = True
    manifest["spec"]["failurePolicy"]["maxRestarts"] = "none"
    assert len(schema_problems(manifest)) == 2, "the schema can fail"


def test_pods_of_a_home_on_a_store_have_a_disk_of_their_own_and_bring_what_they_need(bare_life: BareLife):
    life = bare_life()
    manifest = on_store("4x v5p-512", life, send_seconds=100.0)
    pod, found = pod_of(manifest), env_of(manifest)
    [container] = pod["containers"]
    assert container["command"][3:] == [
        "host",
        "gs://bucket/home",
        "marin-8b-full",
        Path(life.run.output).name,
        "/scratch/phasewise/0123",
    ]
    assert "phasewise.tasks.training.hosts" in container["command"][2]
    assert "RUN_FOLDER" not in found
    assert (found["PHASEWISE_SEND_SECONDS"], found["PHASEWISE_STOP_SECONDS"]) == ("100", "45.5")
    assert pod["terminationGracePeriodSeconds"] == 146, "to save, and to send"
    assert container["volumeMounts"] == [{"name": "scratch", "mountPath": found["PHASEWISE_SCRATCH"]}]
    for scratch, volume in {
        None: {"emptyDir": {}},
        "memory": {"emptyDir": {"medium": "Memory"}},
        "/mnt/disks/ssd0": {"hostPath": {"path": "/mnt/disks/ssd0", "type": "DirectoryOrCreate"}},
    }.items():
        assert pod_of(on_store("v6e-4", life, scratch=scratch))["volumes"] == [{"name": "scratch", **volume}]


def test_a_slice_of_several_hosts_is_one_replicated_job(bare_life: BareLife):
    manifest = manifest_on("v4-2048", bare_life())
    [job] = manifest["spec"]["replicatedJobs"]
    assert (job["replicas"], job["template"]["spec"]["completions"]) == (1, 256)
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice", "cloud.google.com/gke-tpu-topology": "8x8x16"
    }  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] == 46
    assert not [name for name in env_of(manifest) if name.startswith("MEGASCALE")]
    assert env_of(manifest)["JAX_NUM_PROCESSES"] == "256"


def test_a_multislice_is_several_of_them_and_says_so(bare_life: BareLife):
    manifest = manifest_on("4x v5p-512", bare_life())
    [job] = manifest["spec"]["replicatedJobs"]
    assert (job["replicas"], job["template"]["spec"]["completions"]) == (4, 64)
    found = env_of(manifest)
    first = "phasewise-0123456789ab-slice-0-0.phasewise-0123456789ab"
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == first
    assert found["MEGASCALE_NUM_SLICES"] == found["PHASEWISE_SLICES"] == "4"
    assert found["MEGASCALE_SLICE_ID"] == found["SLICE"]
    assert found["JAX_COORDINATOR_ADDRESS"] == f"{first}:8476"
    assert found["JAX_NUM_PROCESSES"] == "256"
    names = host_names("a", find_slice("4x v5p-512"))
    assert names[0] == "a-slice-0-0.a"
    assert names[64] == "a-slice-1-0.a"


def test_a_slice_that_gke_has_not_is_refused(bare_life: BareLife):
    slices = find_slice("v4-8")
    other = slices.model_copy(update={"chip": slices.chip.model_copy(update={"topology": "gpu"}), "name": "h100-8"})
    with pytest.raises(ConfigError, match=r"a JobSet on GKE needs a slice of TPUs .*, found h100-8"):
        build_manifest(bare_life(), other, SETTINGS, name="x")
