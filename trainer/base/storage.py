"""Whole files, written atomically under any fsspec URL, locks, untrusted JSON, and secrets in URLs."""

import fcntl
import json
import logging
import math
import os
import re
import tempfile
import time
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from fsspec import AbstractFileSystem, get_filesystem_class
from upath import UPath

LOGGER = logging.getLogger("phasewise")
BYTE_ORDER_MARK = "\ufeff"
MAX_DEPTH = 100
PUT_CHUNK_BYTES = 2**24
PROBE_SECONDS = 0.1  # a reader probes a lock for less time
STORE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # This process must see files of other processes, and the store must confirm the digest of each upload
    "gs": {"use_listings_cache": False, "consistency": "md5"}
}
HIDDEN = "…"
_PASSWORD = re.compile(r"(?P<before>https?://)[^/@\s]+@|(?P<other>[a-z0-9+.-]+://)[^/@:\s]*:[^/@\s]+@", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<name>[?&][^=&\s]*(?:token|secret|password|passwd|signature|sig|credential|api[_-]?key|accesskeyid)=)[^&\s]+", re.IGNORECASE
)
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_BRACKETS = re.compile(r"[^\[\]{}]+")
_warned: set[str] = set()


def without_secrets(text: str) -> str:
    """Return the text with passwords and tokens in URLs replaced: `https://NAME:PASSWORD@host/`, `https://host/?token=…`."""
    hidden = _PASSWORD.sub(lambda match: f"{match['before'] or match['other']}{HIDDEN}@", text)
    return _QUERY.sub(lambda match: f"{match['name']}{HIDDEN}", hidden)


def check_no_secret(url: str | None, field: str) -> None:
    """Raise ValueError if the URL has a secret: manifests, reports and cards contain URLs. The message hides the secret."""
    if url is not None and without_secrets(url) != url:
        raise ValueError(
            f"{field} must not carry a password or a token, found {without_secrets(url)}: it would be written to caches, reports and "
            "cards. Take it out, and give it to fsspec by the environment (FSSPEC_HTTPS, or the store's own variables)"
        )


def try_lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed, or return False if another file object holds the lock, also in this process.

    A conflict with the probe of `is_locked` ends within `PROBE_SECONDS`.
    """
    deadline = time.monotonic() + PROBE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(PROBE_SECONDS / 10)
        else:
            return True


def is_locked(place: Path) -> bool:
    """Return whether a process holds the lock of a local file. Concurrent probes share the lock."""
    try:
        with open(place) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked(place: Path, *, wait: bool) -> Iterator[bool]:
    """Create and lock a file. Without `wait`, yield False if another process or thread holds the lock."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "a") as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield wait or try_lock(file)


