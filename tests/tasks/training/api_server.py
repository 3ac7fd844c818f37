"""A small API server for JobSets: it validates, keeps state and versions, and runs the pods' commands as processes of this machine.

It stands in for a cluster where none can be had. What it does of JobSet's controller: pods from the replicated jobs, one failure fails
all (`maxRestarts: 0`), deletion asks pods to stop and waits for their grace. Logs of pods are as a node gives them: 400 where the container
has not begun, 404 where the pod is gone, from the beginning, followed or not.
Faults: it can be slow, cut a connection, and answer 503; logs have faults of their own.
"""

import json
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.tasks.training.pods import Object, Pods

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PODS = "/api/v1/namespaces/default/pods"
NO_LOG = b"unable to retrieve container logs for containerd://0123"
Validate = Callable[[Object], list[str]]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class ApiServer:
    """State of the cluster. Everything is changed under one lock.

    Attributes:
        faults: what the next requests meet: a word for each, `slow`, `cut`, `503`. None of them is met by one for a log.
        log_faults: what those for logs meet: `400`, `503`, `words` of the node in place of a log, or the number of bytes after which they
            are cut.
        asked: method and path of every request.
    """

    def __init__(self, folder: Path, validate: Validate) -> None:
        self.folder, self.validate = folder, validate
        self.lock = threading.Lock()
        self.jobsets: dict[str, Object] = {}
        self.pods: dict[str, Pods] = {}
        self.faults: list[str] = []
        self.log_faults: list[str] = []
        self.asked: list[tuple[str, str]] = []

    def create(self, manifest: Object) -> Object:
        if problems := self.validate(manifest):
            raise Refused(422, "Invalid", "; ".join(problems))
        name = manifest["metadata"]["name"]
        with self.lock:
            if name in self.jobsets:
                raise Refused(409, "AlreadyExists", f"jobsets {name} already exists")
            manifest["metadata"]["uid"] = uuid.uuid4().hex
            self.pods[name] = Pods(manifest, self.folder)
            self._put(name, manifest)
            threading.Thread(target=self._control, args=(name, self.pods[name]), daemon=True).start()
            return self.jobsets[name]

    def delete(self, name: str, preconditions: Object | None = None) -> Object:
        with self.lock:
            found = self.find(name)
            if (uid := (preconditions or {}).get("uid")) not in (None, found["metadata"]["uid"]):
                raise Refused(409, "Conflict", f"the UID in the precondition ({uid}) is not that of the object")
            if "deletionTimestamp" not in found["metadata"]:
                metadata = {**found["metadata"], "deletionTimestamp": "now"}
                self._put(name, {**found, "metadata": metadata})
                threading.Thread(target=self._end, args=(name,), daemon=True).start()
            return self.jobsets[name]

    def find(self, name: str) -> Object:
        if name not in self.jobsets:
            raise Refused(404, "NotFound", f"jobsets {name} not found")
        return self.jobsets[name]

    def close(self) -> None:
        for pods in list(self.pods.values()):
            pods.end(0.0)

    def _put(self, name: str, found: Object) -> None:
        self.jobsets[name] = found

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
        with self.lock:
            if name in self.jobsets and self.pods.get(name) is pods:
                kind = "Failed" if failed else "Completed"
                conditions = [{"type": kind, "status": "True", "reason": "FailedJobs" if failed else "AllJobsCompleted"}]
                self._put(name, {**self.jobsets[name], "status": {"conditions": conditions, "terminalState": kind}})


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
                if address.path.startswith(PODS) and address.path.endswith("/log"):
                    self._log(address.path.removeprefix(PODS).split("/")[1], follows=query.get("follow", "").lower() == "true")
                    return
                if self._met_a_fault():
                    return
                self._answer(201 if self.command == "POST" else 200, self._found(address.path, query, body))
            except Refused as refused:
                self._answer(refused.code, {"kind": "Status", "code": refused.code, "reason": refused.reason, "message": str(refused)})

        def _found(self, path: str, query: dict[str, str], body: Any) -> Object:
            name = path.removeprefix(JOBSETS).strip("/")
            if path == PODS:
                return self._pods(query)
            if path.startswith(PODS):
                return self._delete_pod(path.removeprefix(PODS).strip("/"))
            if self.command == "POST":
                return server.create(body)
            if self.command == "DELETE":
                return server.delete(name, (body or {}).get("preconditions"))
            with server.lock:
                return server.find(name)

        def _pods(self, query: dict[str, str]) -> Object:
            pods = server.pods.get(query["labelSelector"].partition("=")[2])
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods.objects if pods else []}

        def _delete_pod(self, name: str) -> Object:
            pods = self._pods_with(name)
            pods.signal(signal.SIGKILL, name)
            return next(pod for pod in pods.objects if pod["metadata"]["name"] == name)

        def _pods_with(self, name: str) -> Pods:
            found = next((pods for pods in list(server.pods.values()) if name in pods.logs), None)
            if found is None:
                raise Refused(404, "NotFound", f'pods "{name}" not found')
            return found

        def _log(self, name: str, *, follows: bool) -> None:
            log = self._pods_with(name).logs[name]
            fault = server.log_faults.pop(0) if server.log_faults else ""
            if fault == "400":
                raise Refused(400, "BadRequest", f'container "trainer" in pod "{name}" is waiting to start: ContainerCreating')
            if fault == "503":
                raise Refused(503, "ServiceUnavailable", "the server is busy")
            self._begin_chunks("text/plain")
            lines = iter([NO_LOG]) if fault == "words" else log.lines(follows=follows)
            left = int(fault) if fault.isdecimal() else None
            with suppress(OSError):
                for line in lines:
                    self._chunk(line[:left])
                    left = None if left is None else left - len(line)
                    if left is not None and left <= 0:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
                self.wfile.write(b"0\r\n\r\n")

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

        def _begin_chunks(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True

        def _chunk(self, content: bytes) -> None:
            if content:
                self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
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
