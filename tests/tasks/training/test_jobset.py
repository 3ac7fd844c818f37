import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training import jobset, kubernetes_cluster
from phasewise.tasks.training.attempts import start_and_monitor
from phasewise.tasks.training.jobset import ClusterSettings, JobSetLauncher, build_manifest, exit_code, jobset_name, reasons_of
from phasewise.tasks.training.kubernetes_cluster import Cluster
from phasewise.tasks.training.launchers import Attempt, ProcessGroup
from phasewise.tasks.training.tpu_vm import Host, TpuVmLauncher, Workers
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from tests.tasks.training.api_server import SCHEMA, ApiServer, api_server, schema_problems
from tests.tasks.training.conftest import PATIENCE_SECONDS, BareLife, are_here, pid_said_by, until
from tests.tasks.training.ssh_hosts import SshHosts, ssh_hosts

Patch = pytest.MonkeyPatch
KEPT = Kept(Path("/scratch/phasewise/0123"), as_path("gs://bucket/home"), "marin-8b-full")
SETTINGS = ClusterSettings(image="registry/phasewise:1", claim="home", mount="/mnt/phasewise", service_account="trainer", stop_seconds=45.5)
NAME = "phasewise-0123456789ab"


def manifest_on(name: str, life: Attempt, *, kept: Kept | None = None, **changes: Any) -> Any:
    settings = SETTINGS.but(**changes) if kept is None else SETTINGS.but(claim=None, mount=None, **changes)
    return build_manifest(life, find_slice(name), settings, name=NAME, kept=kept)


