"""Whole files, written at once or not at all, under any fsspec URL.

On a local file system a file is written under a temporary name and renamed; on an object store an object appears whole or not at all, and
what is written piece by piece is staged on this machine until it is whole.
"""

import fcntl
import json
import logging
import math
import os
import re
import tempfile
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from fsspec import AbstractFileSystem
from upath import UPath

_OWNER = re.compile(r"(?P<before>https?://)[^/@\s]+@|(?P<other>[a-z0-9+.-]+://)[^/@:\s]*:[^/@\s]+@", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<name>[?&][^=&\s]*(?:token|secret|password|passwd|signature|sig|credential|api[_-]?key|accesskeyid)=)[^&\s]+", re.IGNORECASE
)
HIDDEN = "…"


def has_secret(url: str) -> bool:
    """Whether the address carries a name with a password, or a token: `https://NAME:PASSWORD@host/`, `https://host/?token=…`."""
    return bool(_OWNER.search(url) or _QUERY.search(url))


def without_secrets(text: str) -> str:
    """The text with what addresses in it carry left out."""
    hidden = _OWNER.sub(lambda match: f"{match['before'] or match['other']}{HIDDEN}@", text)
    return _QUERY.sub(lambda match: f"{match['name']}{HIDDEN}", hidden)


def check_no_secret(url: str | None, field: str) -> None:
    """Refuse an address that carries a secret: it is written to caches' manifests, reports and cards.

    Raises:
        ValueError: with what to do instead; the secret is not in it.
    """
    if url is not None and has_secret(url):
        raise ValueError(
            f"{field} must not carry a password or a token, found {without_secrets(url)}: it would be written to caches, reports and "
            "cards. Take it out, and give it to fsspec by the environment (FSSPEC_HTTPS, or the store's own variables)"
        )


def try_lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed; False where another holds it. A file opened twice has two locks, in one process as well."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(place: Path, *, wait: bool) -> Iterator[bool]:
    """Lock the file, which is made with its folder; yields False, without `wait`, where another holds it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "a") as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield wait or try_lock(file)


BYTE_ORDER_MARK = "\ufeff"
MAX_DEPTH = 100
STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class _OnlyBrackets(dict[int, str | None]):
    def __missing__(self, _letter: int) -> None:
        return None


ONLY_BRACKETS = _OnlyBrackets({ord(letter): letter for letter in "[]{}"})


def parse_json(content: bytes | str, *, allows_nan: bool = False) -> Any:
    """The JSON value in a text that may come from anybody: each name of an object is there once, and every number is one.

    Raises:
        ValueError: the text is not JSON in UTF-8, an object has a name twice, values are nested deeper than `MAX_DEPTH`, an integer needs
            more than 64 bits, or a number is NaN or infinite and `allows_nan` is False. The message is one line.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected text in UTF-8, found the byte 0x{error.object[error.start]:02x} at {error.start}") from None
    if not text.strip():
        raise ValueError("expected a JSON value, found an empty text")
    if text.startswith(BYTE_ORDER_MARK):
        raise ValueError("expected UTF-8 without a byte order mark, found one: save the file without it")
    nested = STRINGS.sub("", text)
    constant = float if allows_nan else _refuse_constant
    number = float if allows_nan else _finite
    try:
        if nested.count("[") + nested.count("{") > MAX_DEPTH and _is_deeper(nested, MAX_DEPTH):
            raise RecursionError
        return json.loads(text, object_pairs_hook=_named_once, parse_int=_in_64_bits, parse_float=number, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"expected at most {MAX_DEPTH} levels of lists and objects, found more") from None


def _is_deeper(text: str, depth: int) -> bool:
    left = text.translate(ONLY_BRACKETS)
    for _ in range(depth):
        before, left = left, left.replace("[]", "").replace("{}", "")
        if not left or left == before:  # what stays is not JSON, and the parser names the place
            return False
    return True


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, times in counted.items() if times > 1)
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


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected a finite number, found {name}")


LOGGER = logging.getLogger("phasewise")
PUT_CHUNK_BYTES = 2**24

_warned: set[str] = set()

STORE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # What other processes write must be seen here, and the store must confirm the digest of what it took.
    "gs": {"use_listings_cache": False, "consistency": "md5"}
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
    """The JSON value in a file, as `parse_json` reads it. NaN passes: this project's own files state it of losses and norms.

    Raises:
        ValueError: as `parse_json`.
        OSError: there is no such file, or it cannot be read.
    """
    return parse_json(as_path(url).read_bytes(), allows_nan=True)


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
    if info.get("generation"):
        version = f"generation:{info['generation']}"
    else:
        etag = next((str(info[name]) for name in ("ETag", "etag") if info.get(name)), None)
        version = f"etag:{etag}" if etag and not etag.startswith("W/") else None
    signature = tuple(text for text in (digest, version) if text)
    return StoreEntry(None if size is None else int(size), digest, (*signature, str(size)) if signature else ())


@contextmanager
def cleaning_up(url: str | Path, say: Callable[[str], None] = LOGGER.info) -> Iterator[None]:
    """Delete within it only files that nothing needs any more: where the store or the folder refuses, they stay, and one line says so."""
    try:
        yield
    except Exception as error:  # stores have error types of their own
        if not isinstance(error, FileNotFoundError):
            warn_undeleted(url, error, say)


def warn_undeleted(url: str | Path, error: Exception, say: Callable[[str], None] = LOGGER.info) -> None:
    """Say once for each bucket, and once for this machine's folders, that files stay that nothing needs any more."""
    store = file_system_of(url)
    place = str(url) if store is None else store[0].unstrip_protocol(store[1].partition("/")[0])
    if (key := "" if store is None else place) not in _warned:
        _warned.add(key)
        reason = " ".join(str(error).split())
        say(f"warning: {place} does not let files be deleted ({reason}): those that nothing needs any more stay there.")


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
            with cleaning_up(path):
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
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):  # a write to an open file names none
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _put(file_system: AbstractFileSystem, name: str, staged: IO[bytes]) -> None:
    try:
        _put_once(file_system, name, staged)
    except FileNotFoundError:
        raise  # there is no such bucket: asking again does not help
    except Exception:  # stores have error types of their own
        try:
            _put_once(file_system, name, staged)
        except Exception as error:
            from gcsfs.retry import ChecksumError

            if isinstance(error, ChecksumError):
                with cleaning_up(file_system.unstrip_protocol(name)):
                    file_system.rm_file(name)
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
        options: dict[str, Any] = {"chunksize": size} if (b"--==0==" in content or content.endswith(b"\r")) else {}
        file_system.pipe_file(name, content, **options)


def _vouched_for(info: Mapping[str, Any]) -> str | None:
    if info.get("md5Hash"):
        return f"md5:{b64decode(info['md5Hash']).hex()}"
    if info.get("crc32c"):  # an object that was composed of others has no MD5
        return f"crc32c:{b64decode(info['crc32c']).hex()}"
    if info.get("lfs"):
        return f"sha256:{info['lfs']['sha256']}"
    if info.get("blob_id"):
        return f"git:{info['blob_id']}"
    return None
