"""The pods of one JobSet as processes of this machine, with their logs and disks, as a node has them."""

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.ports import free_port

Object = dict[str, Any]


class Log:
    """What one container says: a line of it with the time in front, as the node writes it down.

    Attributes:
        first: the number of the first line that the node still has.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.first = 0
        self._lines: list[bytes] = []
        self._has_ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def lines(self, *, follows: bool) -> Iterator[bytes]:
        """From the first one on; while the container is at work all that come, or those that are there."""
        place = self.first
        while True:
            with self._changed:
                while follows and place >= len(self._lines) and not self._has_ended:
                    self._changed.wait(0.2)
                new, has_ended = self._lines[place:], self._has_ended
            yield from new
            place += len(new)
            if not follows or (has_ended and not new):
                return

    def wait(self) -> None:
        """Until all is here that the container said."""
        self._thread.join()

    def cut(self) -> None:
        """The node begins a new file, and keeps nothing of the old one."""
        self.first = len(self._lines)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                with self._changed:
                    self._lines.append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() + line)
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


class Pods:
    """The pods of one JobSet, as processes."""

    def __init__(self, manifest: Object, folder: Path) -> None:
        self._processes: list[tuple[Object, subprocess.Popen[bytes]]] = []
        self._finished: dict[int, str] = {}
        self.logs: dict[str, Log] = {}
        self.grace = 30.0
        port = free_port()
        for job in manifest["spec"]["replicatedJobs"]:
            for replica in range(job["replicas"]):
                for host in range(job["template"]["spec"]["completions"]):
                    self._start(manifest, job, replica, host, port, folder)

    def _start(self, manifest: Object, job: Object, replica: int, host: int, port: int, folder: Path) -> None:
        template = job["template"]["spec"]["template"]
        name = f"{manifest['metadata']['name']}-{job['name']}-{replica}-{host}-x{uuid.uuid4().hex[:4]}"
        annotations = {
            **template["metadata"]["annotations"],
            "jobset.sigs.k8s.io/job-index": str(replica),
            "batch.kubernetes.io/job-completion-index": str(host),
        }
        labels = {"jobset.sigs.k8s.io/jobset-name": manifest["metadata"]["name"]}
        pod = {
            "metadata": {"name": name, "annotations": annotations, "labels": labels},
            "spec": template["spec"],
        }
        self.grace = template["spec"]["terminationGracePeriodSeconds"]
        [container] = template["spec"]["containers"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        disks = disks_of(template["spec"], folder / "pods" / name)
        for one in container["env"]:
            environment[one["name"]] = one["value"] if "value" in one else field_of(pod, one["valueFrom"]["fieldRef"]["fieldPath"])
            environment[one["name"]] = disks.get(environment[one["name"]], environment[one["name"]])
        environment["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"  # the cluster's DNS, and a network of its own for each pod
        process = subprocess.Popen(
            container["command"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )
        self.logs[name] = Log(process)
        self._processes.append((pod, process))

    @property
    def objects(self) -> list[Object]:
        """As the API gives them."""
        return [{**pod, "status": status_of(code, self._finished.get(number))} for number, (code, (pod, _)) in self._numbered()]

    @property
    def codes(self) -> list[int | None]:
        return [code for _, (code, _) in self._numbered()]

    def _numbered(self) -> list[tuple[int, tuple[int | None, tuple[Object, Any]]]]:
        """Who is seen to have ended for the first time has ended now."""
        found = [(process.poll(), (pod, process)) for pod, process in self._processes]
        for number, (code, _) in enumerate(found):
            if code is not None:
                self._finished.setdefault(number, now())
        return list(enumerate(found))

    def signal(self, number: int, name: str | None = None) -> None:
        """To those that are at work, or to one of them."""
        for pod, process in self._processes:
            if process.poll() is None and name in (None, pod["metadata"]["name"]):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def ask(self, host: int | None = None) -> None:
        """As a kubelet asks a container, or all, to stop: its first process, and no other, gets the signal."""
        for number, (_, process) in enumerate(self._processes):
            if process.poll() is None and host in (None, number):
                process.terminate()

    def end(self, grace: float) -> None:
        """As a kubelet ends pods that were deleted. The time of deletion is the one at which they are killed."""
        for code, (pod, _) in zip(self.codes, self._processes, strict=True):
            if code is None:
                pod["metadata"] |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": round(grace)}
        self.ask()
        until = time.monotonic() + grace
        for _, process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self.signal(signal.SIGKILL)
        for _, process in self._processes:
            with suppress(ProcessLookupError):  # a container ends with its first process
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for log in self.logs.values():
            log.wait()
        self._numbered()


def disks_of(spec: Object, folder: Path) -> dict[str, str]:
    """Where a pod has a disk of its own in its manifest, and where it has it here."""
    own = {one["name"] for one in spec["volumes"] if "emptyDir" in one or "hostPath" in one}
    [container] = spec["containers"]
    return {one["mountPath"]: str(folder / one["name"]) for one in container["volumeMounts"] if one["name"] in own}


def field_of(pod: Object, path: str) -> str:
    """The value of a field reference."""
    name = path.removeprefix("metadata.annotations['").removesuffix("']")
    return pod["metadata"]["annotations"][name]


def now(later: float = 0.0) -> str:
    """As the API writes times: in whole seconds."""
    return (datetime.now(UTC) + timedelta(seconds=round(later))).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of(code: int | None, finished: str | None) -> Object:
    """Of a pod with one container."""
    shown = None if code is None else 128 - code if code < 0 else code
    ended = {"exitCode": shown, "reason": "Error" if shown else "Completed", "finishedAt": finished}
    state = {"running": {}} if shown is None else {"terminated": ended}
    phase = "Running" if shown is None else "Failed" if shown else "Succeeded"
    container = {"name": "trainer", "image": "here", "imageID": "here", "ready": shown is None, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [container]}
