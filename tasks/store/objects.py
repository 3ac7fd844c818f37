"""Content on the store under the name of its digest: sent, brought back and checked, and deleted when no head names it any more."""

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from phasewise.tasks.store.snapshot import Changing, Source
from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.storage import cleaning_up, file_system_of, put_file, write_atomically

THREADS = 8
READ_BYTES = 2**24
T = TypeVar("T")


@dataclass(frozen=True)
class Objects:
    """The folder of them.

    Attributes:
        folder: its URL.
    """

    folder: Path

    def are_there(self) -> bool:
        """Whether there is any. The store is asked for a listing, of one."""
        file_system, bucket, name = self._named("")
        found = file_system.call("GET", "b/{}/o", bucket, prefix=f"{name.rstrip('/')}/", maxResults=1, json_out=True)
        return bool(found.get("items"))

    def send(self, sources: Mapping[str, Source]) -> None:
        """Send each, also where an object of that name is there: it may be deleted by the one who left it.

        Raises:
            OSError: the store did not take one.
            Changing: a file is not there any more.
        """
        _each(self._send, sources.items())

    def bring(self, digest: str, path: Path) -> None:
        """Write one to a file of this machine, which appears whole.

        Raises:
            StorageError: it is missing, or has other bytes than its name says.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        coming = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        file_system, bucket, name = self._named(digest)
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
            with open(coming, "wb") as file:
                for start in range(0, size := int(json.loads(about)["size"]), READ_BYTES):  # gcsfs's own `get_file` asks a listing first
                    file.write(file_system.cat_file(f"{bucket}/{name}", start=start, end=min(start + READ_BYTES, size)))
            if (now := digest_of_file(coming)) != digest:
                raise StorageError(f"{self.folder / digest} has other bytes than were sent (SHA-256 {now[:12]}). {WHAT_TO_DO}")
            os.replace(coming, path)
        except FileNotFoundError:
            raise StorageError(f"{self.folder / digest} is named by the head, and is not there. {WHAT_TO_DO}") from None
        finally:
            coming.unlink(missing_ok=True)

    def bring_all(self, wanted: Mapping[Path, str]) -> None:
        """Path here → digest of what shall be there.

        Raises:
            StorageError: as `bring`.
        """
        _each(lambda item: self.bring(item[1], item[0]), wanted.items())

    def content(self, digest: str) -> bytes:
        """The bytes of a small one.

        Raises:
            StorageError: as `bring`.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.bring(digest, path := Path(folder) / digest)
            return path.read_bytes()

    def versions(self, digests: Collection[str]) -> dict[str, str]:
        """The generation of each that is there."""
        found = _each(lambda digest: (digest, self._version(digest)), digests)
        return {digest: version for digest, version in found if version}

    def delete(self, versions: Mapping[str, str]) -> None:
        """Delete these versions, if the store allows it. One that was sent again since has another, and is left."""

        def delete(item: tuple[str, str]) -> None:
            file_system, bucket, name = self._named(item[0])
            with suppress(FileNotFoundError, FileExistsError):  # gcsfs's words for gone, and for another version
                file_system.call("DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=item[1])

        with cleaning_up(self.folder):
            _each(delete, versions.items())

    def delete_others(self, named: Collection[str]) -> None:
        """Delete all but these, by a listing, which may lag."""
        file_system, bucket, name = self._named("")
        with cleaning_up(self.folder):
            found = file_system.find(f"{bucket}/{name.rstrip('/')}", detail=True)
            digests = {path.rpartition("/")[2]: str(about["generation"]) for path, about in found.items()}
            self.delete({digest: version for digest, version in digests.items() if digest not in named})

    def _send(self, item: tuple[str, Source]) -> None:
        digest, source = item
        if source.content is not None:
            write_atomically(self.folder / digest, source.content)
        elif source.path is not None:
            try:
                put_file(source.path, self.folder / digest)
            except FileNotFoundError:
                if source.path.exists():
                    raise  # there is no such bucket
                raise Changing from None

    def _version(self, digest: str) -> str | None:
        file_system, bucket, name = self._named(digest)
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
        except FileNotFoundError:
            return None
        return str(json.loads(about)["generation"])

    def _named(self, digest: str) -> tuple[Any, str, str]:
        store = file_system_of(self.folder / digest)
        assert store is not None
        return (store[0], *store[1].split("/", 1))  # pyright: ignore[reportReturnType]  # two parts


WHAT_TO_DO = "Bring it back from a copy, or take the object's earlier version."


def _each(what: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(what, items))