def parse_json(content: bytes | str, *, allows_nan: bool = False) -> Any:
    """Parse untrusted JSON. Raises ValueError with a message of one line.

    Repeated names in an object, nesting deeper than `MAX_DEPTH`, integers of more than 64 bits, NaN and infinity are errors.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected text in UTF-8, found the byte 0x{error.object[error.start]:02x} at {error.start}") from None
    if not text.strip():
        raise ValueError("expected a JSON value, found an empty text")
    if text.startswith(BYTE_ORDER_MARK):
        raise ValueError("expected UTF-8 without a byte order mark, found one: save the file without it")
    number = float if allows_nan else _finite
    try:
        brackets = _NOT_BRACKETS.sub("", _STRINGS.sub("", text))
        if brackets.count("[") + brackets.count("{") > MAX_DEPTH:
            for _ in range(MAX_DEPTH):
                before, brackets = brackets, brackets.replace("[]", "").replace("{}", "")
                if not brackets or brackets == before:  # the rest is not JSON, and the parser reports the position
                    break
            else:
                raise RecursionError
        return json.loads(text, object_pairs_hook=_unique_names, parse_int=_in_64_bits, parse_float=number, parse_constant=number)
    except RecursionError:
        raise ValueError(f"expected at most {MAX_DEPTH} levels of lists and objects, found more") from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"expected each name once in an object, found {twice[:80]!r} more than once")
    return found


def _in_64_bits(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"expected integers of at most 64 bits, found {digits[:24]}{'…' if len(digits) > 24 else ''}")
    return int(digits)


def _finite(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise ValueError(f"expected a finite number, found {digits[:24]}")
    return found


READERS = {"gs": ("gcsfs", ""), "s3": ("s3fs", "s3"), "az": ("adlfs", "azure"), "hf": ("huggingface_hub", "")}
"""Protocol of a URL → the package that reads it, and the extra of Phasewise that installs an optional package."""


def check_reader(url: str) -> None:
    """Raise ConfigError if the package that reads a URL is not installed, or fsspec does not know the protocol."""
    from phasewise.trainer.base.errors import ConfigError  # it imports this module

    protocol = urlsplit(url).scheme if "://" in url else "file"
    package, extra = READERS.get(protocol, ("", ""))
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        remedy = f"pip install 'phasewise[{extra}]'" if extra else f"pip install {package}" if package else str(error)
        raise ConfigError(f"{url}: the package that reads {protocol}:// is not installed: {remedy}.") from None
    except ValueError:
        known = ", ".join(f"{name}://" for name in READERS)
        raise ConfigError(f"{url}: expected a folder, {known} or another protocol of fsspec, found {protocol}://.") from None


def user_cache() -> Path:
    """Return the folder of this user's caches of Phasewise, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "phasewise"


def as_path(url: str | Path) -> Path:
    """Return the file or folder at a URL: a `pathlib.Path` on this machine, or an object with the same interface on a store.

    `str()` of the result gives an equal path, and the result can be pickled.
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
    check_reader(url)
    return cast(Path, UPath(url, **STORE_OPTIONS.get(protocol, {})))


def file_system_of(url: str | Path) -> tuple[AbstractFileSystem, str] | None:
    """Return the fsspec store of a file and the file's name on the store, or None for a file on this machine."""
    path = cast(Path | UPath, as_path(url))
    return (path.fs, path.path) if isinstance(path, UPath) else None


@contextmanager
def writing(url: str | Path) -> Iterator[BinaryIO]:
    """Yield a file to write in pieces. The complete file appears under its name when the block ends without an error.

    An upload is staged in a local file without a name, which disappears with the process. Raises OSError if the store rejected it twice.
    """
    store = file_system_of(url)
    if store is not None:
        with tempfile.TemporaryFile(prefix="phasewise-") as staged:
            yield cast(BinaryIO, staged)
            staged.flush()
            put_file(Path(f"/dev/fd/{staged.fileno()}"), url)
        return
    target = as_path(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):  # an error of a write to an open file has no name
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(url: str | Path, content: bytes) -> None:
    """Write `content` so that a reader finds the old file or the new one, also after a kill."""
    with writing(url) as file:
        file.write(content)


