"""The launcher for GKE: it creates a run as a JobSet, reads how the pods ended, and deletes the JobSet. Pods need no Prefect.

A JobSet outlives the process that created it. Its name belongs to the run's folder: a later launcher of the folder deletes the JobSet, so
its pods save, and creates a new one. One replicated job is one slice, and one pod is one host. The cluster restarts no pod
(`restartPolicy`, `backoffLimit`, `maxRestarts`), only `tasks.training.attempts` does. Field names follow JobSet v1alpha2.
"""

import math
import signal
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.home import SCRATCH_VARIABLE
from phasewise.tasks.preflight.slices import Slice
from phasewise.tasks.progress import say
from phasewise.tasks.store.publisher import Kept, keeper_of
from phasewise.tasks.training import kubernetes_cluster
from phasewise.tasks.training.hosts import JOIN_SECONDS, SEND_SECONDS, SEND_VARIABLE, start_remote
from phasewise.tasks.training.kubernetes_cluster import Cluster, Conflict, JobSet, Pod, PodLog, Unreachable, with_retries
from phasewise.tasks.training.launchers import Attempt, Launcher, ProcessGroup, ending, last_words, order_of, size_of, write_reason
from phasewise.trainer.base.errors import ConfigError, ExitCode, TrainingError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.process.child_process import STOP_VARIABLE, python_command
from phasewise.trainer.process.environment import HOSTS_VARIABLE, LAUNCH_VARIABLE, SLICES_VARIABLE
from phasewise.trainer.process.rendezvous import JOIN_VARIABLE, forget_meetings

PYTHON = '"$PYTHON"'
NUMBER = "N=$((SLICE * HOSTS + HOST)); export JAX_PROCESS_ID=$N; "
COMMAND = (
    NUMBER + 'L="$RUN_FOLDER/trainer-$N.log"; [ "$N" = 0 ] && L="$RUN_FOLDER/trainer.log"; '
    f'echo "the log is $L"; exec {" ".join(python_command("phasewise.trainer", python=PYTHON))} "$RUN_FOLDER/run.json" >>"$L" 2>&1'
)
"""The command of a pod. The shell becomes the trainer, so that the trainer receives the signals."""
COMMAND_ON_STORE = NUMBER + f'exec {" ".join(python_command("phasewise.tasks.training.hosts", python=PYTHON))} "$@" --python {PYTHON} 2>&1'
"""The command of a pod if the home is on a store. The launcher reads the log from the cluster."""
API_VERSION, KIND, JOB_NAME, CONTAINER = "jobset.x-k8s.io/v1alpha2", "JobSet", "slice", "trainer"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
SLICE_INDEX = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
HOST_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
OWNER, LAUNCH, RUN, HOSTS = "phasewise/owner", "phasewise/launch", "phasewise/run", "phasewise/hosts"
PORT = 8476
SCRATCH = "/phasewise"  # the working folder of a pod if the home is on a store
IN_MEMORY = "memory"  # a value of `ClusterSettings.scratch`: a folder in memory
CLUSTER_JOIN_SECONDS = 600
"""Nodes download the image at different speeds. Hosts print the missing hosts after 45 seconds (`trainer.process.rendezvous`)."""

ACCELERATORS: Mapping[str | None, str] = {
    "v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice", "tpu7x": "tpu7x",
}  # fmt: skip
"""Kind of chip → the label `cloud.google.com/gke-tpu-accelerator` of its nodes (cloud.google.com/kubernetes-engine/docs/concepts/tpus)."""
NAME_FILE = "jobset.name"
GONE_SECONDS = 60.0  # the limit for deleting a JobSet after its pods have ended
LOOK_SECONDS, PODS_SECONDS = 0.2, 2.0
KILLED_BY_SIGNAL = 128  # the exit code of a container that a signal ended is this plus the signal


class ClusterSettings(Frozen):
    """The settings of a cluster for the manifest."""

    image: str  # has this project and its environment
    namespace: str = "default"
    claim: str | None = None  # the PersistentVolumeClaim (many readers and writers) of the home, or None if the home is on a store
    mount: str | None = None  # the path of the home, equal in every pod and here, because `run.json` has paths
    service_account: str | None = None
    python: str = "python"
    stop_seconds: float = 30.0  # the time of a stopping pod for saving
    passed_on: Mapping[str, str] = {}  # variables of this process for every pod
    scratch: str | None = None  # the pods' working folder for a home on a store: on the node, in `memory`, or None for an `emptyDir`
    send_seconds: float = SEND_SECONDS  # the upload time of a stopping pod for a home on a store


