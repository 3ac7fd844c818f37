"""A small API server for JobSets, which runs the commands of pods as processes of this machine.

One failure fails all pods (`maxRestarts: 0`). Deletion asks pods to stop and waits for their grace.
Logs: 400 if the container has not begun, 404 if the pod is gone.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import yaml

from tests.ports import free_port

Object = dict[str, Any]
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PODS = "/api/v1/namespaces/default/pods"
NO_LOG = b"unable to retrieve container logs for containerd://0123"
SCHEMA = Path(__file__).parents[4] / "shared" / "jobset" / "jobset.x-k8s.io_jobsets.yaml"


def schema_problems(manifest: Any) -> list[str]:
    """What an API server would refuse, by the schema of JobSet; nothing where the schema is not here."""
    return [f"{error.json_path}: {error.message[:200]}" for error in _validator().iter_errors(manifest)] if SCHEMA.exists() else []


@cache
def _validator() -> Any:
    """Fields that the schema does not name are refused: a server drops them without a word."""

    def close(part: Any) -> None:
        for one in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
            close(one)
        if isinstance(part, dict) and "properties" in part and not part.get("x-kubernetes-preserve-unknown-fields"):
            part.setdefault("additionalProperties", False)

    found = yaml.load(SCHEMA.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [schema] = [one["schema"]["openAPIV3Schema"] for one in found["spec"]["versions"] if one["name"] == "v1alpha2"]
    close(schema)
    schema["properties"]["metadata"].pop("additionalProperties", None)
    return jsonschema.Draft202012Validator(schema)


def now(later: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=round(later))).strftime("%Y-%m-%dT%H:%M:%SZ")


class Log:
    """What one container says: a line of it with the time in front, as the node writes it down."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._lines: list[bytes] = []
        self.thread = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self.thread.start()

    def lines(self, *, follows: bool) -> Iterator[bytes]:
        count, goes_on = 0, True
        while goes_on:
            goes_on = follows and self.thread.is_alive()
            new = self._lines[count:]
            yield from new
            count += len(new)
            time.sleep(0.01 * goes_on)

    def _read(self, said: Any) -> None:
        with said:
            for line in said:
                self._lines.append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() + line)


class Pods:
    def __init__(self, manifest: Object, folder: Path) -> None:
        self._processes, self.logs = list[tuple[Object, "subprocess.Popen[bytes]"]](), dict[str, Log]()
        self._finished, self.grace, port = dict[int, str](), 30.0, free_port()
        for job in manifest["spec"]["replicatedJobs"]:
            for place in product(range(job["replicas"]), range(job["template"]["spec"]["completions"])):
                self._start(manifest, job, place, port, folder)

    def _start(self, manifest: Object, job: Object, place: tuple[int, int], port: int, folder: Path) -> None:
        template = job["template"]["spec"]["template"]
        name = f"{manifest['metadata']['name']}-{job['name']}-{place[0]}-{place[1]}-x{uuid.uuid4().hex[:4]}"
        own = {"jobset.sigs.k8s.io/job-index": str(place[0]), "batch.kubernetes.io/job-completion-index": str(place[1])}
        annotations = template["metadata"]["annotations"] | own
        labels = {"jobset.sigs.k8s.io/jobset-name": manifest["metadata"]["name"]}
        pod = {"metadata": {"name": name, "annotations": annotations, "labels": labels}, "spec": template["spec"]}
        self.grace = template["spec"]["terminationGracePeriodSeconds"]
        [container] = template["spec"]["containers"]
        of_its_own = {one["name"] for one in template["spec"]["volumes"] if "emptyDir" in one or "hostPath" in one}
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"] if one["name"] in of_its_own}
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        for one in container["env"]:
            field = "" if "value" in one else one["valueFrom"]["fieldRef"]["fieldPath"]
            value = one["value"] if not field else annotations[field.removeprefix("metadata.annotations['").removesuffix("']")]
            environment[one["name"]] = str(folder / "pods" / name / mounts[value]) if value in mounts else value
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
    def codes(self) -> list[int | None]:
        found = [process.poll() for _, process in self._processes]
        for number, code in enumerate(found):
            if code is not None:
                self._finished.setdefault(number, now())
        return found

    @property
    def objects(self) -> list[Object]:
        pairs = zip(self.codes, self._processes, strict=True)
        return [{**pod, "status": status_of(code, self._finished.get(number))} for number, (code, (pod, _)) in enumerate(pairs)]

    def kill(self, name: str | None = None) -> None:
        """All, or one of them: a container ends with its first process."""
        for pod, process in self._processes:
            if name in (None, pod["metadata"]["name"]):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def end(self, grace: float) -> None:
        """As a kubelet ends pods that were deleted. The time of deletion is the one at which they are killed."""
        for pod, process in self._processes:
            if process.poll() is None:
                pod["metadata"] |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": round(grace)}
                process.terminate()
        until = time.monotonic() + grace
        for _, process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self.kill()
        for log in self.logs.values():
            log.thread.join()


def status_of(code: int | None, finished: str | None) -> Object:
    shown = None if code is None else 128 - code if code < 0 else code
    ended = {"exitCode": shown, "reason": "Error" if shown else "Completed", "finishedAt": finished}
    state = {"running": {}} if shown is None else {"terminated": ended}
    phase = "Running" if shown is None else "Failed" if shown else "Succeeded"
    container = {"name": "trainer", "image": "here", "imageID": "here", "ready": shown is None, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [container]}


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


BUSY = Refused(503, "ServiceUnavailable", "the server is busy")