def write_json(url: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(url, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def has_no_end(url: str | Path) -> bool:
    """Return whether a path is a pipe, a socket or a device, also behind a link: reading may hang or fill the memory."""
    path = as_path(url)
    return file_system_of(path) is None and path.exists() and not (path.is_file() or path.is_dir())


def read_json(url: str | Path) -> Any:
    """Return the JSON value in a file (`parse_json`), also with NaN: files of this project have it for losses and norms."""
    if has_no_end(url):
        raise ValueError("expected a file, found a pipe, a socket or a device")
    return parse_json(as_path(url).read_bytes(), allows_nan=True)


def read_yaml(path: Path) -> Any:
    """Parse YAML by libyaml if possible: Python's parser is ten times slower."""
    import yaml

    return yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def put_file(path: Path, url: str | Path) -> None:
    """Upload a local file to a store, without another copy. Raises OSError if the store rejected it twice."""
    store = file_system_of(url)
    assert store is not None, "for a store"
    file_system, name = store
    with open(path, "rb") as file:
        opened, size = f"/dev/fd/{file.fileno()}", os.fstat(file.fileno()).st_size
        for is_last in (False, True):
            try:
                if "gs" not in file_system.protocol:
                    file_system.put_file(opened, name)
                elif size >= PUT_CHUNK_BYTES:
                    file_system.put_file(opened, name, chunksize=PUT_CHUNK_BYTES)
                else:
                    file.seek(0)
                    content = file.read()
                    options: dict[str, Any] = {"chunksize": size} if (b"--==0==" in content or content.endswith(b"\r")) else {}
                    file_system.pipe_file(name, content, **options)
                return
            except Exception as error:  # each store has other error types
                if not is_last:
                    if isinstance(error, FileNotFoundError):
                        raise  # the bucket does not exist: a second request does not help
                    continue
                from gcsfs.retry import ChecksumError

                at = file_system.unstrip_protocol(name)
                if isinstance(error, ChecksumError):
                    with cleaning_up(at):
                        file_system.rm_file(name)
                raise OSError(f"{at}: the store did not take the file, also when asked again: {error}") from error


class StoreEntry(NamedTuple):
    """A store's record of a file."""

    size_bytes: int | None
    digest: str | None  # of the content, with its kind: `md5:…`, `sha256:…`, `git:…`, `crc32c:…`. None if the store has none
    signature: tuple[str, ...]  # digest, generation or strong ETag, and size, which change with the content. Empty if the store has none


def store_entry(url: str | Path) -> StoreEntry | None:
    """Return the store's record of a file, or None for a file on this machine. A time or a size does not identify content."""
    store = file_system_of(url)
    return None if store is None else entry_of(store[0].info(store[1]))


def entry_of(info: Mapping[str, Any]) -> StoreEntry:
    """Return the record in fsspec's `info` of a file."""
    digest = None
    if info.get("md5Hash"):
        digest = f"md5:{b64decode(info['md5Hash']).hex()}"
    elif info.get("crc32c"):  # a composite object has no MD5
        digest = f"crc32c:{b64decode(info['crc32c']).hex()}"
    elif info.get("lfs"):
        digest = f"sha256:{info['lfs']['sha256']}"
    elif info.get("blob_id"):
        digest = f"git:{info['blob_id']}"
    etag = str(info.get("ETag") or info.get("etag") or "W/")
    version = f"generation:{info['generation']}" if info.get("generation") else "" if etag.startswith("W/") else f"etag:{etag}"
    signature = tuple(text for text in (digest, version) if text)
    size = info.get("size")
    return StoreEntry(None if size is None else int(size), digest, (*signature, str(size)) if signature else ())


@contextmanager
def cleaning_up(url: str | Path, say: Callable[[str], None] = LOGGER.info) -> Iterator[None]:
    """Suppress and report errors of a block that deletes only unneeded files: if the store or folder refuses, the files stay."""
    try:
        yield
    except Exception as error:  # each store has other error types
        if not isinstance(error, FileNotFoundError):
            warn_undeleted(url, error, say)


def warn_undeleted(url: str | Path, error: Exception, say: Callable[[str], None] = LOGGER.info) -> None:
    """Report unneeded files that stay: once for each bucket, and once for this machine's folders."""
    store = file_system_of(url)
    place = str(url) if store is None else store[0].unstrip_protocol(store[1].partition("/")[0])
    if (key := "" if store is None else place) not in _warned:
        _warned.add(key)
        reason = " ".join(str(error).split())
        say(f"warning: {place} does not let files be deleted ({reason}): those that nothing needs any more stay there.")


def remove_strays(folder: str | Path, keep: Collection[str]) -> None:
    """Delete all files directly in the folder that are not in `keep`. No other process may write in the folder."""
    try:
        found = list(as_path(folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):  # stores raise the second for a folder without objects
        return
    for path in found:
        if path.name and path.name not in keep and path.is_file():
            with cleaning_up(path):
                remove(path)


def remove(url: str | Path) -> None:
    """Delete a file, if it exists."""
    store = file_system_of(url)
    with suppress(FileNotFoundError):
        if store is None:
            as_path(url).unlink()
        else:
            store[0].rm_file(store[1])
