"""From the globs of a source to its files. A glob is first expanded to names, and the filters see only names."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import Field

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.findings import Reason
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.streams import is_packed
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import StoreEntry, as_path, check_reader, entry_of, store_entry
from phasewise.trainer.data.manifest import SourceFile

MARGIN = 1.25  # tokens read for each token drawn, because file sizes vary and filters and copies remove documents
PLAIN_BYTES_A_TOKEN = 5.0  # assumed for a text file: about 4.4 bytes of English with a vocabulary of 128,000, and the JSON around the text
PACKING = {"packed": 2.5, "parquet": 2.0, "plain": 1.0}  # assumed ratio of text size to file size
TRAIN_SHARE = 15 / 16
DIGEST_THREADS = 8
PARTS_PER_COMPONENT, MIN_PART_BYTES, MAX_PART_BYTES = 64, 4 << 20, 256 << 20


class Budget(Frozen):
    """The part of a component's files that is read."""

    tokens: int = Field(gt=0)  # requested number of tokens to train on
    files: int = Field(gt=0)  # files, bytes: chosen for these tokens. `of_files` and `of_bytes` are the totals of the source.
    of_files: int = Field(gt=0)
    bytes: int = Field(ge=0)
    of_bytes: int = Field(ge=0)
    part_bytes: int = Field(gt=0)  # text bytes of a part of the documents, by the whole source: a larger budget has the same parts

    @property
    def words(self) -> str:
        """The chosen files and bytes in words."""
        return f"{self.files:,} of {self.of_files:,} files, {self.bytes / 1e9:,.2f} of {self.of_bytes / 1e9:,.2f} GB"


class Budgeted(Source):
    """A source that is read in part. Manifests include the budget."""

    budget: Budget


def choose(source: Source, sizes: Mapping[str, int], tokens: int) -> tuple[tuple[str, ...], Budget | None]:
    """The files with about `tokens` training tokens, in reading order. If all files are needed: by name, without a budget."""
    order = sorted(sizes, key=lambda name: (digest_of_bytes(name.encode()), name))
    chosen: list[str] = []
    found = 0.0
    for name in order:
        if found >= tokens:
            break
        chosen.append(name)
        found += assumed_tokens(source, name, sizes[name])
    if len(chosen) == len(order):
        return tuple(sorted(sizes)), None
    everything = [SourceFile(name=name, size_bytes=size, digest="") for name, size in sizes.items()]
    budget = Budget(
        tokens=tokens,
        files=len(chosen),
        of_files=len(order),
        bytes=sum(sizes[name] for name in chosen),
        of_bytes=sum(sizes.values()),
        part_bytes=part_bytes(everything),
    )
    return tuple(chosen), budget


