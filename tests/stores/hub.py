"""A Hugging Face hub of our own on loopback, with what goes wrong on the real one.

It answers what `huggingface_hub` asks: revisions, trees in pages, files by a link to a store that is signed and runs out, or, where they
are small, at once. Its clock moves when somebody sleeps on it, so nobody waits.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

PAGE_ENTRIES = 3
LINK_SECONDS = 60
SMALL_BYTES = 64  # files up to this size lie in Git itself and are given at once; larger ones by a signed link
Kind = Literal["refuse", "cut", "whole", "short", "expire"]


@dataclass
class Fault:
    """After so many `passes`, what happens to the next `times` requests whose path matches: refused, cut, or given too much or little."""

    kind: Kind
    where: str
    times: int
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    passes: int = 0


@dataclass
class FakeHub:
    """What the hub has (commit → path → content, branch or tag → commit), and what was asked of it. Before `closed_until` every request is
    refused with 429 and the seconds that are left; `impatient` counts them."""

    repository: str = "datasets/owner/name"
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    names: dict[str, str] = field(default_factory=dict[str, str])
    now: float = 1000.0
    slept: list[float] = field(default_factory=list[float])
    closed_until: float = 0.0
    impatient: int = 0
    token: str | None = None
    faults: list[Fault] = field(default_factory=list[Fault])
    requests: list[str] = field(default_factory=list[str])
    bytes_sent: int = 0
    address: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        tree = {path: sha1(content).hexdigest() for path, content in files.items()}
        name = sha1(json.dumps([branch, len(self.commits), tree]).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.names[branch] = name
        return name

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def close(self, seconds: float) -> None:
        self.closed_until = self.now + seconds

    def fails(self, kind: Kind, where: str = "", *, times: int = 1, status: int = 503, passes: int = 0, **headers: str) -> None:
        """Lay a fault in wait; underscores in a header's name stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(Fault(kind, where, times, status, named, passes))

    def take(self, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(path)
            for fault in [one for one in self.faults if one.times > 0 and re.search(one.where, path)]:
                if fault.passes == 0:
                    fault.times -= 1
                    return fault
                fault.passes -= 1
        return None

    def asked(self, where: str) -> int:
        return sum(bool(re.search(where, path)) for path in self.requests)

    def files_at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        """The commit of a revision, which may be a commit's first letters, and its files."""
        name = self.names.get(revision, revision)
        found = [commit for commit in self.commits if commit.startswith(name)]
        if len(found) != 1 or len(name) < 7:
            raise LookupError("RevisionNotFound")
        return found[0], self.commits[found[0]]


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> FakeHub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(self.path)
        fault = hub.take(path)
        if hub.now < hub.closed_until:
            hub.impatient += 1
            return self.answer(429, b"{}", {"Retry-After": str(round(hub.closed_until - hub.now))})
        if fault and fault.kind == "refuse":
            return self.answer(fault.status, b"{}", fault.headers)
        url = urlsplit(self.path)
        place, query = unquote(url.path), parse_qs(url.query)
        if place.startswith("/signed/"):
            _, _, commit, name = place.split("/", 3)
            if query["signature"] != ["secret"] or hub.now > float(query["expires"][0]):
                return self.answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
            return self.content(hub.commits[commit][name], fault, {"X-Repo-Commit": commit})
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to dataset owner/name is restricted."})
        try:
            if api := re.fullmatch(rf"/api/{hub.repository}(?:/revision/([^/]+))?", place):
                return self._json({"id": hub.repository.split("/", 1)[1], "sha": hub.files_at(api[1] or "main")[0]})
            if tree := re.fullmatch(rf"/api/{hub.repository}/tree/([^/]+)(?:/(.*))?", place):
                return self._tree(hub.files_at(tree[1])[1], tree[2] or "", query)
            if file := re.fullmatch(rf"/{hub.repository}/resolve/([^/]+)/(.*)", place):
                return self._resolve(file[2], fault, *hub.files_at(file[1]))
        except LookupError as error:
            return self.answer(404, b"{}", {"X-Error-Code": str(error.args[0])})
        return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815  # http.server's name

    def _tree(self, files: Mapping[str, bytes], folder: str, query: Mapping[str, list[str]]) -> None:
        prefix, found = f"{folder}/" if folder else "", dict[str, dict[str, Any]]()
        recursive = query.get("recursive", [""])[0].lower() == "true"
        for path, content in files.items():
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)) if path.startswith(prefix) else ():
                above = prefix + "/".join(parts[:depth])
                if recursive or depth == 1:
                    found[above] = {"type": "directory", "path": above, "oid": sha1(above.encode()).hexdigest(), "size": 0}
            if path.startswith(prefix) and (recursive or len(parts) == 1):
                found[path] = {"type": "file", "path": path, "size": len(content), "oid": sha1(content).hexdigest()}
                if len(content) > SMALL_BYTES:
                    found[path]["lfs"] = {"oid": sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        entries = [found[path] for path in sorted(found)]
        if not entries:
            raise LookupError("EntryNotFound")
        start = int(query.get("cursor", ["0"])[0])
        stop, headers = start + PAGE_ENTRIES, dict[str, str]()
        if stop < len(entries):
            more = "&".join(f"{name}={value[0]}" for name, value in query.items() if name != "cursor")
            headers["Link"] = f'<{self.hub.address}{urlsplit(self.path).path}?{more}&cursor={stop}>; rel="next"'
        self._json(entries[start:stop], headers)

    def _resolve(self, path: str, fault: Fault | None, commit: str, files: Mapping[str, bytes]) -> None:
        if path not in files:
            raise LookupError("EntryNotFound")
        content = files[path]
        if len(content) <= SMALL_BYTES:
            return self.content(content, fault)
        runs_out = self.hub.now + (-1 if fault and fault.kind == "expire" else LINK_SECONDS)
        link = f"{self.hub.address}/signed/{commit}/{path}?expires={runs_out}&signature=secret"
        linked = {"X-Linked-ETag": f'"{sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
        return self.answer(302, b"", {"Location": link, "X-Repo-Commit": commit, **linked})

    def content(self, content: bytes, fault: Fault | None, about: Mapping[str, str] | None = None) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        kind = fault.kind if fault else None
        told = {"ETag": f'"{sha256(content).hexdigest()}"', **(about or {})}
        if not asked or kind == "whole":
            return self.answer(200, content, told)
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(content))
        part = content[start : stop - 1] if kind == "short" else content[start:stop]
        return self.answer(206, part, {**told, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, cut=kind == "cut")

    def _json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def answer(self, status: int, content: bytes, headers: Mapping[str, str] | None = None, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = content[: len(content) // 2] if cut else content
        self.wfile.write(sent)
        self.hub.bytes_sent += len(sent)
        self.close_connection = cut or self.close_connection


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], **state: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    for name, value in state.items():
        setattr(server, name, value)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving() -> Iterator[FakeHub]:
    hub = FakeHub()
    with listening(HubHandler, hub=hub) as hub.address:
        yield hub