def parts_of(manifest: Any) -> tuple[Any, Any, dict[str, Any]]:
    [job] = manifest["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    return job, pod, {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["containers"][0]["env"]}


@pytest.mark.skipif(not SCHEMA.exists(), reason="the schema of JobSet is not here")
@pytest.mark.parametrize("name", ["v4-2048", "4x v5p-512", "tpu7x-8"])
def test_a_manifest_holds_against_the_schema(bare_life: BareLife, name: str):
    life = bare_life()
    manifest = manifest_on(name, life)
    on_store = [manifest_on(name, life, kept=KEPT, scratch=scratch) for scratch in (None, "memory", "/a")]
    assert [schema_problems(one) for one in (manifest, *on_store)] == [[]] * 4
    parts_of(manifest)[1]["tolerate"] = True
    manifest["spec"]["failurePolicy"]["maxRestarts"] = "none"
    assert len(schema_problems(manifest)) == 2, "the schema can fail"


def test_pods_of_a_home_on_a_store_have_a_disk_of_their_own_and_bring_what_they_need(bare_life: BareLife):
    life = bare_life()
    _, pod, found = parts_of(manifest_on("4x v5p-512", life, kept=KEPT, send_seconds=100.0))
    [container] = pod["containers"]
    places = ["gs://bucket/home", "marin-8b-full", Path(life.run.output).name, "/scratch/phasewise/0123"]
    assert container["command"][3:] == ["host", *places]
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
        assert parts_of(manifest_on("v6e-4", life, kept=KEPT, scratch=scratch))[1]["volumes"] == [{"name": "scratch", **volume}]


def test_each_slice_is_a_replicated_job_and_others_than_of_tpus_are_refused(bare_life: BareLife):
    job, pod, found = parts_of(manifest_on("v4-2048", bare_life()))
    assert (job["replicas"], job["template"]["spec"]["completions"]) == (1, 256)
    accelerator, topology = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
    assert pod["nodeSelector"] == {accelerator: "tpu-v4-podslice", topology: "8x8x16"}
    assert pod["terminationGracePeriodSeconds"] == 46
    assert not [name for name in found if name.startswith("MEGASCALE")]
    assert found["JAX_NUM_PROCESSES"] == "256"
    job, _, found = parts_of(manifest_on("4x v5p-512", bare_life()))
    assert (job["replicas"], job["template"]["spec"]["completions"]) == (4, 64)
    first = f"{NAME}-slice-0-0.{NAME}"
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == first
    assert found["MEGASCALE_NUM_SLICES"] == found["PHASEWISE_SLICES"] == "4"
    assert found["MEGASCALE_SLICE_ID"] == found["SLICE"]
    assert (found["JAX_COORDINATOR_ADDRESS"], found["JAX_NUM_PROCESSES"]) == (f"{first}:8476", "256")
    names = found["PHASEWISE_HOSTS"].split(",")
    assert (names[0], names[64]) == (f"{NAME}-slice-0-0", f"{NAME}-slice-1-0")
    slices = find_slice("v4-8")
    other = replace(slices, chip=slices.chip.model_copy(update={"topology": "gpu"}), name="h100-8")
    with pytest.raises(ConfigError, match=r"a JobSet on GKE needs a slice of TPUs .*, found h100-8"):
        build_manifest(bare_life(), other, SETTINGS, name="x")


# ── how pods ended ──

KILLED, TERMINATED, ABORTED = 137, 143, 134


def pod(host: int, code: int | None, at: int | None = 0) -> Any:
    """A pod that ended in that second; None is that the cluster does not say when."""
    index, completion = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"
    annotations = {index: str(host // 2), completion: str(host % 2), "phasewise/hosts": "2"}
    ended = {"exitCode": code, **({} if at is None else {"finishedAt": f"2026-01-01T00:00:{at:02}Z"})}
    state = {"running": {}} if code is None else {"terminated": ended}
    return {"metadata": {"name": f"pod-{host}", "annotations": annotations}, "status": {"containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(("pods", "hosts", "code"), [
    ([pod(0, KILLED, 40), pod(1, KILLED, 10)], [1], -9),  # the others have their time to save, and are killed when it is over
    ([pod(0, 75, 12), pod(1, KILLED, 10)], [1], -9),
    ([pod(0, TERMINATED, 10), pod(1, KILLED, 10)], [1], -9),
    ([pod(0, KILLED, 10), pod(1, KILLED, 10), pod(2, ABORTED, 10)], [0, 1], -9),
    ([pod(0, KILLED, None), pod(1, KILLED, None), pod(2, ABORTED, None)], [0, 1], -9),
    ([pod(0, KILLED, 10), pod(1, 7, 12)], [1], 7),  # starting again does not cure it
    ([pod(0, 75, 10), pod(1, 9, 10)], [1], 9),  # it is saved
    ([pod(0, 0, 10), pod(3, 5, 11)], [3], 5),
    ([pod(0, 0, 10), pod(1, 0, 11)], [], None),
    ([pod(0, None), pod(1, None)], [], None),
])  # fmt: skip
def test_the_pod_that_was_the_reason_is_named(pods: list[Any], hosts: list[int], code: int | None):
    reasons = reasons_of(pods)
    assert ([one.host for one in reasons], reasons[0].code if reasons else None) == (hosts, code)


def test_the_code_of_a_container_and_why_pods_do_not_start():
    for said, code in ((0, 0), (75, 75), (137, -9), (143, -15), (255, 255)):
        assert exit_code(pod(0, said)) == code
    assert exit_code({"status": {}}) is None
    waiting = {"metadata": {"name": "a"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}
    creating = {"metadata": {"name": "b"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}}
    full = {"metadata": {"name": "c"}, "status": {"conditions": [{"reason": "Unschedulable", "message": "no nodes"}]}}
    assert jobset.trouble_of([waiting, creating, full]) == "a does not start (ImagePullBackOff); c does not start (Unschedulable: no nodes)"
    assert jobset.trouble_of([creating]) == ""


# ── on a cluster ──


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(tmp_path) as found:
        yield found


@pytest.fixture
def launcher(server: ApiServer, stand_in: Path, monkeypatch: Patch) -> JobSetLauncher:
    monkeypatch.setattr(kubernetes_cluster, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(jobset, "PODS_SECONDS", 0.02)
    settings = ClusterSettings(image="here", python=str(stand_in), stop_seconds=5)
    return JobSetLauncher(Cluster("default", host=server.address), find_slice("v5p-16"), settings)


def ends_with(attempt: ProcessGroup, life: Attempt, code: int) -> None:
    (life.folder / "end-1").write_text(str(code))
    until(lambda: attempt.look() is not None)
    assert attempt.look() == code
    attempt.close()


@pytest.mark.parametrize("fault", ["503", "cut", pytest.param("slow", marks=pytest.mark.long)])
def test_a_server_that_does_not_answer_is_asked_again(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, fault: str):
    life = bare_life()
    server.faults += ["", fault, fault]  # the first request asks what is there
    attempt = launcher.start(life)
    server.faults += [fault, fault, fault]
    ends_with(attempt, life, 3)
    assert len(server.pods) == 0
    assert "host 1" in RunFolder(life.folder).log(0).read_text()


def test_an_unanswered_request_is_not_made_twice(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, monkeypatch: Patch):
    life, create = bare_life(), server.create

    def unanswered(manifest: Any) -> Any:
        create(manifest)
        monkeypatch.setattr(server, "create", create)
        server.faults.append("503")
        raise ConnectionAbortedError

    monkeypatch.setattr(server, "create", unanswered)
    attempt = launcher.start(life)
    assert len(server.jobsets) == 1
    ends_with(attempt, life, 3)


def test_a_launcher_that_comes_after_one_that_died_replaces_its_jobset(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    first, second = bare_life(owner="the first"), bare_life(owner="the second")
    begun = launcher.start(first)
    until(lambda: are_here(first))
    hosts = launcher.start(second)
    assert sum(method == "POST" for method, _ in server.asked) == 2
    before = dict(server.jobsets)
    with pytest.raises(TrainingError, match="was replaced by another launcher"):
        until(lambda: begun.look() is not None)
    begun.stop()  # one that was only away touches nothing of the second
    begun.close()
    assert server.jobsets == before
    assert server.pods[jobset_name(first.folder)].codes == [None, None]
    ends_with(hosts, second, 3)


def test_a_jobset_that_somebody_deletes_counts_as_lost(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife):
    life = bare_life()
    attempt = launcher.start(life)
    until(lambda: are_here(life))
    server.delete(jobset_name(life.folder))
    until(lambda: attempt.look() is not None)
    assert attempt.look() in (5, 75)
    attempt.close()


def test_deaf_hosts_are_ended(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, monkeypatch: Patch):
    monkeypatch.setenv("PHASEWISE_STOP_SECONDS", "0.3")
    life = bare_life()
    for number in (0, 1):
        (life.folder / f"end-{number}").write_text("deaf")

    def check() -> None:
        if are_here(life):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_and_monitor(launcher, life, lambda rows: None, check)
    assert not server.jobsets | server.pods


def test_a_cut_log_is_read_again_and_written_once(launcher: JobSetLauncher, server: ApiServer, bare_life: BareLife, tmp_path: Path):
    life = bare_life()
    hosts = launcher.start(life)
    until(lambda: are_here(life))
    name = min(server.pods[jobset_name(life.folder)].logs)
    server.log_faults += ["400", "30", "503", "words"]
    log = kubernetes_cluster.PodLog(Cluster("default", host=server.address), name, "trainer", tmp_path / "log")
    until(lambda: not server.log_faults)
    until(lambda: "the log is" in (tmp_path / "log").read_text())
    ends_with(hosts, life, 3)
    log.end()
    log.join(time.monotonic() + 60.0)
    found = (tmp_path / "log").read_text()
    assert [found.count(words) for words in (f"log of {name}:", "the log is", "could not be read")] == [1, 1, 0]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, 2) as found:
        yield found


@pytest.fixture
def workers(hosts: SshHosts, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr("phasewise.tasks.training.launchers.GRACE_SECONDS", 0.5)
    return Workers(slices=(tuple(hosts.names),), python=str(stand_in), project=str(tmp_path), known_hosts=hosts.known_hosts, key=hosts.key)


def ended(group: ProcessGroup) -> int:
    until(lambda: group.look() is not None)
    code = group.look()
    group.close()
    assert code is not None
    return code


def test_a_refusal_of_one_host_ends_all_and_is_repeated(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    life = bare_life()
    (life.folder / "end-1").write_text("3")
    assert ended(TpuVmLauncher(workers).start(life)) == 3
    assert hosts.at_work == 0
    assert RunFolder(life.folder).log(0).read_text().endswith(f"host 1 ({Host.parse(hosts.names[1])}) ended diverged: the reason of 1\n")


def test_the_process_ends_when_its_connection_dies(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    life = bare_life()
    group = TpuVmLauncher(workers).start(life)
    until(lambda: are_here(life))
    hosts.cut(1)
    until(lambda: hosts.at_work == 1)
    assert ended(group) == 5
    assert hosts.at_work == 0
    assert f"the connection to {Host.parse(hosts.names[1])} broke off" in RunFolder(life.folder).log(0).read_text()


def test_a_host_that_another_has_is_refused_and_the_other_host_is_left(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    group = TpuVmLauncher(workers).start(bare_life(owner="the first"))
    with pytest.raises(TrainingError, match="has a trainer already, of the first: a TPU has one program at a time"):
        TpuVmLauncher(workers).start(bare_life(owner="the second"))
    assert hosts.at_work == 2
    assert group.look() is None
    group.kill()
    group.close()
    until(lambda: hosts.at_work == 0)


def test_what_is_left_of_the_own_last_life_is_waited_for(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    life = bare_life()
    (life.folder / "end-0").write_text("deaf")
    first = TpuVmLauncher(workers).start(life)
    until(lambda: are_here(life))
    pids, group = [pid_said_by(life, number) for number in (0, 1)], list[ProcessGroup]()
    thread = threading.Thread(target=lambda: group.append(TpuVmLauncher(workers).start(bare_life())))
    thread.start()
    until(lambda: len(hosts.processes) > 2)
    for number in (0, 1):
        os.kill(pids[number], signal.SIGKILL)
    thread.join(PATIENCE_SECONDS)
    assert group
    for one in (first, group[0]):
        one.kill()
        one.close()


def test_hosts_that_cannot_start_the_trainer_or_have_another_key_are_refused(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    with pytest.raises(TrainingError, match=r"127\.0\.0\.1:\d+ did not start the trainer: it said '.*/nowhere"):
        TpuVmLauncher(workers.model_copy(update={"project": "/nowhere"})).start(bare_life())
    lines = hosts.known_hosts.read_text().splitlines()
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    hosts.known_hosts.write_text(f"{lines[0]}\n{lines[1].partition(' ')[0]} {other}")
    with pytest.raises(ConfigError, match=r"the key of 127\.0\.0\.1:\d+ is unknown or has changed .*compare the fingerprint"):
        TpuVmLauncher(workers).start(bare_life())
    until(lambda: hosts.at_work == 0)


def test_what_processes_are_started_with_and_what_is_no_host(bare_life: BareLife, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "old:1")
    monkeypatch.setenv("XLA_FLAGS", "--a --b='c d'")
    workers = Workers(slices=(("me@a:2222", "b"), ("c", "d")), python="/p y/python", project="/project")
    commands = TpuVmLauncher(workers).commands(bare_life())
    assert [f"JAX_PROCESS_ID={number} " in command + " " for number, command in enumerate(commands)] == [True] * 4
    assert [f"MEGASCALE_SLICE_ID={number}" in commands[2 * number + 1] for number in (0, 1)] == [True, True]
    for command in commands:
        assert "JAX_COORDINATOR_ADDRESS=a:8476" in command
        assert "old:1" not in command
        assert "MEGASCALE_NUM_SLICES=2" in command
        assert "PHASEWISE_HOSTS=a:2222,b,c,d" in command
        assert "'/p y/python' -P -m phasewise.trainer" in command
    for text in ("", "me@", "host:ssh"):
        with pytest.raises(ConfigError, match="must be written"):
            Host.parse(text)
