"""The servers of the record on loopback: several repositories of a hub, and web servers that list nothing.

A process that is to read them imports this module with the variable `TEST_MIRROR` set, and `https://` leads there; workers of Dask do by
`DASK_DISTRIBUTED__WORKER__PRELOAD`. The hub is found by `HF_ENDPOINT`, as ever.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec
from fsspec.implementations.http import HTTPFileSystem

from tests.stores.hub import FakeHub, HubHandler, listening

VARIABLE = "TEST_MIRROR"
WEB = "/web/"
Serve = Callable[[str], bytes | None]


class Mirrored(HTTPFileSystem):
    """`https://HOST/PATH` is read from `ADDRESS/web/HOST/PATH`."""

    def encode_url(self, url: str) -> Any:
        """The address that is asked."""
        return super().encode_url(f"{os.environ[VARIABLE]}{WEB}{url.removeprefix('https://')}" if url.startswith("https://") else url)


class MirrorHandler(HubHandler):
    """The hub whose repository a request names; or a file of the web."""

    @property
    def hub(self) -> FakeHub:
        hubs: list[FakeHub] = self.server.hubs  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        for hub in hubs:
            if f"/{hub.repository}/" in f"{path}/" or any(path.startswith(f"/signed/{commit}/") for commit in hub.commits):
                return hub
        return hubs[0]

    def do_GET(self) -> None:  # noqa: N802  # http.server's name
        path = unquote(urlsplit(self.path).path)
        if not path.startswith(WEB):
            return super().do_GET()
        content = self.server.web(path.removeprefix(WEB))  # type: ignore[attr-defined]
        if content is None:
            return self.answer(404, b"")
        if "Range" in self.headers:
            return self.content(content, None)
        return self.answer(200, content, {"ETag": f'"{sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"})

    do_HEAD = do_GET  # noqa: N815  # http.server's name


@contextmanager
def serving(repositories: Mapping[str, Mapping[str, Mapping[str, bytes]]], web: Serve) -> Iterator[tuple[str, dict[str, FakeHub]]]:
    """The address, and the hub of each repository, for as long as the context lasts.

    Args:
        repositories: `datasets/OWNER/NAME`, or `OWNER/NAME` of a model → revision → path → content.
        web: `HOST/PATH` → content; None is that there is no such file.
    """
    hubs = {name: FakeHub(repository=name) for name in repositories}
    for name, revisions in repositories.items():
        for revision, files in revisions.items():
            hubs[name].commit(files, branch=revision)
    with listening(MirrorHandler, hubs=list(hubs.values()), web=web) as address:
        for hub in hubs.values():
            hub.address = address
        yield address, hubs


if VARIABLE in os.environ:
    fsspec.register_implementation("https", Mirrored, clobber=True)