class ApiServer:
    """State of the cluster, changed under one lock.

    Each next request meets a word of `faults`: `slow`, `cut`, `503`. Those for logs meet `log_faults`: `400`, `503`, `words` of the node,
    or the number of bytes after which they are cut.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock, self.address = folder, threading.Lock(), ""
        self.jobsets, self.pods = dict[str, Object](), dict[str, Pods]()
        self.faults, self.log_faults, self.asked = list[str](), list[str](), list[tuple[str, str]]()

    def create(self, manifest: Object) -> Object:
        if problems := schema_problems(manifest):
            raise Refused(422, "Invalid", "; ".join(problems))
        name = manifest["metadata"]["name"]
        with self.lock:
            if name in self.jobsets:
                raise Refused(409, "AlreadyExists", f"jobsets {name} already exists")
            manifest["metadata"]["uid"] = uuid.uuid4().hex
            self.pods[name], self.jobsets[name] = Pods(manifest, self.folder), manifest
            threading.Thread(target=self._control, args=(name, self.pods[name]), daemon=True).start()
            return manifest

    def delete(self, name: str, uid: str | None = None) -> Object:
        with self.lock:
            found = self.find(name)
            if uid not in (None, found["metadata"]["uid"]):
                raise Refused(409, "Conflict", f"the UID in the precondition ({uid}) is not that of the object")
            if "deletionTimestamp" not in found["metadata"]:
                self.jobsets[name] = {**found, "metadata": {**found["metadata"], "deletionTimestamp": "now"}}
                threading.Thread(target=self._end, args=(name,), daemon=True).start()
            return self.jobsets[name]

    def find(self, name: str) -> Object:
        if name not in self.jobsets:
            raise Refused(404, "NotFound", f"jobsets {name} not found")
        return self.jobsets[name]

    def pods_with(self, name: str) -> Pods:
        found = next((pods for pods in list(self.pods.values()) if name in pods.logs), None)
        if found is None:
            raise Refused(404, "NotFound", f'pods "{name}" not found')
        return found

    def _end(self, name: str) -> None:
        self.pods[name].end(self.pods[name].grace)
        with self.lock:
            del self.pods[name], self.jobsets[name]

    def _control(self, name: str, pods: Pods) -> None:
        """The controller of one JobSet: one pod that fails fails it, and the others are asked to stop."""
        while any(code is None for code in pods.codes) and not any(pods.codes):
            time.sleep(0.02)
        failed = any(pods.codes)
        if failed:
            pods.end(pods.grace)
        kind, reason = ("Failed", "FailedJobs") if failed else ("Completed", "AllJobsCompleted")
        with self.lock:
            if name in self.jobsets and self.pods.get(name) is pods:
                conditions = [{"type": kind, "status": "True", "reason": reason}]
                self.jobsets[name] = {**self.jobsets[name], "status": {"conditions": conditions, "terminalState": kind}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: ApiServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_one(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        self.cluster.asked.append((self.command, self.path))
        try:
            if address.path.startswith(PODS) and address.path.endswith("/log"):
                return self._log(address.path.removeprefix(PODS).split("/")[1], follows=query.get("follow", "").lower() == "true")
            fault = self.cluster.faults.pop(0) if self.cluster.faults else ""
            if fault == "cut":
                self.close_connection = True
                return self.connection.close()
            if fault == "503":
                raise BUSY
            time.sleep(1.0 if fault == "slow" else 0.0)
            self._answer(201 if self.command == "POST" else 200, self._found(address.path, query, body))
        except Refused as refused:
            self._answer(refused.code, {"kind": "Status", "code": refused.code, "reason": refused.reason, "message": str(refused)})

    def _found(self, path: str, query: dict[str, str], body: Any) -> Object:
        name = path.removeprefix(PODS).removeprefix(JOBSETS).strip("/")
        if path == PODS:
            pods = self.cluster.pods.get(query["labelSelector"].partition("=")[2])
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods.objects if pods else []}
        if path.startswith(PODS):
            pods = self.cluster.pods_with(name)
            pods.kill(name)
            return next(pod for pod in pods.objects if pod["metadata"]["name"] == name)
        if self.command == "POST":
            return self.cluster.create(body)
        if self.command == "DELETE":
            return self.cluster.delete(name, (body or {}).get("preconditions", {}).get("uid"))
        with self.cluster.lock:
            return self.cluster.find(name)

    def _log(self, name: str, *, follows: bool) -> None:
        log = self.cluster.pods_with(name).logs[name]
        fault = self.cluster.log_faults.pop(0) if self.cluster.log_faults else ""
        if fault == "400":
            raise Refused(400, "BadRequest", f'container "trainer" in pod "{name}" is waiting to start: ContainerCreating')
        if fault == "503":
            raise BUSY
        self.send_response(200)
        for header, value in {"Content-Type": "text/plain", "Transfer-Encoding": "chunked", "Connection": "close"}.items():
            self.send_header(header, value)
        self.end_headers()
        self.close_connection = True
        left = int(fault) if fault.isdecimal() else None
        with suppress(OSError):
            for line in iter([NO_LOG]) if fault == "words" else log.lines(follows=follows):
                part = line[:left]
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                left = None if left is None else left - len(line)
                if left is not None and left <= 0:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, code: int, value: Object) -> None:
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_one  # noqa: N815


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    state = ApiServer(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"cluster": state})) as server:
        server.daemon_threads, state.address = True, f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            for pods in list(state.pods.values()):
                pods.end(0.0)
            server.shutdown()
            thread.join()
