"""The files of a checkpoint: what marks it as committed, and how damage is found.

Orbax commits a checkpoint by renaming its folder. After that `digests.json` is written into it: name, size and SHA-256 of every file. A
checkpoint without it is not committed; one whose files are other than it says is damaged.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.base.storage import digest_of_file, read_json, write_json

DIGESTS_NAME = "digests.json"
UNCOMMITTED = f"was never committed (it has no {DIGESTS_NAME})"
DIGESTING_THREADS = 8
"""Hashing and reading release the interpreter's lock."""


def saved_steps(folder: Path) -> list[int]:
    """The steps that have a folder here, whole or not, oldest first."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()) if folder.exists() else []


def is_committed(checkpoint: Path) -> bool:
    """Whether its writing came to an end."""
    return (checkpoint / DIGESTS_NAME).exists()


def write_digests(checkpoint: Path) -> None:
    """Commit: write down every file as it is now."""
    names = [str(path.relative_to(checkpoint)) for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    names = [name for name in names if name != DIGESTS_NAME]
    with ThreadPoolExecutor(DIGESTING_THREADS) as threads:
        digests = list(threads.map(lambda name: digest_of_file(checkpoint / name), names))
    files = {
        name: {"size_bytes": (checkpoint / name).stat().st_size, "sha256": digest} for name, digest in zip(names, digests, strict=True)
    }
    write_json(checkpoint / DIGESTS_NAME, {"files": files})


def find_damage(checkpoint: Path) -> str | None:
    """What is wrong with the files of a checkpoint, in words that follow its name; None where it is whole. Every byte is read."""
    if not is_committed(checkpoint):
        return UNCOMMITTED
    try:
        files: dict[str, dict[str, Any]] = read_json(checkpoint / DIGESTS_NAME)["files"]
        wanted = {name: (int(said["size_bytes"]), str(said["sha256"])) for name, said in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"is damaged: its {DIGESTS_NAME} does not read"
    for name, (size, _) in wanted.items():
        path = checkpoint / name
        if not path.is_file():
            return f"is damaged: {name} is missing"
        if path.stat().st_size != size:
            return f"is damaged: {name} has {path.stat().st_size} bytes, not {size}"
    with ThreadPoolExecutor(DIGESTING_THREADS) as threads:
        found = threads.map(lambda name: digest_of_file(checkpoint / name), wanted)
        for (name, (_, digest)), now in zip(wanted.items(), found, strict=True):
            if now != digest:
                return f"is damaged: {name} has other bytes than were written (SHA-256 {now[:12]}, not {digest[:12]})"
    return None


def remove_checkpoint(checkpoint: Path) -> None:
    """Delete it; killed on the way, it is one that was never committed."""
    (checkpoint / DIGESTS_NAME).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Delete what killed writers left: Orbax's temporary folders, and folders that were never committed."""
    for path in folder.glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(path, ignore_errors=True)
    for step in saved_steps(folder):
        if not is_committed(folder / str(step)):
            remove_checkpoint(folder / str(step))