def part_bytes(files: Iterable[SourceFile]) -> int:
    """The text bytes of a part: enough parts to share the work, and few enough files. Only the sources decide, never the machine."""
    return min(MAX_PART_BYTES, max(MIN_PART_BYTES, sum(file.size_bytes for file in files) // PARTS_PER_COMPONENT))


def assumed_tokens(source: Source, name: str, size_bytes: int) -> float:
    """The estimated training tokens of a file."""
    packing = "parquet" if source.format == "parquet" else "packed" if is_packed(name) else "plain"
    return TRAIN_SHARE * size_bytes * PACKING[packing] / PLAIN_BYTES_A_TOKEN


def shared(needs: Mapping[str, int], max_tokens: int | None) -> dict[str, int]:
    """Component → token budget: the need with a margin, or a share of `max_tokens`."""
    if max_tokens is None:
        return {name: max(1, round(MARGIN * need)) for name, need in needs.items()}
    total = sum(needs.values())
    return {name: max(1, round(max_tokens * need / total)) for name, need in needs.items()}


@dataclass(frozen=True)
class RejectedFile:
    """A selected file that must not be read. Its name is escaped for printing."""

    name: str
    reason: Reason


@dataclass(frozen=True)
class Expanded:
    """The current selection of a source's globs."""

    files: dict[str, str]  # name relative to the source's URL → URL, sorted by name
    rejected: tuple[RejectedFile, ...] = ()
    excluded: tuple[str, ...] = ()  # names that match `include` and `exclude`
    entries: Mapping[str, StoreEntry] = field(default_factory=dict[str, StoreEntry], compare=False)  # by name, of a store's listing


@dataclass(frozen=True)
class Listing:
    """The files of a source. `excluded`: names that match `include` and `exclude`. `budget`: None if the source is read completely."""

    files: tuple[SourceFile, ...]
    rejected: tuple[RejectedFile, ...] = ()
    excluded: tuple[str, ...] = ()
    budget: Budget | None = None


def at_commit(source: Source) -> Source:
    """Replace the branch or tag of a data set on the hub by its commit. Raises DataError if it is missing, private or unavailable."""
    if not source.url.startswith("hf://"):
        return source
    try:
        file_system, root = fsspec.core.url_to_fs(source.root)
        file_system.invalidate_cache()  # the cache includes missing files
        commit = file_system.commit_of(root)
    except Exception as error:  # file systems raise many types of errors
        raise DataError(f"{source.root} cannot be listed: {type(error).__name__}: {error}") from error
    return source.but(revision=commit) if commit else source


def expand(source: Source) -> Expanded:
    """Select the files of a source. Raises DataError if a glob selects no file, ConfigError without the package for the URL."""
    check_reader(source.root)
    try:
        file_system, root = fsspec.core.url_to_fs(source.root)
        file_system.invalidate_cache()
        is_local = isinstance(file_system, LocalFileSystem)
        prefix, infos = root.rstrip("/"), dict[str, dict[str, Any]]()
        globs = {glob.removeprefix("./") for glob in source.include}
        plain = {name: f"{prefix}/{name}" for name in sorted(globs) if not set("*?[") & set(name)}
        if len(plain) == len(globs):  # a server without listings is sufficient
            if missing := [name for name, path in plain.items() if not file_system.exists(path)]:
                raise DataError(
                    f"{', '.join(missing[:3])} of {source.root}: no such file ({len(missing)} of {len(plain)} names are missing)."
                )
            found = plain
        elif source.listing:
            with fsspec.open(source.listing, "rt", encoding="utf-8", compression="infer") as lines:
                listed = [line.strip() for line in lines]  # pyright: ignore[reportGeneralTypeIssues]  # fsspec's OpenFile is a file inside `with`
            found = {name: f"{prefix}/{name}" for name in listed if name}
        elif is_local:
            named = {name: path for name, path in plain.items() if os.path.lexists(path)}  # hidden, or in a linked folder
            found = {**{path.removeprefix(root).lstrip("/"): path for path in _walk(root)}, **named}
        else:
            infos = file_system.find(root, detail=True)
            found = {path.removeprefix(root).lstrip("/"): path for path in infos}
    except DataError:
        raise
    except Exception as error:  # file systems raise many types of errors
        raise DataError(f"the files under {source.root} cannot be listed: {type(error).__name__}: {error}") from error
    selected = {name: path for name, path in sorted(found.items()) if selects(source, name)}
    if not selected:
        raise DataError(f"no file under {source.root} matches {', '.join(source.include)}: a component needs at least one file.")
    if idle := [glob for glob in source.include if not any(_includes(glob, name) for name in selected)]:
        raise DataError(
            f"include {', '.join(glob.removeprefix('./') for glob in idle[:3])} matches no file under {source.root} that is not excluded "
            f"({len(idle)} of {len(source.include)} entries). Correct or remove these entries."
        )
    real: Callable[[str], str] = cache(lambda path: os.path.realpath(path))  # it asks for every part of a path
    reasons: dict[str, Reason | None] = {name: _reason_against(file_system, root, name, path, real) for name, path in selected.items()}
    urls = selected if is_local else {name: str(file_system.unstrip_protocol(path)) for name, path in selected.items()}
    return Expanded(
        {name: url for name, url in urls.items() if reasons[name] is None},  # a local path stays a path: a file:// URL has escapes
        tuple(RejectedFile(printable(name), reason) for name, reason in reasons.items() if reason is not None),
        tuple(printable(name) for name in sorted(found) if name not in selected and any(_includes(glob, name) for glob in source.include)),
        {name: entry_of(infos[path]) for name, path in selected.items() if path in infos},
    )


def fingerprint(source: Source, known: KnownDigests | None = None, tokens: int | None = None) -> Listing:
    """List the selected files of a source with size and content digest.

    `known`: digests of earlier readings. A file with a known digest is not read. `tokens`: a budget of training tokens. None lists all
    files. Raises DataError as `expand`, or a file is missing or unreadable, or a server does not report a file's size.
    """
    expanded = expand(source)
    known = known or KnownDigests()

    def look_at(name: str, *, reads: bool) -> SourceFile:
        url, digest = expanded.files[name], ""
        try:
            entry = expanded.entries.get(name) or store_entry(url)
            size = as_path(url).stat().st_size if entry is None else entry.size_bytes
            if reads and size is None:
                raise ValueError("the server does not report its size")
            if reads:
                size, digest = known.content(url, entry)
        except ValueError as error:  # also fsspec's error for a server without byte ranges or sizes
            raise DataError(
                f"{url} cannot be read ({error}): its server must support byte ranges and report file sizes. Copy the file."
            ) from error
        except Exception as error:  # file systems raise many types of errors
            reason = error.strerror if isinstance(error, OSError) else None
            raise DataError(f"{url} cannot be read: {reason or f'{type(error).__name__}: {error}'}") from error
        if size is None:
            raise DataError(f"{url}: a budget needs the sizes of all files, and the server does not report this size.")
        return SourceFile(name=name, size_bytes=size, digest=digest)

    budget = None
    with ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="fingerprint") as pool:
        names = tuple(expanded.files)
        if tokens is not None:
            sizes = {file.name: file.size_bytes for file in pool.map(partial(look_at, reads=False), names)}
            names, budget = choose(source, sizes, tokens) if sizes else (names, None)
        files = tuple(pool.map(partial(look_at, reads=True), names))
    return Listing(files, expanded.rejected, expanded.excluded, budget)


def selects(source: Source, name: str) -> bool:
    """Whether the source's globs select a file of this name."""
    return any(_includes(glob, name) for glob in source.include) and not any(matches(glob, name) for glob in source.exclude)


def _includes(glob: str, name: str) -> bool:
    """Whether an `include` glob selects a name. Hidden files need their full name."""
    return name == glob.removeprefix("./") or (not _is_hidden(name) and matches(glob, name))


def matches(glob: str, name: str) -> bool:
    """Match as `fnmatch`: a star crosses folders. A leading `**/` also matches no folder, and a leading `./` is ignored."""
    glob = glob.removeprefix("./")
    return fnmatch(name, glob) or (glob.startswith("**/") and matches(glob[3:], name))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _walk(root: str) -> Iterator[str]:
    """Every local file under a folder, except in hidden folders.

    Unlike fsspec's walk, it raises for unreadable folders and follows linked folders, unless another path already leads to their files. A
    link out of the root is followed, and the files are then rejected by name.
    """
    if not os.path.isdir(root):
        return
    real_root = os.path.realpath(root)
    links: dict[str, str] = {}  # folder behind a link → this link
    entered: set[tuple[str, str]] = set()  # link and real folder behind it, because links may form circles

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, followlinks=True, onerror=fail):
        inner, folders[:] = sorted(name for name in folders if not _is_hidden(name)), []
        for name in inner:
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if real != os.path.join(real_root, os.path.relpath(path, root)):
                links[path] = links.get(folder, path)
                is_met_directly = Path(real).is_relative_to(real_root) and not _is_hidden(os.path.relpath(real, real_root))
                if is_met_directly or (links[path], real) in entered:
                    continue
                entered.add((links[path], real))
            folders.append(name)
        yield from (os.path.join(folder, name) for name in sorted(files))


def _reason_against(file_system: Any, root: str, name: str, path: str, real_path: Callable[[str], str]) -> Reason | None:
    """Why a file must not be read: its name fits no URL, or a local path leads out of the root or is not a regular file."""
    if "::" in name or printable(name) != name:  # fsspec reads `::` as a chain of file systems
        return "name not readable"
    if not isinstance(file_system, LocalFileSystem):
        return None
    is_link = os.path.islink(path)
    real = Path(real_path(path)) if is_link else Path(real_path(os.path.dirname(path)), os.path.basename(path))
    real_root = Path(real_path(root))
    if not real.exists():
        return "broken link"
    # In a Hub cache NAME/snapshots/COMMIT/… is a link to NAME/blobs/DIGEST
    is_blob = real.parent.name == "blobs" and real.parent.parent / "snapshots" in (real_root, *real_root.parents) and is_link
    if not real.is_relative_to(real_root) and not is_blob:
        return "outside the root"
    return None if stat.S_ISREG(real.stat().st_mode) else "no regular file"


def printable(name: str) -> str:
    """The name with escapes for bytes that are not UTF-8."""
    return name.encode(errors="backslashreplace").decode()
