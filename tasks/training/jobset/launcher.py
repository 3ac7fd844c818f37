"""Starts a run as a JobSet, sees how its pods ended, and deletes it. Whoever runs this needs a CPU and no Prefect in the pods.

A JobSet outlives the process that created it. Its name belongs to the run's folder: another launcher that comes to the folder finds it,
goes on with it where it trains the same, and never makes a second one. Where the home is on a store pods are hosts without our folder
(`tasks.training.hosts`): another launcher has shut them out already, so it deletes what is there, and begins again.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phasewise.tasks.preflight.slices import Slice
from phasewise.tasks.progress import say
from phasewise.tasks.store.keeping import keeper_of
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.hosts.gathering import GatheredAttempt, gathered
from phasewise.tasks.training.jobset.cluster import Cluster, Conflict, JobSet, Pod, Unreachable, Watched, asking_again
from phasewise.tasks.training.jobset.endings import Ending, endings_of, reasons_of
from phasewise.tasks.training.jobset.logs import Logs
from phasewise.tasks.training.jobset.manifest import LAUNCH, OWNER, SAME, ClusterSettings, build_manifest, digest_of_same
from phasewise.tasks.training.protocol import Life, ending, last_words, log_of
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.process.roll_call import forget_roll_calls

NAME_FILE = "jobset.name"
GONE_SECONDS = 60.0
"""How long a JobSet whose pods have ended may take to be gone."""
LOOK_SECONDS = 0.2
PODS_SECONDS = 5.0


class JobSetLauncher:
    """A cluster that has the slices."""

    kind = "jobset"

    def __init__(self, cluster: Cluster, slices: Slice, settings: ClusterSettings) -> None:
        self._cluster, self._slices, self._settings = cluster, slices, settings

    def owner(self, folder: Path) -> str | None:
        """A JobSet that nobody follows is not owned: its launcher held the lock of the folder as long as it lived."""
        return None

    def clear(self, folder: Path) -> None:
        """Delete the JobSet of a launcher that is gone, and have here what its pods said to nobody."""
        if (found := self._cluster.read(jobset_name(folder))) is None:
            return
        logs = Logs(self._cluster, folder)
        logs.follow(own_pods(self._cluster, found))
        remove(self._cluster, found, self._settings.stop_seconds + self._settings.send_seconds + GONE_SECONDS)
        logs.finish()

    def start(self, life: Life) -> "JobSetAttempt | GatheredAttempt":
        """See `Launcher`. A JobSet of the folder that is at work on the same run is taken over as it is, but not with a home on a store."""
        keeper, name = keeper_of(life.folder), jobset_name(life.folder)
        if keeper is not None:
            self.clear(life.folder)
            return gathered(keeper, life, self._slices.hosts, lambda kept: self._begun(life, name, kept))
        found = self._cluster.read(name)
        if found is not None and (taken := self._taken_over(found, life)):
            say(f"{life.run.phase}: JobSet {name} is at work already; following it")
            return JobSetAttempt(self._cluster, taken, life, [0] * self._slices.hosts)
        return self._begun(life, name, None)

    def _begun(self, life: Life, name: str, kept: Kept | None) -> "JobSetAttempt":
        forget_roll_calls(life.folder)
        logs_before = [_size(log_of(life.folder, number)) for number in range(self._slices.hosts)]
        found = self._created(life, name, kept)
        say(f"{life.run.phase}: JobSet {name} created in namespace {self._settings.namespace}, {self._slices.hosts} hosts")
        return JobSetAttempt(self._cluster, found, life, logs_before, Logs(self._cluster, life.folder) if kept else None)

    def _created(self, life: Life, name: str, kept: Kept | None) -> JobSet:
        """A new JobSet. A request that was not answered may have been carried out: then the one that is there is of this life."""
        manifest = build_manifest(life, self._slices, self._settings, name=name, kept=kept)
        try:
            return asking_again(lambda: self._cluster.create(manifest))
        except Conflict:
            found = self._cluster.read(name)
            annotations = {} if found is None else found["metadata"].get("annotations", {})
            if found is not None and annotations.get(LAUNCH) == life.name:
                return found
            raise TrainingError(
                f"JobSet {name} was created by another launcher just now ({annotations.get(OWNER, 'unknown')}): wait for it, or stop it."
            ) from None

    def _taken_over(self, found: JobSet, life: Life) -> JobSet | None:
        """The JobSet that is there, with this launcher as its owner; None where it had to be deleted."""
        annotations: Mapping[str, str] = found["metadata"].get("annotations", {})
        is_same = annotations.get(SAME) == digest_of_same(life, self._slices, self._settings)
        if is_same and not is_finished(found) and "deletionTimestamp" not in found["metadata"]:
            try:
                return self._cluster.annotate(found, {OWNER: life.owner})
            except Conflict:
                raise TrainingError(
                    f"JobSet {found['metadata']['name']} is being taken over by another launcher (it was {annotations.get(OWNER)}'s): "
                    "wait for it."
                ) from None
        remove(self._cluster, found, self._settings.stop_seconds + GONE_SECONDS)
        return None


class JobSetAttempt:
    """A JobSet and its pods.

    Args:
        logs: where pods see no folder of ours; None where they write their logs themselves.
    """

    send_seconds = 0.0

    def __init__(self, cluster: Cluster, found: JobSet, life: Life, logs_before: list[int], logs: Logs | None = None) -> None:
        self._cluster, self._found, self._life, self._logs_before, self._logs = cluster, found, life, logs_before, logs
        self._name = str(found["metadata"]["name"])
        self._watched = Watched(cluster, found)
        self._pods: dict[str, Pod] = {}
        self._asked = (-1, 0.0)
        self._said = ""
        self._code: int | None = None

    def look(self) -> int | None:
        """See `Attempt`. Pods are asked for when the JobSet has changed, and now and then."""
        if self._code is not None:
            return self._code
        changes, found = self._watched.changes, self._watched.found
        self._check_owner(found)
        is_over = found is None or is_finished(found)
        if is_over or changes != self._asked[0] or time.monotonic() - self._asked[1] > PODS_SECONDS:
            self._asked = (changes, time.monotonic())
            self._remember_pods()
        if is_over:
            self._finish_logs()
            self._code = self._ended(found)
        return self._code

    def wait(self, seconds: float) -> None:
        """See `Attempt`."""
        self._watched.wait(seconds)

    def stop(self) -> None:
        """Deleting it asks all pods to stop, and gives them their time to save."""
        if self._code is None:
            self._cluster.delete(self._found)

    def kill(self) -> None:
        """See `Attempt`."""
        self._cluster.delete(self._found)
        self._cluster.delete_pods(own_pods(self._cluster, self._found))
        wait_until_gone(self._cluster, self._found, GONE_SECONDS)
        self._finish_logs()

    def close(self) -> None:
        """A JobSet that has ended is deleted: its exit codes are read, and its logs are in the run's folder."""
        self._watched.close()
        if self._code not in (None, ExitCode.TAKEN_OVER):
            self._finish_logs()
            remove(self._cluster, self._found, GONE_SECONDS)

    def _finish_logs(self) -> None:
        if self._logs is not None:
            self._logs.finish()
            self._logs = None

    def _check_owner(self, found: JobSet | None) -> None:
        """From the moment that it is another launcher's, this one touches nothing of it."""
        owner = self._life.owner if found is None else found["metadata"].get("annotations", {}).get(OWNER)
        if owner != self._life.owner:
            self._code = ExitCode.TAKEN_OVER
            raise TrainingError(f"JobSet {self._name} was taken over by another launcher ({owner}): this one follows it no more.")

    def _remember_pods(self) -> None:
        """The last state of every pod: they may be gone when the JobSet has ended."""
        try:
            mine = own_pods(self._cluster, self._found)
        except Unreachable as error:
            trouble = f"{error}; asking again"
        else:
            if self._logs is not None:
                self._logs.follow(mine)
            self._pods |= {pod["metadata"]["name"]: pod for pod in mine}
            trouble = trouble_of(mine)
        if trouble and trouble != self._said:
            say(f"{self._life.run.phase}: {trouble}")
        self._said = trouble

    def _ended(self, found: JobSet | None) -> int:
        endings = endings_of(self._pods.values())
        reasons = reasons_of(endings)
        if found is not None and condition(found, "Completed") and not reasons:
            return ExitCode.DONE
        code = reasons[0].code if reasons else ExitCode.LOST
        self._say(endings, reasons, code, found)
        return code

    def _say(self, endings: Sequence[Ending], reasons: Sequence[Ending], code: int, found: JobSet | None) -> None:
        """Repeat in the first host's log who was the reason, and why."""
        cut = [one for one in endings if one.is_cut and code == ExitCode.LOST]
        lines = [f"{_named(one)} did not end with the others" for one in cut]
        if not reasons:
            lines.append(f"JobSet {self._name} ended, and no pod says why: {condition(found, 'Failed') or 'it was deleted'}")
        else:
            together = "; which of them first is not known" if len(reasons) > 1 and code < 0 else ""
            words = self._last_words(reasons[0].host)
            lines.append(f"{' and '.join(map(_named, reasons))} {ending(code)}{together}{f': {words}' if words else ''}")
        with open(log_of(self._life.folder, 0), "a", encoding="utf-8") as log:
            log.writelines(f"trainer: {line}\n" for line in lines)

    def _last_words(self, number: int) -> str | None:
        before = self._logs_before[number] if number < len(self._logs_before) else 0
        return last_words(log_of(self._life.folder, number), before)


