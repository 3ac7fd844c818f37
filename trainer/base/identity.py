"""Identity: the one place that makes digests of content and compares them.

A JSON file that is a result carries its seal: the digest of all its other fields. `read_sealed` refuses a file whose fields are not those
that were written. Which result it is – of which run, key or subject – is among the fields, so that its reader also finds another file in
its place. A folder of files is sealed by a sealed JSON file that names the digest of each.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path, read_json, store_entry, write_json

READ_BYTES = 2**22
SEAL = "digest"
"""The field of a sealed file that holds the digest of the others."""


class NotAsWritten(ValueError):
    """A file's content is not what was written to it."""


def digest_of_bytes(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_of_json(value: Any) -> str:
    """SHA-256 of the canonical JSON form: sorted keys, no spaces. Equal values have equal digests."""
    return digest_of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def digest_of_file(url: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal, read in pieces."""
    return _read_through(as_path(url))[1]


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


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with their seal, in place of one that they have."""
    fields = {name: field for name, field in value.items() if name != SEAL}
    return {**fields, SEAL: digest_of_json(fields)}


def write_sealed(url: str | Path, value: Mapping[str, Any]) -> None:
    """Write the fields with their seal as indented JSON, atomically."""
    write_json(url, sealed(value))


def read_sealed(url: str | Path, *, may_lack_seal: bool = False) -> dict[str, Any]:
    """The fields of a sealed file, without the seal.

    Args:
        may_lack_seal: earlier versions wrote such files without a seal, and the file is still accepted.

    Raises:
        FileNotFoundError: the file is missing.
        NotAsWritten: the file was changed, or has no seal.
    """
    try:
        content = read_json(url)
    except (ValueError, RecursionError) as error:
        raise NotAsWritten(f"{url} was changed after it was written: it is not JSON any more ({error})") from None
    return unsealed(content, url, may_lack_seal=may_lack_seal)


def unsealed(content: Any, place: str | Path, *, may_lack_seal: bool = False) -> dict[str, Any]:
    """As `read_sealed`, of a file's content."""
    if not isinstance(content, dict):
        raise NotAsWritten(f"{place} was changed after it was written: it is not a JSON object")
    fields = cast(dict[str, Any], content)
    if SEAL not in fields and may_lack_seal:
        return fields
    rest = {name: value for name, value in fields.items() if name != SEAL}
    if SEAL not in fields:
        raise NotAsWritten(f"{place} has no {SEAL} of its own fields: an earlier version wrote it, or it was changed")
    if fields[SEAL] != digest_of_json(rest):
        raise NotAsWritten(f"{place} was changed after it was written: its fields do not have the {SEAL} that it names")
    return rest


def check_file(path: Path, digest: str, remedy: str) -> None:
    """Refuse a file that is missing or has other content than its digest.

    Raises:
        DataError: with the file and the remedy.
    """
    found = digest_of_file(path) if path.exists() else "nothing"
    if found != digest:
        raise DataError(f"{path} was changed after it was written: expected the digest {digest[:16]}, found {found[:16]}. {remedy}")


def _read_through(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return size_and_digest(cast(BinaryIO, file))
