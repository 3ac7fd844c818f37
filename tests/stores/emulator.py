"""A Google Cloud Storage of our own: the emulator from the package index, in a thread, and what can go wrong between it and its clients.

Two things that the real service does are missing there and are added: an upload that may only create an object (`ifGenerationMatch`), and
the cancelling of an upload.
"""

import atexit
import functools
import io
import itertools
import json
import os
import re
import socket
import sys
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, partialmethod
from hashlib import md5
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # before anything imports gcsfs

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

BUCKET = "phasewise-tests"
UPLOADS = r"/upload/"
NAME_BYTES = 2000  # an upload's first bytes, which hold its object's name

Kind = Literal["refuse", "tear", "drop_reply"]


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and decoded path or object name match."""

    kind: Kind
    method: str
    where: str
    times: int
    status: int = 503


@dataclass
class Faults:
    """The faults that wait for their requests, and what became of the requests so far. Listings are as of `lag` changes ago."""

    waiting: list[Fault] = field(default_factory=list)
    happened: list[tuple[Kind, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lag: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, *, where: str = "", method: str = "", times: int = 1, status: int = 503, kind: Kind = "refuse") -> None:
        self.waiting.append(Fault(kind, method, where, times, status))

    tear = partialmethod(refuse, kind="tear", where=UPLOADS)
    drop_reply = partialmethod(refuse, kind="drop_reply")

    def clear(self) -> None:
        for remembered in (self.waiting, self.happened, self.requests):
            remembered.clear()
        self.lag = 0

    def take(self, method: str, subject: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {subject}")
            for fault in self.waiting:
                if re.fullmatch(fault.method or ".*", method) and re.search(fault.where, subject):
                    fault.times -= 1
                    self.waiting = [each for each in self.waiting if each.times > 0]
                    self.happened.append((fault.kind, f"{method} {subject}"))
                    return fault
        return None


class RememberingStorage(Storage):
    """The emulator's storage, in memory, with the changes made to it: listings can be given as they were some changes ago."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.damage: Callable[[bytes], bytes] | None = None  # of contents on their way in
        self._changes: deque[tuple[str, str, Any]] = deque(maxlen=10_000)
        super().__init__(use_memory_fs=True)

    def create_file(self, bucket_name: str, file_name: str, content: Any, file_obj: Any, file_id: Any = None) -> None:
        if self.damage is not None:
            content = self.damage(content)
            file_obj["md5Hash"] = b64encode(md5(content).digest()).decode()
        before = self.objects.get(bucket_name, {}).get(file_name)
        super().create_file(bucket_name, file_name, content, file_obj, file_id)
        self._changes.append((bucket_name, file_name, before))

    def delete_file(self, bucket_name: str, file_name: str) -> None:
        before = self.objects.get(bucket_name, {}).get(file_name)
        super().delete_file(bucket_name, file_name)
        self._changes.append((bucket_name, file_name, before))

    def _list_live_candidates(self, bucket_name: str, prefix: str | None = None) -> list[tuple[str, Any]]:
        shown = dict(super()._list_live_candidates(bucket_name, prefix))
        for bucket, name, before in list(self._changes)[::-1][: self._faults.lag]:
            if bucket == bucket_name and name.startswith(prefix or ""):
                shown.pop(name, None)
                if before is not None:
                    shown[name] = before
        return list(shown.items())

    def _write_config_to_file(self) -> None:
        pass  # nobody reads the list of all objects, and writing it with every object costs more than the object


class FaultyHandler(RequestHandler):
    """One request: read whole, done under one lock, answered; unless a fault is due."""

    def __init__(self, faults: Faults, lock: threading.Lock, storage: RememberingStorage, *arguments: Any) -> None:
        self.faults, self.lock = faults, lock
        super().__init__(storage, *arguments)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        head = self.rfile.read(max(length // 2, min(length, NAME_BYTES)))
        bucket, name = self._object_asked_for(head)
        fault = self.faults.take(self.command, f"{unquote(self.path)} {bucket}/{name}")
        if fault and fault.kind == "tear":
            return self._cut()
        body = head + self.rfile.read(length - len(head))
        if fault and fault.kind == "refuse":
            return self._answer(fault.status)
        with self.lock:
            reply = self._carry_out(body, bucket, name)
        if fault and fault.kind == "drop_reply":
            return self._cut()
        self.wfile.write(reply)
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  # http.server's names

    def _carry_out(self, body: bytes, bucket: str, name: str) -> bytes:
        """The emulator's answer, as bytes. The lock makes a look at an object and its change one step."""
        socket_out, self.wfile = self.wfile, io.BytesIO()
        self.rfile = io.BytesIO(body)
        try:
            query, found = parse_qs(urlsplit(self.path).query), {"generation": "0", "metageneration": "0"}
            with suppress(NotFound):
                found = self.storage.get_file_obj(bucket, name)
            wanted = {key: query.get(f"if{key.capitalize()}Match", [found[key]])[0] for key in ("generation", "metageneration")}
            if any(found[key] != value for key, value in wanted.items()):
                self._answer(412)
            elif self.command == "DELETE" and "upload_id" in query:
                self._answer(499)  # what the service says of an upload that was cancelled
            else:
                if self.command == "PATCH":
                    found["updated"] = datetime.now(UTC).isoformat()
                Router(self).handle(self.command)
            return self.wfile.getvalue()
        finally:
            self.wfile = socket_out

    def _object_asked_for(self, head: bytes) -> tuple[str, str]:
        """Bucket and name of the object: an upload has its name in the query or at the start of its body."""
        url = urlsplit(self.path)
        matched = re.search(r"/b/([^/]+)(?:/o/([^/]+))?", url.path)
        bucket, name = (matched[1], unquote(matched[2] or "")) if matched else ("", "")
        if "name" in (query := parse_qs(url.query)):
            name = query["name"][0]
        elif not name and (found := re.search(rb'\{"name": (".*?(?<!\\)")', head)):
            name = json.loads(found[1])
        return bucket, name

    def _answer(self, status: int) -> None:
        content = json.dumps({"error": {"code": status, "message": "made by the test"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class QuietServer(ThreadingHTTPServer):
    """A client that goes away in the middle of a request is no error here: tests kill them."""

    request_queue_size = 1024  # with the usual 5, hundreds of connections at once wait for seconds until the system asks again

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@dataclass(frozen=True)
class Emulator:
    url: str
    faults: Faults
    storage: RememberingStorage
    variables: dict[str, str]  # what a process needs in its environment to find it
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def describe(self, path: Path) -> dict[str, Any]:
        """What the store knows about an object; a change of it is one of the store."""
        return self.storage.get_file_obj(BUCKET, str(path).removeprefix(f"gs://{BUCKET}/"))

    def forget(self, prefix: str) -> None:
        for name in [name for name in self.storage.objects.get(BUCKET, {}) if name.startswith(prefix)]:
            self.storage.delete_file(BUCKET, name)


@contextmanager
def serving() -> Iterator[Emulator]:
    faults = Faults()
    storage = RememberingStorage(faults)
    buckets.create_bucket(BUCKET, storage)
    with QuietServer(("127.0.0.1", 0), partial(FaultyHandler, faults, threading.Lock(), storage)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield Emulator(url, faults, storage, {"STORAGE_EMULATOR_HOST": url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"})
        server.shutdown()
        thread.join()


@functools.cache
def the_emulator() -> Emulator:
    """The one emulator of this process, started at the first call; processes started after it find it by their environment."""
    context = serving()
    emulator = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    os.environ.update(emulator.variables)
    return emulator
