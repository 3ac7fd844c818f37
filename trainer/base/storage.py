"""Whole files, written at once or not at all, under any fsspec URL.

On a local file system a file is written under a temporary name and renamed; on an object store an object appears whole or not at all, and
what is written piece by piece is staged on this machine until it is whole.
"""

import hashlib
import json
import os
import tempfile
import uuid
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from fsspec import AbstractFileSystem
from upath import UPath

READ_BYTES = 2**22
PUT_CHUNK_BYTES = 2**24

STORE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # What other processes write must be seen here, and the store must confirm the digest of what it took.
    "gs": {"use_listings_cache": False, "consistency": "md5"},
}


def as_path(url: str | Path) -> Path:
    """The file or folder at a URL: a `pathlib.Path` if it is on this machine, else an object that does the same on its store.

    `str()` of the result makes the same path again, and it can be pickled.
    """
    if not isinstance(url, str):
        return url
    if "://" not in url:
        return Path(url)
    protocol = urlsplit(url).scheme
    if protocol in ("file", "local"):
        return Path(unquote(url.split("://", 1)[1]))
    if protocol in ("gs", "gcs"):
        protocol = "gs"
        url = "gs://" + url.split("://", 1)[1].rstrip("/")
    return cast(Path, UPath(url, **STORE_OPTIONS.get(protocol, {})))


def file_system_of(url: str | Path) -> tuple[AbstractFileSystem, str] | None:
    """The store of a file and its name there, for readers that take fsspec file systems; None for a file on this machine."""
    path = cast(Path | UPath, as_path(url))
    return (path.fs, path.path) if isinstance(path, UPath) else None


@contextmanager
def writing(url: str | Path) -> Iterator[BinaryIO]:
    """A file to be written piece by piece, which appears under its name, whole, when the block ends without an error.

    Memory does not grow with the file. A local file waits beside its name; what goes to a store waits in a local file without a name,
    which goes with the process however it ends.

    Raises:
        OSError: the store did not take it, also when asked again.
    """
    store = file_system_of(url)
    if store is None:
        with _writing_locally(as_path(url)) as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="phasewise-") as staged:
        yield cast(BinaryIO, staged)
        staged.flush()
        _put(*store, staged)


def write_atomically(url: str | Path, content: bytes) -> None:
    """Write `content` so that a reader, or a kill at any moment, finds the old file or the new one and nothing between."""
    with writing(url) as file:
        file.write(content)


def put_file(path: Path, url: str | Path) -> None:
    """Copy a whole file of this machine to a store, without another copy on the way.

    Raises:
        OSError: it cannot be read, or the store did not take it, also when asked again.
    """
    store = file_system_of(url)
    assert store is not None, "for a store"
    with open(path, "rb") as file:
        _put(*store, file)