def build_manifest(attempt: Attempt, slices: Slice, settings: ClusterSettings, *, name: str, kept: Kept | None = None) -> dict[str, Any]:
    """Build the JobSet of one attempt. Its name, a prefix of pod names, has at most 40 letters. `kept` is set for a home on a store."""
    topology = slices.chip.topology
    if topology not in ACCELERATORS:
        raise ConfigError(
            f"a JobSet on GKE needs a slice of TPUs ({', '.join(filter(None, ACCELERATORS))}), found {slices.name} of "
            f"{slices.chip.device_kind}: name one that deployments/slices.toml has, or choose another launcher."
        )
    hosts = slices.hosts // slices.count
    volumes, container = _container(attempt, slices, settings, name, kept)
    pod = {
        "metadata": {"annotations": {LAUNCH: attempt.name, HOSTS: str(hosts)}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(settings.stop_seconds + (0.0 if kept is None else settings.send_seconds)),
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[topology],
                "cloud.google.com/gke-tpu-topology": "x".join(map(str, slices.torus)),
            },
            **({"serviceAccountName": settings.service_account} if settings.service_account else {}),
            "volumes": volumes,
            "containers": [container],
        },
    }
    job = {"parallelism": hosts, "completions": hosts, "completionMode": "Indexed", "backoffLimit": 0, "template": pod}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {"app": "phasewise"},
            "annotations": {
                EXCLUSIVE: "cloud.google.com/gke-nodepool",
                OWNER: attempt.owner,
                LAUNCH: attempt.name,
                RUN: f"{attempt.run.recipe}/{attempt.run.scale}/{attempt.run.phase}",
            },
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": {"maxRestarts": 0},
            "successPolicy": {"operator": "All"},
            "replicatedJobs": [{"name": JOB_NAME, "replicas": slices.count, "template": {"spec": job}}],
        },
    }


