"""The launcher for GKE: it creates a run as a JobSet, sees how its pods ended, and deletes it. Pods need no Prefect.

A JobSet outlives the process that created it. Its name belongs to the run's folder: another launcher that comes to the folder deletes it,
so its pods save, and starts a new one.
"""

import signal
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.preflight.slices import Slice
from phasewise.tasks.progress import say
from phasewise.tasks.store.publisher import Kept, keeper_of
from phasewise.tasks.training import kubernetes_cluster
from phasewise.tasks.training.jobset_manifest import CONTAINER, HOSTS, LAUNCH, ClusterSettings, build_manifest
from phasewise.tasks.training.kubernetes_cluster import Cluster, Conflict, JobSet, Pod, PodLog, Unreachable, with_retries
from phasewise.tasks.training.launchers import Attempt, Launcher, ProcessGroup, ending, last_words, order_of, size_of, write_reason
from phasewise.tasks.training.remote_hosts import start_remote
from phasewise.trainer.base.errors import ExitCode, TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.process.rendezvous import forget_meetings

NAME_FILE = "jobset.name"
GONE_SECONDS = 60.0
"""How long a JobSet whose pods have ended may take to be gone."""
LOOK_SECONDS, PODS_SECONDS = 0.2, 2.0
KILLED_BY_SIGNAL = 128
"""A container that a signal ended has this exit code plus the signal."""


class JobSetLauncher(Launcher):
    """A cluster that has the slices."""

    kind = "jobset"

    def __init__(self, cluster: Cluster, slices: Slice, settings: ClusterSettings) -> None:
        self._cluster, self._slices, self._settings = cluster, slices, settings

    def clear(self, folder: Path) -> None:
        """Delete the JobSet of a launcher that is gone."""
        if (folder / NAME_FILE).exists() and (found := self._cluster.read(jobset_name(folder))):
            remove(self._cluster, found, self._settings.stop_seconds + self._settings.send_seconds + GONE_SECONDS)

    def start(self, attempt: Attempt) -> ProcessGroup:
        """See `Launcher`. If the home is on a store the pods are hosts without the launcher's folder."""
        self.clear(attempt.folder)
        if (keeper := keeper_of(attempt.folder)) is not None:
            return start_remote(keeper, attempt, lambda kept: self._create(attempt, kept))
        return self._create(attempt, None)

    def _create(self, attempt: Attempt, kept: Kept | None) -> ProcessGroup:
        name = jobset_name(attempt.folder)
        forget_meetings(attempt.folder)
        logs_before = [size_of(RunFolder(attempt.folder).log(number)) for number in range(self._slices.hosts)]
        manifest = build_manifest(attempt, self._slices, self._settings, name=name, kept=kept)
        try:
            found = with_retries(lambda: self._cluster.create(manifest))
        except Conflict:  # a request that was not answered may have been carried out: then the JobSet is of this attempt
            found = self._cluster.read(name)
            annotations = {} if found is None else found["metadata"].get("annotations", {})
            if found is None or annotations.get(LAUNCH) != attempt.name:
                raise TrainingError(f"JobSet {name} was created by another launcher just now: wait for it, or stop it.") from None
        say(f"{attempt.run.phase}: JobSet {name} created in namespace {self._settings.namespace}, {self._slices.hosts} hosts")
        return ProcessGroup(attempt.folder, [_JobSet(self._cluster, found, attempt, logs_before, reads_logs=kept is not None)])


class _JobSet:
    """A JobSet and its pods, as one process (`launchers.ProcessGroup`)."""

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
        """Ask the cluster every few seconds."""
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
        """Delete the JobSet: that asks all pods to stop, and gives them their time to save."""
        if self._code is None:
            self._cluster.delete(self._found)

    def kill(self) -> None:
        self._cluster.delete(self._found)
        self._cluster.delete_pods(own_pods(self._cluster, self._found))
        remove(self._cluster, self._found, GONE_SECONDS)
        self._finish_logs()

    def close(self) -> None:
        """Delete a JobSet that has ended: its exit codes are read, and its logs are in the run's folder."""
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
    """How one pod ended: the exit code of its container, or minus the signal that ended it, and the second in which it ended."""

    host: int
    name: str
    code: int
    finished_at: str


def reasons_of(pods: Iterable[Pod]) -> list[ExitStatus]:
    """Return the pods that failed first, of those with the code that counts most; the cluster ends all others when one has failed.

    More than one if they ended alike in the same second. Empty if all ended well, or none has ended.
    """
    failed = [
        ExitStatus(host_of(pod), pod["metadata"]["name"], code, (_terminated(pod) or {}).get("finishedAt") or "")
        for pod in pods
        if (code := exit_code(pod))
    ]  # a cluster sends SIGTERM to the others
    orders = [(order_of(one.code), one.finished_at, one.code == -signal.SIGTERM, one.code) for one in failed]
    first = min(orders, key=lambda order: order[:3], default=None)
    return sorted(one for one, order in zip(failed, orders, strict=True) if order == first)


def host_of(pod: Pod) -> int:
    """Return the process number of a pod, by its place among slices and hosts."""
    annotations = pod["metadata"]["annotations"]
    slice_index = int(annotations["jobset.sigs.k8s.io/job-index"])
    return slice_index * int(annotations[HOSTS]) + int(annotations["batch.kubernetes.io/job-completion-index"])


def exit_code(pod: Pod) -> int | None:
    """Return the exit code of the pod's container, or minus the signal that ended it; None while it is at work, or if it is not known."""
    if (ended := _terminated(pod)) is None:
        return None
    code = int(ended["exitCode"])
    is_signal = code > KILLED_BY_SIGNAL and code - KILLED_BY_SIGNAL in set(signal.Signals)
    return KILLED_BY_SIGNAL - code if is_signal else code


def _terminated(pod: Pod) -> dict[str, Any] | None:
    states = [(status.get("state") or {}).get("terminated") for status in pod.get("status", {}).get("containerStatuses") or ()]
    return next(filter(None, states), None)


def jobset_name(folder: Path) -> str:
    """Return the name that belongs to this folder: made once, so that two folders of one name on two disks have two."""
    place = folder / NAME_FILE
    if not place.exists():
        write_atomically(place, f"phasewise-{uuid.uuid4().hex[:12]}".encode())
    return place.read_text(encoding="utf-8").strip()


def condition(found: JobSet | None, kind: str) -> str | None:
    """Return the message of a condition that is true; None if it is not."""
    conditions: list[dict[str, Any]] = (found or {}).get("status", {}).get("conditions", [])
    held = next((one for one in conditions if one["type"] == kind and one["status"] == "True"), None)
    return None if held is None else held.get("message") or held.get("reason") or kind


def trouble_of(pods: Iterable[Pod]) -> str:
    """Return why pods do not start; empty if they do."""
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
    """Return the pods of this JobSet that are still there, and of no other one of its name."""
    launch = found["metadata"]["annotations"][LAUNCH]
    return [pod for pod in cluster.pods(found["metadata"]["name"]) if pod["metadata"].get("annotations", {}).get(LAUNCH) == launch]


def remove(cluster: Cluster, found: JobSet, seconds: float) -> None:
    """Delete a JobSet and wait until it and its pods are gone. Another one of its name stays."""
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
