"""The sealed cache of compiled programs.

jax names an entry by its source and checks no digest of the program. So each entry is listed with its digest, and entries that differ from
the list are deleted before jax reads them. A killed trainer leaves entries without a digest, which are compiled again.
"""

from contextlib import suppress
from pathlib import Path

from phasewise.trainer.base.identity import digest_of_file, find_sealed, write_sealed

LIST_NAME = "programs.json"
ENTRIES = "*-cache"


def drop_changed(folder: Path) -> list[str]:
    """Delete changed and unlisted entries, and return their names."""
    listed: dict[str, str] = find_sealed(folder / LIST_NAME) or {}
    dropped: list[str] = []
    for path in sorted(folder.glob(ENTRIES)):
        with suppress(FileNotFoundError):  # the trainer of another phase deleted the entry
            if listed.get(path.name) != digest_of_file(path):
                path.unlink()
                dropped.append(path.name)
    return dropped


def seal_new(folder: Path) -> None:
    """List the new entries of all processes."""
    listed: dict[str, str] = find_sealed(folder / LIST_NAME) or {}
    found = dict(listed)
    for path in folder.glob(ENTRIES):
        if path.name not in listed:
            with suppress(FileNotFoundError):
                found[path.name] = digest_of_file(path)
    if found != listed:
        write_sealed(folder / LIST_NAME, found)
