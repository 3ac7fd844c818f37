"""A small API server for JobSets: it validates, keeps state and versions, and runs the pods' commands as processes of this machine.

It stands in for a cluster where none can be had. What it does of JobSet's controller: pods from the replicated jobs, one failure fails
all (`maxRestarts: 0`), deletion asks pods to stop and waits for their grace.
Faults: it can be slow, forget a watch (410), cut a connection, and answer
503.
"""

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.ports import free_port

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PODS = "/api/v1/namespaces/default/pods"
KEPT_EVENTS = 100
Object = dict[str, Any]
Validate = Callable[[Object], list[str]]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Pods:
    """The pods of one JobSet, as processes."""

    def __init__(self, manifest: Object, folder: Path) -> None:
        self._processes: list[tuple[Object, subprocess.Popen[bytes]]] = []
        self._finished: dict[int, str] = {}
        self.grace = 30.0
        port = free_port()
        for job in manifest["spec"]["replicatedJobs"]:
            for replica in range(job["replicas"]):
                for host in range(job["template"]["spec"]["completions"]):
                    self._start(manifest, job, replica, host, port, folder)

    def _start(self, manifest: Object, job: Object, replica: int, host: int, port: int, folder: Path) -> None:
        template = job["template"]["spec"]["template"]
        name = f"{manifest['metadata']['name']}-{job['name']}-{replica}-{host}"
        annotations = {
            **template["metadata"]["annotations"],
            "jobset.sigs.k8s.io/job-index": str(replica),
            "batch.kubernetes.io/job-completion-index": str(host),
        }
        labels = {"jobset.sigs.k8s.io/jobset-name": manifest["metadata"]["name"]}
        pod = {
            "metadata": {"name": f"{name}-x{uuid.uuid4().hex[:4]}", "annotations": annotations, "labels": labels},
            "spec": template["spec"],
        }
        self.grace = template["spec"]["terminationGracePeriodSeconds"]
        [container] = template["spec"]["containers"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        for one in container["env"]:
            environment[one["name"]] = one["value"] if "value" in one else field_of(pod, one["valueFrom"]["fieldRef"]["fieldPath"])
        environment["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"  # the cluster's DNS, and a network of its own for each pod
        process = subprocess.Popen(container["command"], stdout=subprocess.DEVNULL, env=environment, process_group=0)
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

    def signal(self, number: int) -> None:
        """To those that are at work."""
        for _, process in self._processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def end(self, grace: float) -> None:
        """As a kubelet ends pods that were deleted. The time of deletion is the one at which they are killed."""
        for code, (pod, _) in zip(self.codes, self._processes, strict=True):
            if code is None:
                pod["metadata"] |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": round(grace)}
        self.signal(signal.SIGTERM)
        until = time.monotonic() + grace
        for _, process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self.signal(signal.SIGKILL)
        for _, process in self._processes:
            process.wait()
        self._numbered()


class ApiServer:
    """State of the cluster. Everything is changed under one lock.

    Attributes:
        faults: what the next requests meet: a word for each, `slow`, `cut`, `503`, `forget`.
        asked: method and path of every request.
    """

    def __init__(self, folder: Path, validate: Validate) -> None:
        self.folder, self.validate = folder, validate
        self.lock = threading.Condition()
        self.version = 100
        self.forgotten = 0
        self.jobsets: dict[str, Object] = {}
        self.pods: dict[str, Pods] = {}
        self.events: list[tuple[int, str, Object]] = []
        self.faults: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.is_open = True
        self.watches = 0

    def create(self, manifest: Object) -> Object:
        if problems := self.validate(manifest):
            raise Refused(422, "Invalid", "; ".join(problems))
        name = manifest["metadata"]["name"]
        with self.lock:
            if name in self.jobsets:
                raise Refused(409, "AlreadyExists", f"jobsets {name} already exists")
            manifest["metadata"]["uid"] = uuid.uuid4().hex
            self.pods[name] = Pods(manifest, self.folder)
            self._put("ADDED", name, manifest)
            threading.Thread(target=self._control, args=(name, self.pods[name]), daemon=True).start()
            return self.jobsets[name]

    def replace(self, name: str, changed: Object) -> Object:
        with self.lock:
            found = self.find(name)
            if changed["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified")
            self._put("MODIFIED", name, changed)
            return self.jobsets[name]

    def delete(self, name: str) -> Object:
        with self.lock:
            found = self.find(name)
            if "deletionTimestamp" not in found["metadata"]:
                metadata = {**found["metadata"], "deletionTimestamp": "now"}
                self._put("MODIFIED", name, {**found, "metadata": metadata})
                threading.Thread(target=self._end, args=(name,), daemon=True).start()
            return self.jobsets[name]

    def find(self, name: str) -> Object:
        if name not in self.jobsets:
            raise Refused(404, "NotFound", f"jobsets {name} not found")
        return self.jobsets[name]

    def listed(self, name: str) -> Object:
        """The version is that of the whole cluster, and not of an object."""
        items = [found for found in self.jobsets.values() if found["metadata"]["name"] == name]
        return {"kind": "JobSetList", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def forget_events(self) -> None:
        """As a server that compacted its history: every watch that begins before now is answered 410."""
        with self.lock:
            self.forgotten = self.version + 1
            self.version += 2
            self.lock.notify_all()

    def touch(self, name: str) -> None:
        """Somebody else changes the object."""
        with self.lock:
            self._put("MODIFIED", name, {**self.find(name)})

    def close(self) -> None:
        with self.lock:
            self.is_open = False
            self.lock.notify_all()
        for pods in list(self.pods.values()):
            pods.end(0.0)

    def _put(self, kind: str, name: str, found: Object) -> None:
        self.version += 1
        found = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        if kind == "DELETED":
            self.jobsets.pop(name, None)
        else:
            self.jobsets[name] = found
        self.events = [*self.events, (self.version, kind, found)][-KEPT_EVENTS:]
        self.lock.notify_all()

    def _end(self, name: str) -> None:
        self.pods[name].end(self.pods[name].grace)
        with self.lock:
            found = self.jobsets[name]
            del self.pods[name]
            self._put("DELETED", name, found)

    def _control(self, name: str, pods: Pods) -> None:
        """The controller of one JobSet: one pod that fails fails it, and the others are asked to stop."""
        while any(code is None for code in pods.codes) and not any(pods.codes):
            time.sleep(0.02)
        failed = any(pods.codes)
        if failed:
            pods.end(pods.grace)
        with self.lock:
            if name in self.jobsets and self.pods.get(name) is pods:
                kind = "Failed" if failed else "Completed"
                conditions = [{"type": kind, "status": "True", "reason": "FailedJobs" if failed else "AllJobsCompleted"}]
                self._put("MODIFIED", name, {**self.jobsets[name], "status": {"conditions": conditions, "terminalState": kind}})


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


def handler_of(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    """The requests that the launcher makes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle_one(self) -> None:
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            server.asked.append((self.command, self.path))
            try:
                if self._met_a_fault():
                    return
                if "watch" in query and address.path == JOBSETS:
                    self._watch(query)
                    return
                self._answer(201 if self.command == "POST" else 200, self._found(address.path, query, body))
            except Refused as refused:
                self._answer(refused.code, {"kind": "Status", "code": refused.code, "reason": refused.reason, "message": str(refused)})

        def _found(self, path: str, query: dict[str, str], body: Any) -> Object:
            name = path.removeprefix(JOBSETS).strip("/")
            if path == PODS:
                return self._pods(query)
            if self.command == "POST":
                return server.create(body)
            if self.command == "PUT":
                return server.replace(name, body)
            if self.command == "DELETE":
                return server.delete(name)
            with server.lock:
                return server.find(name) if name else server.listed(query.get("fieldSelector", "").removeprefix("metadata.name="))

        def _pods(self, query: dict[str, str]) -> Object:
            pods = server.pods.get(query["labelSelector"].partition("=")[2])
            if self.command == "DELETE" and pods:
                pods.signal(signal.SIGKILL)
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods.objects if pods else []}

        def _met_a_fault(self) -> bool:
            fault = server.faults.pop(0) if server.faults else ""
            if fault == "slow":
                time.sleep(1.0)
            if fault == "503":
                raise Refused(503, "ServiceUnavailable", "the server is busy")
            if fault == "cut":
                self.close_connection = True
                self.connection.close()
            return fault == "cut"

        def _watch(self, query: dict[str, str]) -> None:
            name = query["fieldSelector"].removeprefix("metadata.name=")
            since = int(query["resourceVersion"])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self._follow(name, since, float(query.get("timeoutSeconds", 60)))
            with suppress(OSError):
                self.wfile.write(b"0\r\n\r\n")

        def _follow(self, name: str, since: int, seconds: float) -> None:
            server.watches += 1
            until = time.monotonic() + seconds
            with server.lock:
                while server.is_open and time.monotonic() < until:
                    if since < server.forgotten:
                        self._event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
                        return
                    for version, kind, found in [one for one in server.events if one[0] > since]:
                        since = version
                        if found["metadata"]["name"] == name:
                            self._event(kind, found)
                    server.lock.wait(0.2)

        def _event(self, kind: str, found: Object) -> None:
            with suppress(OSError):
                line = json.dumps({"type": kind, "object": found}).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()

        def _answer(self, code: int, value: Object) -> None:
            content = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_one  # noqa: N815

    return Handler


@contextmanager
def api_server(folder: Path, validate: Validate) -> Iterator[tuple[ApiServer, str]]:
    """A server on loopback, and its address."""
    state = ApiServer(folder, validate)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(state)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            state.close()
            server.shutdown()
            thread.join()
