"""From a source to its files: globs are expanded to names first, and what is judged is the names."""

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import Field

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.findings import Reason
from phasewise.tasks.data.parts import Bundle, part_bytes
from phasewise.tasks.data.reading import pieces_of
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.streams import is_packed
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import StoreEntry, as_path, entry_of, store_entry
from phasewise.trainer.data.manifest import SourceFile

MARGIN = 1.25
"""By default so much more is read than is drawn: files differ, filters and copies take some away."""
PLAIN_BYTES_A_TOKEN = 5.0
"""Of a file of text: about 4.4 bytes of English a token of a vocabulary of 128,000, and what JSON puts around them."""
PACKING = {"packed": 2.5, "parquet": 2.0, "plain": 1.0}
"""By how much a file is smaller than its text, assumed."""
TRAIN_SHARE = 15 / 16
"""One document in sixteen is held out."""
DIGEST_THREADS = 8


class Budget(Frozen):
    """What of a component is read.

    Attributes:
        tokens: to train on, which were asked for.
        files, bytes: what was chosen for them; `of_files`, `of_bytes` what the source has.
        part_bytes: how much text a part of the documents holds: that of the whole source, so that a larger budget has the same parts.
    """

    tokens: int = Field(gt=0)
    files: int = Field(gt=0)
    of_files: int = Field(gt=0)
    bytes: int = Field(ge=0)
    of_bytes: int = Field(ge=0)
    part_bytes: int = Field(gt=0)

    @property
    def words(self) -> str:
        """How much of how much."""
        return f"{self.files:,} of {self.of_files:,} files, {self.bytes / 1e9:,.2f} of {self.of_bytes / 1e9:,.2f} GB"


class Budgeted(Source):
    """A source of which a part is read. Manifests say so: `described` has the budget."""

    budget: Budget


def budgeted(source: Source, budget: Budget | None) -> Source:
    """The source with its budget; itself where all of it is read."""
    return source if budget is None else Budgeted.model_validate({**source.model_dump(), "budget": budget.model_dump()})


def choose(source: Source, sizes: Mapping[str, int], tokens: int) -> tuple[tuple[str, ...], Budget | None]:
    """The files that hold about so many tokens to train on, in the order in which they are read; None with all of them, sorted by name.

    Args:
        sizes: file → bytes, of all that the source selects.
    """
    order = sorted(sizes, key=lambda name: (digest_of_bytes(name.encode()), name))
    chosen, found = list[str](), 0.0
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


def assumed_tokens(source: Source, name: str, size_bytes: int) -> float:
    """Tokens to train on that a file of this size is taken to hold."""
    return TRAIN_SHARE * size_bytes * PACKING[_packing(source, name)] / PLAIN_BYTES_A_TOKEN


def bundles_by_piece(component: str, source: Source, files: tuple[SourceFile, ...]) -> tuple[Bundle, ...]:
    """A bundle a piece, so that what is read for more files begins with the bundles of fewer."""
    return tuple(Bundle(component, source, (piece,), number) for number, piece in enumerate(pieces_of(source, files)))


def shared(needs: Mapping[str, int], max_tokens: int | None) -> dict[str, int]:
    """Component → tokens that are asked for: its need with a margin, or, of so many in all, its share of what all need."""
    if max_tokens is None:
        return {name: max(1, round(MARGIN * need)) for name, need in needs.items()}
    total = sum(needs.values())
    return {name: max(1, round(max_tokens * need / total)) for name, need in needs.items()}


def _packing(source: Source, name: str) -> str:
    if source.format == "parquet":
        return "parquet"
    return "packed" if is_packed(name) else "plain"


@dataclass(frozen=True)
class RejectedFile:
    """A file that matches but must not be read. What cannot be printed of its name is escaped."""

    name: str
    reason: Reason


@dataclass(frozen=True)
class Expanded:
    """What a source's globs select now: name relative to the source's URL → URL, sorted by name, what was turned away, what is excluded.

    Attributes:
        entries: what the store said of the files in its listing, by name; nothing of this machine's.
    """

    files: dict[str, str]
    rejected: tuple[RejectedFile, ...] = ()
    excluded: tuple[str, ...] = ()
    entries: Mapping[str, StoreEntry] = field(default_factory=dict[str, StoreEntry], compare=False)


@dataclass(frozen=True)
class Listing:
    """A source's files with their digests. `excluded`: the names that `include` takes and `exclude` leaves out.

    Attributes:
        budget: what of the source was chosen; None where all of it is read.
    """

    files: tuple[SourceFile, ...]
    rejected: tuple[RejectedFile, ...] = ()
    excluded: tuple[str, ...] = ()
    budget: Budget | None = None


