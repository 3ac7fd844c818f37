"""From a source to its files: globs are expanded to names first, and what is judged is the names."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tasks.data.formats.findings import Reason
from tasks.data.source import Source
from trainer.data.manifest import SourceFile
from trainer.errors import DataError
from trainer.storage import content_digest

DIGEST_THREADS = 8


@dataclass(frozen=True)
class RejectedFile:
    """A file that matches but must not be read."""

    name: str
    reason: Reason


@dataclass(frozen=True)
class Expanded:
    """What a source's globs select now: name relative to the source's URL → URL, sorted by name, and what was turned away."""

    files: dict[str, str]
    rejected: tuple[RejectedFile, ...] = ()


@dataclass(frozen=True)
class Listing:
    """A source's files with their digests."""

    files: tuple[SourceFile, ...]
    rejected: tuple[RejectedFile, ...] = ()


def expand(source: Source) -> Expanded:
    """The files that the source selects.

    Raises:
        DataError: no file matches (a component must not vanish in silence), or they cannot be listed.
    """
    try:
        file_system, root = fsspec.core.url_to_fs(source.root)
        file_system.invalidate_cache()  # what was listed before may have changed since
        found = _names(file_system, root, source)
    except DataError:
        raise
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"the files under {source.root} cannot be listed: {type(error).__name__}: {error}") from error
    selected = {name: path for name, path in sorted(found.items()) if selects(source, name)}
    if not selected:
        raise DataError(f"no file under {source.root} matches {', '.join(source.include)}: a component needs at least one.")
    rejected = [RejectedFile(name, reason) for name, path in selected.items() if (reason := _reason_against(file_system, root, path))]
    turned_away = {file.name for file in rejected}
    is_local = isinstance(file_system, LocalFileSystem)  # a path stays as it is: in a file:// URL some characters would be escapes
    urls = {
        name: path if is_local else str(file_system.unstrip_protocol(path)) for name, path in selected.items() if name not in turned_away
    }
    return Expanded(urls, tuple(rejected))


def fingerprint(source: Source) -> Listing:
    """Every file that the source selects, with its size and the digest of its content.

    Raises:
        DataError: as `expand`, or a file went away or cannot be read.
    """
    expanded = expand(source)
    with ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="fingerprint") as pool:
        files = tuple(pool.map(_fingerprint, expanded.files.items()))
    return Listing(files, expanded.rejected)


def _listed(url: str) -> list[str]:
    """The paths in a listing."""
    with fsspec.open(url, "rt", encoding="utf-8", compression="infer") as lines:
        return [line.strip() for line in lines if line.strip()]  # pyright: ignore[reportGeneralTypeIssues]  # fsspec's OpenFile is a file once entered


def selects(source: Source, name: str) -> bool:
    """Whether the source's globs select a file of this name."""
    hidden = any(part.startswith(".") for part in name.split("/"))
    included = any(fnmatch(name, glob) for glob in source.include)
    return included and not hidden and not any(fnmatch(name, glob) for glob in source.exclude)


def _fingerprint(file: tuple[str, str]) -> SourceFile:
    name, url = file
    try:
        size, digest = content_digest(url)
    except OSError as error:
        raise DataError(f"{url} cannot be read: {error.strerror or error}") from error
    return SourceFile(name=name, size_bytes=size, digest=digest)


def _names(file_system: Any, root: str, source: Source) -> dict[str, str]:
    """Name relative to the root → path. Patterns that are plain names are looked up, so that a server without listings will do."""
    if not any(set("*?[") & set(glob) for glob in source.include):
        wanted = {name: f"{root.rstrip('/')}/{name}" for name in source.include}
        if missing := [name for name, path in wanted.items() if not file_system.exists(path)]:
            raise DataError(f"{', '.join(missing[:3])} of {source.root}: no such file ({len(missing)} of {len(wanted)} that are named).")
        return wanted
    if source.listing:
        return {name: f"{root.rstrip('/')}/{name}" for name in _listed(source.listing)}
    found: list[str] = file_system.find(root)
    return {path.removeprefix(root).lstrip("/"): path for path in found}


def _reason_against(file_system: Any, root: str, path: str) -> Reason | None:
    """Why a file on this machine must not be read: a link may lead anywhere, and what it leads to is not under the source's root."""
    if not isinstance(file_system, LocalFileSystem):
        return None
    real = Path(os.path.realpath(path))
    if not real.exists():
        return "broken link"
    return None if real.is_relative_to(os.path.realpath(root)) else "outside the root"
