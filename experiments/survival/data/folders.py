"""Files of a build in its home, local or on a store: all files, finished files and unfinished files."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path, file_system_of
from phasewise.trainer.data.manifest import MANIFEST_NAME

BUILT = ("documents", "tokenizers", "tokens")
Files = dict[str, tuple[Any, ...]]
"""Name relative to the home → what changes whenever the file is written: inode and time here, the generation on a store."""


def files(home: str | Path) -> Files:
    store = file_system_of(home)
    found = dict(_files_here(as_path(home)) if store is None else _files_there(*store))
    return {name: version for name, version in found.items() if not name.startswith("locks/")}


def contents(home: str | Path) -> dict[str, str]:
    """The digest of every file below the home but the locks."""
    return {name: digest_of_bytes((as_path(home) / name).read_bytes()) for name in files(home)}


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    others = [f"{name} should not be there" for name in found.keys() - expected.keys()]
    changed = [f"{name} has other bytes" for name in expected.keys() & found.keys() if expected[name] != found[name]]
    return sorted(missing + others + changed)


def whole(found: Files) -> set[str]:
    """The files of documents, tokenizers and token caches that are written to their end."""
    return {name for name in found if name.startswith(BUILT) and not is_temporary(name)}


def is_temporary(name: str) -> bool:
    """Whether a file is being written, or was when its writer died."""
    return name.rpartition("/")[2].startswith(".")


def half_done(found: Files) -> list[str]:
    """Files under a temporary name, shards without a record, folders without a manifest."""
    temporary = [name for name in found if is_temporary(name)]
    shards = [name for name in whole(found) if "/shard-" in name and f"{name.rpartition('.')[0]}.json" not in found]
    folders = {name.rpartition("/")[0] for name in whole(found) if not name.startswith("tokenizers/")}
    return sorted([*temporary, *shards, *(folder for folder in folders if f"{folder}/{MANIFEST_NAME}" not in found)])


def finished(found: Files) -> Files:
    records = {name.removesuffix(".json") for name in found if name.endswith(".json") and ("/bundle-" in name or "/shard-" in name)}
    return {name: version for name, version in found.items() if _record_of(name) in records}


def written_again(before: Files, now: Files) -> list[str]:
    return sorted(name for name, version in finished(before).items() if name in now and now[name] != version)


def _record_of(name: str) -> str:
    """`…/part-00012-0003.parquet` belongs to `…/bundle-00012`, `…/shard-00012.bin` to `…/shard-00012`."""
    folder, _, file = name.rpartition("/")
    stem = file.partition(".")[0]
    return f"{folder}/bundle-{stem.split('-')[1]}" if stem.startswith("part-") else f"{folder}/{stem}"


def _files_here(home: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for folder, _, names in os.walk(home):
        for path in (Path(folder) / name for name in names):
            with suppress(FileNotFoundError):  # it was a temporary name
                status = path.stat()
                yield path.relative_to(home).as_posix(), (status.st_ino, status.st_mtime_ns)


def _files_there(file_system: Any, root: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    found: dict[str, dict[str, Any]] = file_system.find(root, detail=True)
    for path, info in found.items():
        yield path.removeprefix(root).strip("/"), (info["generation"],)