def at_commit(source: Source) -> Source:
    """The same source with the commit that a data set of the hub is at now in place of its branch, tag or short name; any other as it is.

    What is listed, read and checked again later is then of one commit, whoever moves the branch meanwhile.

    Raises:
        DataError: there is no such data set or revision, it may not be read, or the hub does not say.
    """
    if not source.url.startswith("hf://"):
        return source
    try:
        file_system, root = fsspec.core.url_to_fs(source.root)
        file_system.invalidate_cache()  # it remembers what was not there, too
        commit = file_system.commit_of(root)
    except Exception as error:  # as below
        raise DataError(f"{source.root} cannot be listed: {type(error).__name__}: {error}") from error
    return source.but(revision=commit) if commit else source


def expand(source: Source) -> Expanded:
    """The files that the source selects.

    Raises:
        DataError: a glob selects no file (no part of a component may vanish unsaid), or the files cannot be listed.
    """
    try:
        file_system, root = fsspec.core.url_to_fs(source.root)
        file_system.invalidate_cache()  # what was listed before may have changed since
        found, infos = _names(file_system, root, source)
    except DataError:
        raise
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"the files under {source.root} cannot be listed: {type(error).__name__}: {error}") from error
    selected = {name: path for name, path in sorted(found.items()) if selects(source, name)}
    _check_every_glob_selects(source, selected)
    reasons: dict[str, Reason | None] = {name: _reason_against(file_system, root, name, path) for name, path in selected.items()}
    is_local = isinstance(file_system, LocalFileSystem)  # a path stays as it is: in a file:// URL some characters would be escapes
    urls = {name: path if is_local else str(file_system.unstrip_protocol(path)) for name, path in selected.items() if reasons[name] is None}
    rejected = [RejectedFile(printable(name), reason) for name, reason in reasons.items() if reason is not None]
    excluded = (printable(name) for name in sorted(found) if name not in selected and any(_takes(glob, name) for glob in _globs(source)))
    entries = {name: entry_of(infos[path]) for name, path in selected.items() if path in infos}
    return Expanded(urls, tuple(rejected), tuple(excluded), entries)


def fingerprint(source: Source, known: KnownDigests | None = None, tokens: int | None = None) -> Listing:
    """Every file that the source selects, or as many as a budget asks for, with its size and the digest of its content.

    Args:
        known: what is known already is not read; None knows nothing.
        tokens: of a budget: about so many to train on; None is everything.

    Raises:
        DataError: as `expand`, or a file went away or cannot be read, or a server does not say how large it is.
    """
    expanded = expand(source)
    known = known or KnownDigests()
    budget = None
    with ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="fingerprint") as pool:
        names = tuple(expanded.files)
        if tokens is not None and names:
            sizes = dict(zip(names, pool.map(partial(_size, expanded), names), strict=True))
            names, budget = choose(source, sizes, tokens)
        files = tuple(pool.map(partial(_fingerprint, known, expanded), names))
    return Listing(files, expanded.rejected, expanded.excluded, budget)


def _listed(url: str) -> list[str]:
    with fsspec.open(url, "rt", encoding="utf-8", compression="infer") as lines:
        return [line.strip() for line in lines if line.strip()]  # pyright: ignore[reportGeneralTypeIssues]  # fsspec's OpenFile is a file once entered


def selects(source: Source, name: str) -> bool:
    """Whether the source's globs select a file of this name."""
    return any(_takes(glob, name) for glob in _globs(source)) and not any(matches(glob, name) for glob in source.exclude)


def _takes(glob: str, name: str) -> bool:
    return name == glob or (not _is_hidden(name) and matches(glob, name))


def matches(glob: str, name: str) -> bool:
    """As `fnmatch`, where a star crosses folders; a leading `**/` stands for no folder, too, and a leading `./` for nothing."""
    glob = glob.removeprefix("./")
    return fnmatch(name, glob) or (glob.startswith("**/") and matches(glob[3:], name))


def _globs(source: Source) -> tuple[str, ...]:
    return tuple(glob.removeprefix("./") for glob in source.include)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _check_every_glob_selects(source: Source, selected: Collection[str]) -> None:
    if not selected:
        raise DataError(f"no file under {source.root} matches {', '.join(source.include)}: a component needs at least one.")
    if idle := [glob for glob in _globs(source) if not any(_takes(glob, name) for name in selected)]:
        raise DataError(
            f"include {', '.join(idle[:3])} matches no file under {source.root} that is not excluded "
            f"({len(idle)} of {len(source.include)} entries): correct or remove what selects nothing."
        )


def _size(expanded: Expanded, name: str) -> int:
    url = expanded.files[name]
    try:
        entry = expanded.entries.get(name) or store_entry(url)
        size = as_path(url).stat().st_size if entry is None else entry.size_bytes
    except Exception as error:  # each file system has errors of its own
        raise _unreadable(url, error) from error
    if size is None:
        raise DataError(f"{url}: its server does not say how large it is, and a budget chooses files by their sizes.")
    return size