def jobset_name(folder: Path) -> str:
    """The name that belongs to this folder: made once, so that two folders of one name on two disks have two."""
    place = folder / NAME_FILE
    if not place.exists():
        write_atomically(place, f"phasewise-{uuid.uuid4().hex[:12]}".encode())
    return place.read_text(encoding="utf-8").strip()


def condition(found: JobSet | None, kind: str) -> str | None:
    """What a condition that holds says; None where it does not hold."""
    conditions: list[dict[str, Any]] = (found or {}).get("status", {}).get("conditions", [])
    held = next((one for one in conditions if one["type"] == kind and one["status"] == "True"), None)
    return None if held is None else held.get("message") or held.get("reason") or kind


def is_finished(found: JobSet) -> bool:
    """Whether nothing of it is at work."""
    return condition(found, "Completed") is not None or condition(found, "Failed") is not None


def trouble_of(pods: Any) -> str:
    """Why pods do not start, in words; empty where they do."""
    found: list[str] = []
    for pod in pods:
        status = pod.get("status", {})
        waiting = [(one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()]
        reasons = [one["reason"] for one in waiting if one.get("reason") not in (None, "ContainerCreating", "PodInitializing")]
        reasons += [
            f"{one.get('reason')}: {one.get('message', '')}"
            for one in status.get("conditions") or ()
            if one.get("reason") == "Unschedulable"
        ]
        found += [f"{pod['metadata']['name']} does not start ({reason})" for reason in reasons]
    return "; ".join(found[:3])


def own_pods(cluster: Cluster, found: JobSet) -> list[Pod]:
    """The pods of this JobSet that are still there, and of no other one of its name."""
    launch = found["metadata"]["annotations"][LAUNCH]
    return [pod for pod in cluster.pods(found["metadata"]["name"]) if pod["metadata"].get("annotations", {}).get(LAUNCH) == launch]


def remove(cluster: Cluster, found: JobSet, seconds: float) -> None:
    """Delete a JobSet and wait until it and its pods are gone. Another one of its name stays."""
    cluster.delete(found)
    wait_until_gone(cluster, found, seconds)


def wait_until_gone(cluster: Cluster, found: JobSet, seconds: float) -> None:
    """Until neither the JobSet nor a pod of it is there.

    Raises:
        TrainingError: it does not go.
    """
    until, name = time.monotonic() + seconds, found["metadata"]["name"]
    while _is_there(cluster, found) or own_pods(cluster, found):
        if time.monotonic() > until:
            raise TrainingError(f"JobSet {name} was deleted, and is still there after {seconds:.0f} s: look at its pods with kubectl.")
        time.sleep(LOOK_SECONDS)


def _is_there(cluster: Cluster, found: JobSet) -> bool:
    now = cluster.read(found["metadata"]["name"])
    return now is not None and now["metadata"]["uid"] == found["metadata"]["uid"]


def _named(ending: Ending) -> str:
    return f"host {ending.host} ({ending.name})"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
