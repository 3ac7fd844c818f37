"""The files of a checkpoint: its commit, and the search for damage.

Orbax renames the complete folder of a checkpoint. Then `digests.json` with name, size and SHA-256 of every file is written into the folder.
A checkpoint without this list is not committed, and a checkpoint whose files differ from the list is damaged.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phasewise.trainer.base.identity import digest_of_file, read_sealed, write_sealed

DIGESTS_NAME = "digests.json"
UNCOMMITTED = f"was never committed (it has no {DIGESTS_NAME})"
DIGESTING_THREADS = 8
Digests = Mapping[str, tuple[int, str]]  # name of a file below the checkpoint → its size in bytes and its SHA-256


def saved_steps(folder: Path) -> list[int]:
    """Return the steps that have a folder, damaged or not, oldest first."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()) if folder.exists() else []


def is_committed(checkpoint: Path) -> bool:
    """Return whether a checkpoint was committed."""
    return (checkpoint / DIGESTS_NAME).exists()


def write_digests(checkpoint: Path, files: Digests | None = None) -> None:
    """Commit a checkpoint by the list of its files. Default: the local files."""
    found = digests_here(checkpoint) if files is None else files
    said = {name: {"size_bytes": size, "sha256": digest} for name, (size, digest) in found.items()}
    write_sealed(checkpoint / DIGESTS_NAME, {"files": said})


def digests_here(checkpoint: Path) -> Digests:
    """Return the local files of a checkpoint. Every byte is read."""
    names = [str(path.relative_to(checkpoint)) for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    names = [name for name in names if name != DIGESTS_NAME]
    with ThreadPoolExecutor(DIGESTING_THREADS) as threads:
        digests = list(threads.map(lambda name: digest_of_file(checkpoint / name), names))
    return {name: ((checkpoint / name).stat().st_size, digest) for name, digest in zip(names, digests, strict=True)}


def find_damage(checkpoint: Path, changed: Callable[[Mapping[str, str]], Sequence[str]] | None = None) -> str | None:
    """Return the damage of a checkpoint in words after its name, if any.

    `changed` returns the changed files among name → SHA-256. By default every byte is read.
    """
    wanted = committed_files(checkpoint)
    if isinstance(wanted, str):
        return wanted
    for name, (size, _) in wanted.items():
        path = checkpoint / name
        if not path.is_file():
            return f"is damaged: {name} is missing"
        if path.stat().st_size != size:
            return f"is damaged: {name} has {path.stat().st_size} bytes, not {size}"
    if changed is not None:
        found = changed({name: digest for name, (_, digest) in wanted.items()})
        return f"is damaged: {found[0]} has other bytes than were written" if found else None
    with ThreadPoolExecutor(DIGESTING_THREADS) as threads:
        digests = threads.map(lambda name: digest_of_file(checkpoint / name), wanted)
        for (name, (_, digest)), now in zip(wanted.items(), digests, strict=True):
            if now != digest:
                return f"is damaged: {name} has other bytes than were written (SHA-256 {now[:12]}, not {digest[:12]})"
    return None


def has_its_files(checkpoint: Path) -> bool:
    """Return whether all listed files exist in their sizes. A checkpoint with an unreadable list is damaged, but lacks no files."""
    return isinstance(committed_files(checkpoint), str) or find_damage(checkpoint, lambda _: ()) is None


def committed_files(checkpoint: Path) -> dict[str, tuple[int, str]] | str:
    """Return name → size and SHA-256 of the committed files, or the fault of the list in words."""
    if not is_committed(checkpoint):
        return UNCOMMITTED
    try:
        files: dict[str, dict[str, Any]] = read_sealed(checkpoint / DIGESTS_NAME)["files"]
        return {name: (int(said["size_bytes"]), str(said["sha256"])) for name, said in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"is damaged: its {DIGESTS_NAME} does not read"


def remove_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint, the list first, so that an interrupted deletion leaves no commit."""
    (checkpoint / DIGESTS_NAME).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