def _container(
    attempt: Attempt, slices: Slice, settings: ClusterSettings, name: str, kept: Kept | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the volumes and the container of a pod."""
    chips = str(min(slices.chip.chips_per_host, slices.chips_of_each))
    each = slices.hosts // slices.count
    names = [f"{name}-{JOB_NAME}-{one}-{host}.{name}" for one in range(slices.count) for host in range(each)]  # in the order of processes
    values = {
        **settings.passed_on,
        "PYTHON": settings.python,
        "HOSTS": str(each),
        "JAX_COORDINATOR_ADDRESS": f"{names[0]}:{PORT}",
        "JAX_NUM_PROCESSES": str(len(names)),
        LAUNCH_VARIABLE: attempt.name,
        SLICES_VARIABLE: str(slices.count),
        HOSTS_VARIABLE: ",".join(one.partition(".")[0] for one in names),
        STOP_VARIABLE: f"{settings.stop_seconds:g}",
    }
    fields = {"SLICE": SLICE_INDEX, "HOST": HOST_INDEX}
    if slices.count > 1:
        values |= {"MEGASCALE_COORDINATOR_ADDRESS": names[0], "MEGASCALE_NUM_SLICES": str(slices.count)}
        fields["MEGASCALE_SLICE_ID"] = SLICE_INDEX
    if kept is None:
        values |= {"RUN_FOLDER": str(attempt.folder), JOIN_VARIABLE: str(CLUSTER_JOIN_SECONDS)}
        command = [COMMAND]
        volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": settings.claim}}] if settings.claim else []
    else:
        values |= {SCRATCH_VARIABLE: SCRATCH, SEND_VARIABLE: f"{settings.send_seconds:g}", "PYTHONUNBUFFERED": "1"}
        values[JOIN_VARIABLE] = str(JOIN_SECONDS)
        command = [COMMAND_ON_STORE, "host", str(kept.store), kept.run_name, Path(attempt.run.output).name, str(kept.work)]
        disk = {"emptyDir": {"medium": "Memory"} if settings.scratch == IN_MEMORY else {}}
        if settings.scratch and settings.scratch != IN_MEMORY:
            disk = {"hostPath": {"path": settings.scratch, "type": "DirectoryOrCreate"}}
        volumes = [{"name": "scratch", **disk}]
    return volumes, {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["/bin/sh", "-c", *command],
        "ports": [{"containerPort": PORT}],
        "env": [
            *({"name": key, "value": value} for key, value in values.items()),
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
        ],
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
        "volumeMounts": [{"name": one["name"], "mountPath": SCRATCH if kept else settings.mount} for one in volumes],
    }


@dataclass(eq=False)
class JobSetLauncher(Launcher):
    """Creates a JobSet per attempt."""

    kind = "jobset"

    cluster: Cluster
    slices: Slice
    settings: ClusterSettings

    def clear(self, folder: Path) -> None:
        """Delete the JobSet of a launcher that has ended."""
        if (folder / NAME_FILE).exists() and (found := self.cluster.read(jobset_name(folder))):
            remove(self.cluster, found, self.settings.stop_seconds + self.settings.send_seconds + GONE_SECONDS)

    def start(self, attempt: Attempt) -> ProcessGroup:
        """See `Launcher`. If the home is on a store, pods don't see the launcher's folder."""
        self.clear(attempt.folder)
        if (keeper := keeper_of(attempt.folder)) is not None:
            return start_remote(keeper, attempt, lambda kept: self._create(attempt, kept))
        return self._create(attempt, None)

    def _create(self, attempt: Attempt, kept: Kept | None) -> ProcessGroup:
        name = jobset_name(attempt.folder)
        forget_meetings(attempt.folder)
        logs_before = [size_of(RunFolder(attempt.folder).log(number)) for number in range(self.slices.hosts)]
        manifest = build_manifest(attempt, self.slices, self.settings, name=name, kept=kept)
        try:
            found = with_retries(lambda: self.cluster.create(manifest))
        except Conflict:  # a request without an answer may have created the JobSet of this attempt
            found = self.cluster.read(name)
            annotations = {} if found is None else found["metadata"].get("annotations", {})
            if found is None or annotations.get(LAUNCH) != attempt.name:
                raise TrainingError(f"JobSet {name} was created by another launcher just now: wait for it, or stop it.") from None
        say(f"{attempt.run.phase}: JobSet {name} created in namespace {self.settings.namespace}, {self.slices.hosts} hosts")
        return ProcessGroup(attempt.folder, [_JobSet(self.cluster, found, attempt, logs_before, reads_logs=kept is not None)])


class _JobSet:
    """A JobSet and its pods, as one process of a `launchers.ProcessGroup`."""

    def __init__(self, cluster: Cluster, found: JobSet, attempt: Attempt, logs_before: list[int], *, reads_logs: bool) -> None:
        self._cluster, self._found, self._attempt, self._logs_before = cluster, found, attempt, logs_before
        self._name, self._reads_logs = str(found["metadata"]["name"]), reads_logs
        self.wait = time.sleep
        self._pods: dict[str, Pod] = {}
        self._logs: dict[str, PodLog] = {}
        self._looked = 0.0
        self._reported = ""
        self._code: int | None = None

    def code(self) -> int | None:
        """Request the state from the cluster, every few seconds."""
        if self._code is not None or time.monotonic() - self._looked < PODS_SECONDS:
            return self._code
        self._looked, run = time.monotonic(), RunFolder(self._attempt.folder)
        try:
            found = self._cluster.read(self._name)
            for pod in (pods := own_pods(self._cluster, self._found)):
                name = pod["metadata"]["name"]
                if self._reads_logs and name not in self._pods:
                    self._logs[name] = PodLog(self._cluster, name, CONTAINER, run.log(host_of(pod)))
                self._pods[name] = pod
            trouble = trouble_of(pods)
        except Unreachable as error:
            found, trouble = self._found, f"{error}; asking again"
        if trouble and trouble != self._reported:
            say(f"{self._attempt.run.phase}: {trouble}")
        self._reported = trouble
        if found is not None and found["metadata"]["uid"] != self._found["metadata"]["uid"]:
            self._code = ExitCode.TAKEN_OVER
            raise TrainingError(f"JobSet {self._name} was replaced by another launcher: this one follows it no more.")
        if found is not None and not condition(found, "Completed") and not condition(found, "Failed"):
            return None
        self._finish_logs()
        reasons = reasons_of(self._pods.values())
        if reasons:
            self._code, number = reasons[0].code, reasons[0].host
            together = "; which of them first is not known" if len(reasons) > 1 and self._code < 0 else ""
            words = last_words(run.log(number), self._logs_before[number])
            named = " and ".join(f"host {one.host} ({one.name})" for one in reasons)
            write_reason(run.path, [f"{named} {ending(self._code)}{together}{f': {words}' if words else ''}"])
        elif condition(found, "Completed"):
            self._code = ExitCode.DONE
        else:
            self._code, why = ExitCode.LOST, condition(found, "Failed") or "it was deleted"
            write_reason(run.path, [f"JobSet {self._name} ended, and no pod says why: {why}"])
        return self._code

    def stop(self) -> None:
        """Delete the JobSet: all pods receive SIGTERM and have their time to save."""
        if self._code is None:
            self._cluster.delete(self._found)

    def kill(self) -> None:
        self._cluster.delete(self._found)
        self._cluster.delete_pods(own_pods(self._cluster, self._found))
        remove(self._cluster, self._found, GONE_SECONDS)
        self._finish_logs()

    def close(self) -> None:
        """Delete the ended JobSet. Its exit codes are known, and its logs are in the run's folder."""
        if self._code not in (None, ExitCode.TAKEN_OVER):
            self._finish_logs()
            remove(self._cluster, self._found, GONE_SECONDS)

    def _finish_logs(self) -> None:
        for log in self._logs.values():
            log.end()
        until = time.monotonic() + kubernetes_cluster.REST_SECONDS
        while self._logs:
            self._logs.popitem()[1].join(until)


class ExitStatus(NamedTuple):
    """The end of a pod: the exit code of its container, or minus the signal, and the second in which the container ended."""

    host: int
    name: str
    code: int
    finished_at: str


def reasons_of(pods: Iterable[Pod]) -> list[ExitStatus]:
    """Return the pods that failed first with the decisive exit code: the cluster ends all others. Several may end in the same second."""
    failed = [
        ExitStatus(host_of(pod), pod["metadata"]["name"], code, (_terminated(pod) or {}).get("finishedAt") or "")
        for pod in pods
        if (code := exit_code(pod))
    ]  # a cluster sends SIGTERM to the others
    orders = [(order_of(one.code), one.finished_at, one.code == -signal.SIGTERM, one.code) for one in failed]
    first = min(orders, key=lambda order: order[:3], default=None)
    return sorted(one for one, order in zip(failed, orders, strict=True) if order == first)


def host_of(pod: Pod) -> int:
    """Return the process number of a pod."""
    annotations = pod["metadata"]["annotations"]
    slice_index = int(annotations["jobset.sigs.k8s.io/job-index"])
    return slice_index * int(annotations[HOSTS]) + int(annotations["batch.kubernetes.io/job-completion-index"])


def exit_code(pod: Pod) -> int | None:
    """Return the exit code of the pod's container, or minus the signal that ended it, or None while it runs, or if it is unknown."""
    if (ended := _terminated(pod)) is None:
        return None
    code = int(ended["exitCode"])
    is_signal = code > KILLED_BY_SIGNAL and code - KILLED_BY_SIGNAL in set(signal.Signals)
    return KILLED_BY_SIGNAL - code if is_signal else code


def _terminated(pod: Pod) -> dict[str, Any] | None:
    states = [(status.get("state") or {}).get("terminated") for status in pod.get("status", {}).get("containerStatuses") or ()]
    return next(filter(None, states), None)


def jobset_name(folder: Path) -> str:
    """Return the JobSet name of a folder, random and stored: equal folder names on two disks have different JobSets."""
    place = folder / NAME_FILE
    if not place.exists():
        write_atomically(place, f"phasewise-{uuid.uuid4().hex[:12]}".encode())
    return place.read_text(encoding="utf-8").strip()


def condition(found: JobSet | None, kind: str) -> str | None:
    """Return the message of a condition, or None if it is not true."""
    conditions: list[dict[str, Any]] = (found or {}).get("status", {}).get("conditions", [])
    held = next((one for one in conditions if one["type"] == kind and one["status"] == "True"), None)
    return None if held is None else held.get("message") or held.get("reason") or kind


def trouble_of(pods: Iterable[Pod]) -> str:
    """Return why pods do not start, or an empty text if they start."""
    found: list[str] = []
    for pod in pods:
        status = pod.get("status", {})
        waiting = [(one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()]
        reasons = [one["reason"] for one in waiting if one.get("reason") not in (None, "ContainerCreating", "PodInitializing")]
        conditions = [one for one in status.get("conditions") or () if one.get("reason") == "Unschedulable"]
        reasons += [f"{one.get('reason')}: {one.get('message', '')}" for one in conditions]
        found += [f"{pod['metadata']['name']} does not start ({reason})" for reason in reasons]
    return "; ".join(found[:3])


def own_pods(cluster: Cluster, found: JobSet) -> list[Pod]:
    """Return the existing pods of this JobSet, without pods of another JobSet with the same name."""
    launch = found["metadata"]["annotations"][LAUNCH]
    return [pod for pod in cluster.pods(found["metadata"]["name"]) if pod["metadata"].get("annotations", {}).get(LAUNCH) == launch]


def remove(cluster: Cluster, found: JobSet, seconds: float) -> None:
    """Delete a JobSet and wait until it and its pods are gone. Another JobSet with the same name remains."""
    cluster.delete(found)
    until, name = time.monotonic() + seconds, found["metadata"]["name"]
    while True:
        now = with_retries(lambda: cluster.read(name))
        is_there = now is not None and now["metadata"]["uid"] == found["metadata"]["uid"]
        if not is_there and not with_retries(lambda: own_pods(cluster, found)):
            return
        if time.monotonic() > until:
            raise TrainingError(f"JobSet {name} was deleted, and is still there after {seconds:.0f} s: look at its pods with kubectl.")
        time.sleep(LOOK_SECONDS)
