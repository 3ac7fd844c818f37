"""The compiled programs of a recipe: sealed, because jax runs whatever program it finds under a name.

jax names an entry by what was compiled and not by the program, and checks no digest. So each entry that was compiled here is listed with
its digest, and an entry that is not as listed is deleted before jax looks: it is compiled again. A trainer that was killed leaves entries
that are not listed yet.
"""

from contextlib import suppress
from pathlib import Path

from phasewise.trainer.base.identity import NotAsWritten, digest_of_file, read_sealed, write_sealed

LIST_NAME = "programs.json"
ENTRIES = "*-cache"


def drop_changed(folder: Path) -> list[str]:
    """Delete the entries that are not as they were written; their names."""
    listed = _listed(folder)
    dropped: list[str] = []
    for path in sorted(folder.glob(ENTRIES)):
        with suppress(FileNotFoundError):  # the trainer of another phase was first
            if listed.get(path.name) != digest_of_file(path):
                path.unlink()
                dropped.append(path.name)
    return dropped


def seal_new(folder: Path) -> None:
    """List the entries that were added since the last call, by any process."""
    listed = _listed(folder)
    found = dict(listed)
    for path in folder.glob(ENTRIES):
        if path.name not in listed:
            with suppress(FileNotFoundError):
                found[path.name] = digest_of_file(path)
    if found != listed:
        write_sealed(folder / LIST_NAME, found)


def _listed(folder: Path) -> dict[str, str]:
    try:
        return read_sealed(folder / LIST_NAME)
    except (FileNotFoundError, NotAsWritten):
        return {}