def _fingerprint(known: KnownDigests, expanded: Expanded, name: str) -> SourceFile:
    url = expanded.files[name]
    try:
        entry = expanded.entries.get(name) or store_entry(url)
        if entry is not None and entry.size_bytes is None:
            raise ValueError("its size is not said")
        size, digest = known.content(url, entry)
    except Exception as error:  # as above
        raise _unreadable(url, error) from error
    return SourceFile(name=name, size_bytes=size, digest=digest)


def _unreadable(url: str, error: Exception) -> DataError:
    """What a file system failed with. fsspec's ValueError: a server gives no part of a file, or does not say how large it is."""
    if isinstance(error, ValueError):
        return DataError(
            f"{url} cannot be read ({error}): its server must give files in parts, and say how large they are. Copy it elsewhere."
        )
    said = error.strerror if isinstance(error, OSError) else None
    return DataError(f"{url} cannot be read: {said or f'{type(error).__name__}: {error}'}")


def _names(file_system: Any, root: str, source: Source) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Name relative to the root → path, and path → what a store says of it in its listing.

    Patterns that are plain names are looked up, so that a server without listings will do.
    """
    globs = _globs(source)
    plain = {name: f"{root.rstrip('/')}/{name}" for name in globs if not set("*?[") & set(name)}
    if len(plain) == len(set(globs)):
        if missing := [name for name, path in plain.items() if not file_system.exists(path)]:
            raise DataError(f"{', '.join(missing[:3])} of {source.root}: no such file ({len(missing)} of {len(plain)} that are named).")
        return plain, {}
    if source.listing:
        return {name: f"{root.rstrip('/')}/{name}" for name in _listed(source.listing)}, {}
    if isinstance(file_system, LocalFileSystem):
        looked_up = {name: path for name, path in plain.items() if os.path.lexists(path)}  # hidden, or in a linked folder
        return {**{path.removeprefix(root).lstrip("/"): path for path in _walk(root)}, **looked_up}, {}
    infos: dict[str, dict[str, Any]] = file_system.find(root, detail=True)
    return {path.removeprefix(root).lstrip("/"): path for path in infos}, infos


def _walk(root: str) -> Iterator[str]:
    """Every file under a folder of this machine, but those in hidden folders.

    fsspec's own walk says nothing of a linked folder or one that it may not list. Here a linked folder is left out only where its files
    are met by their own names. One that leads out of the root is entered, so that its files can be turned away by name.
    """
    if not os.path.isdir(root):
        return
    real_root = os.path.realpath(root)
    links: dict[str, str] = {}  # a folder that is not where its name says → the link through which it was entered
    entered: set[tuple[str, str]] = set()  # link, and the real path of a folder behind it: each once, links may go in circles

    def is_entered(folder: str, name: str) -> bool:
        path = os.path.join(folder, name)
        real = os.path.realpath(path)
        own = os.path.relpath(real, real_root)
        if _is_hidden(name) or real == os.path.join(real_root, os.path.relpath(path, root)):
            return not _is_hidden(name)
        links[path] = links.get(folder, path)
        if (links[path], real) in entered or (Path(real).is_relative_to(real_root) and not _is_hidden(own)):
            return False
        entered.add((links[path], real))
        return True

    for folder, folders, files in os.walk(root, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if is_entered(folder, name))
        yield from (os.path.join(folder, name) for name in sorted(files))


def _raise(error: OSError) -> None:
    raise error


def _reason_against(file_system: Any, root: str, name: str, path: str) -> Reason | None:
    """Why a file must not be read: no URL can name it, or, on this machine, a link leads out of the root or it is a pipe or a device."""
    if "::" in name or printable(name) != name:  # fsspec takes `::` for a chain of file systems
        return "name not readable"
    if not isinstance(file_system, LocalFileSystem):
        return None
    real = Path(os.path.realpath(path))
    if not real.exists():
        return "broken link"
    if not real.is_relative_to(os.path.realpath(root)) and not _is_blob(Path(os.path.realpath(root)), Path(path), real):
        return "outside the root"
    return None if stat.S_ISREG(real.stat().st_mode) else "no regular file"


def _is_blob(root: Path, path: Path, real: Path) -> bool:
    """Whether a link leads from a snapshot of a Hub cache to a blob of the same data set: NAME/snapshots/COMMIT/… to NAME/blobs/DIGEST."""
    cached = real.parent.parent
    return real.parent.name == "blobs" and cached / "snapshots" in (root, *root.parents) and path.is_symlink()


def printable(name: str) -> str:
    """The name, with escapes for bytes that are not UTF-8: Python gives them as halves of surrogate pairs."""
    return name.encode(errors="backslashreplace").decode()
