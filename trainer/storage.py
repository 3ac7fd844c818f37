"""Whole files, written at once or not at all, under any fsspec URL.

On a local file system a file is written under a temporary name and renamed; on an object store an object appears whole or not at all.
"""

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


def write_atomically(url: str | Path, content: bytes) -> None:
    """Write `content` so that a reader, or a kill at any moment, finds the old file or the new one and nothing between."""
    file_system, path = fsspec.core.url_to_fs(str(url))
    if not isinstance(file_system, LocalFileSystem):
        file_system.pipe_file(path, content)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(url: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(url, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(url: str | Path) -> Any:
    """The JSON value in the file."""
    with fsspec.open(str(url), "rb") as file:
        return json.load(file)  # pyright: ignore[reportArgumentType]  # fsspec's OpenFile is a file once entered


def digest_of_bytes(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_of_json(value: Any) -> str:
    """SHA-256 of the canonical JSON form: sorted keys, no spaces. Equal values have equal digests."""
    return digest_of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def digest_of_file(path: str | Path) -> str:
    """SHA-256 of a local file's content, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