def write_json(url: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(url, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(url: str | Path) -> Any:
    """The JSON value in the file."""
    return json.loads(as_path(url).read_bytes())


def storage_trouble(error: OSError) -> str:
    """What a file system said, in words that say what to do."""
    place = f" at {error.filename}" if error.filename else ""
    return (
        f"a file could not be written or read{place}: {error.strerror or error}. Make room, or make the folder writable, and start again: "
        "it goes on from the last checkpoint."
    )


def digest_of_bytes(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_of_json(value: Any) -> str:
    """SHA-256 of the canonical JSON form: sorted keys, no spaces. Equal values have equal digests."""
    return digest_of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def digest_of_file(url: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal, read in pieces."""
    return _read_through(as_path(url))[1]


class StoreEntry(NamedTuple):
    """What a store says of a file without giving it.

    Attributes:
        digest: of the content, with the name of its kind: `md5:…`, `sha256:…`, `git:…`, `crc32c:…`; None where the store vouches for none.
        signature: what changes with every change of the content: digest, generation or strong ETag, and size; empty where there is none.
    """

    size_bytes: int | None
    digest: str | None
    signature: tuple[str, ...]


def store_entry(url: str | Path) -> StoreEntry | None:
    """What the store of a file says of it; None for a file on this machine. A time of change or a size is never taken for the content."""
    store = file_system_of(url)
    if store is None:
        return None
    return entry_of(store[0].info(store[1]))


def entry_of(info: Mapping[str, Any]) -> StoreEntry:
    """The same from what fsspec gives with a file's name."""
    size = info.get("size")
    digest = _vouched_for(info)
    version = _version_of(info)
    signature = tuple(text for text in (digest, version) if text)
    return StoreEntry(None if size is None else int(size), digest, (*signature, str(size)) if signature else ())


def content_digest(url: str | Path) -> tuple[int, str]:
    """A file's size in bytes, and a digest of its content with the name of its kind; the store's, where it vouches for one."""
    entry = store_entry(url)
    if entry is not None and entry.digest and entry.size_bytes is not None:
        return entry.size_bytes, entry.digest
    size, digest = _read_through(as_path(url))
    return size, f"sha256:{digest}"


def size_and_digest(file: BinaryIO) -> tuple[int, str]:
    """Size and SHA-256 of what an open file gives from here on, read in pieces."""
    digest = hashlib.sha256()
    size = 0
    while piece := file.read(READ_BYTES):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def remove_strays(folder: str | Path, keep: Collection[str]) -> None:
    """Delete the files directly in the folder that are not named: what killed writers and older plans left there.

    Only for a folder in which nobody else writes now: another's file in the making is a stray, too.
    """
    try:
        found = list(as_path(folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):  # the second is what stores say of a folder without objects
        return
    for path in found:
        if path.name and path.name not in keep and path.is_file():
            remove(path)


def remove(url: str | Path) -> None:
    """Delete a file, if it is there."""
    store = file_system_of(url)
    with suppress(FileNotFoundError):
        if store is None:
            as_path(url).unlink()
        else:
            store[0].rm_file(store[1])


@contextmanager
def _writing_locally(target: Path) -> Iterator[BinaryIO]:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _put(file_system: AbstractFileSystem, name: str, staged: IO[bytes]) -> None:
    """Make one object of the staged file. What is torn or busy the file system tries again itself; all else is tried once more here."""
    try:
        _put_once(file_system, name, staged)
    except FileNotFoundError:
        raise  # there is no such bucket: asking again does not help
    except Exception:  # stores have error types of their own
        try:
            _put_once(file_system, name, staged)
        except Exception as error:
            _remove_damaged(file_system, name, error)
            url = file_system.unstrip_protocol(name)
            raise OSError(f"{url}: the store did not take the file, also when asked again: {error}") from error


def _put_once(file_system: AbstractFileSystem, name: str, staged: IO[bytes]) -> None:
    path = f"/dev/fd/{staged.fileno()}"
    size = os.fstat(staged.fileno()).st_size
    if "gs" not in file_system.protocol:
        file_system.put_file(path, name)
    elif size >= PUT_CHUNK_BYTES:
        file_system.put_file(path, name, chunksize=PUT_CHUNK_BYTES)
    else:
        staged.seek(0)
        content = staged.read()
        options: dict[str, Any] = {"chunksize": size} if _is_mangled_in_one_request(content) else {}
        file_system.pipe_file(name, content, **options)


def _is_mangled_in_one_request(content: bytes) -> bool:
    """Whether gcsfs, which sends small objects between the lines `--==0==`, would send less than the content."""
    return b"--==0==" in content or content.endswith(b"\r")


def _remove_damaged(file_system: AbstractFileSystem, name: str, error: Exception) -> None:
    """Remove an object that the store says is different from what was sent."""
    from gcsfs.retry import ChecksumError

    if isinstance(error, ChecksumError):
        file_system.rm_file(name)


def _read_through(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return size_and_digest(cast(BinaryIO, file))


def _vouched_for(info: Mapping[str, Any]) -> str | None:
    """The digest that a store gives with a file's name: Google Cloud Storage's MD5 or CRC32C, Hugging Face's SHA-256 or Git blob."""
    if info.get("md5Hash"):
        return f"md5:{b64decode(info['md5Hash']).hex()}"
    if info.get("crc32c"):  # an object that was composed of others has no MD5
        return f"crc32c:{b64decode(info['crc32c']).hex()}"
    if info.get("lfs"):
        return f"sha256:{info['lfs']['sha256']}"
    if info.get("blob_id"):
        return f"git:{info['blob_id']}"
    return None


def _version_of(info: Mapping[str, Any]) -> str | None:
    """What a store numbers its files' contents by. A weak ETag may stay the same over a change."""
    if info.get("generation"):
        return f"generation:{info['generation']}"
    etag = next((str(info[name]) for name in ("ETag", "etag") if info.get(name)), None)
    return f"etag:{etag}" if etag and not etag.startswith("W/") else None
