"""Leakage indexes on this machine: built once for the same items by the same code, kept, and memory-mapped by every process."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tasks.home import Home
from tasks.locks import held
from trainer.base.code_digest import code_digest
from trainer.base.errors import ConfigError, DataError
from trainer.base.storage import as_path, content_digest, digest_of_json, read_json
from validations.evidence import leakage
from validations.evidence.leakage.compiled import is_cold
from validations.evidence.leakage.index import LeakageIndex
from validations.evidence.leakage.items.files import read_benchmarks
from validations.evidence.leakage.items.item import BenchmarkItem

CACHE_VARIABLE = "XDG_CACHE_HOME"
LEAKAGE = "validations/evidence/leakage"
AHEAD = f"{leakage.__name__}.ahead"


@cache
def leakage_version() -> str:
    """Changes with the code that reads items, makes an index of them, and decides what a scan finds."""
    return code_digest(*(f"{LEAKAGE}/{name}.py" for name in ("*/*", "index", "own", "scan", "segments")))


def index_store(home: Home | None) -> Path:
    """Where this machine keeps its indexes: in a home that is a folder here, else in the user's cache folder."""
    if home is not None and home.is_local:
        return home.root / "evidence" / "indexes"
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache").expanduser() / "phasewise" / "indexes"


def index_of_folder(folder: str, store: Path) -> Path:
    """The kept index of the items in a file or folder of benchmarks, made if it is not there.

    Raises:
        ConfigError: there are no items, or a file does not read as items.
    """
    path = as_path(folder)
    if not path.exists():
        raise ConfigError(f"there is no {folder}: --benchmarks needs a folder with a folder for each benchmark, or one of its files.")

    def read() -> Sequence[BenchmarkItem]:
        try:
            return read_benchmarks(path)
        except DataError as error:
            raise ConfigError(f"--benchmarks needs a folder of benchmark items: {error}") from None

    return keep_index(folder_digest(path), read, store)


def index_of_list(path: Path, key: str, store: Path) -> Path:
    """The kept index of a written list of items, by the key of the list."""
    return keep_index(key, lambda: read_list(path), store)


def read_list(path: Path) -> list[BenchmarkItem]:
    """Items that were written as JSON."""
    rows: list[dict[str, Any]] = read_json(path)
    return [BenchmarkItem(**row)._replace(choices=tuple(row["choices"]), solutions=tuple(row["solutions"])) for row in rows]


def folder_digest(path: Path) -> str:
    """Names the items in a file or folder by its files' names and contents, and by the code that reads them."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    contents = [[str(file.relative_to(path)) if path.is_dir() else file.name, content_digest(file)[1]] for file in files]
    return digest_of_json({"reader": leakage_version(), "place": path.name, "files": contents})


def keep_index(key: str, read: Callable[[], Sequence[BenchmarkItem]], store: Path) -> Path:
    """The folder of the index that this key and the code name; it appears there whole or not at all, and is built by one process."""
    name = digest_of_json({"items": key, "index": leakage_version()})[:16]
    folder = store / name
    if not folder.exists():
        with held(store / f"{name}.lock"):
            if not folder.exists():
                with _compiling_ahead():
                    _save(LeakageIndex.build(read()), folder)
    return folder


@contextmanager
def _compiling_ahead() -> Iterator[None]:
    """Where nothing is compiled yet, have another process compile the loops of the scan while this one builds the index.

    It is no fault if that fails: whoever scans first compiles what is missing.
    """
    if not is_cold() or (os.cpu_count() or 1) == 1:
        yield
        return
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", AHEAD]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment) as process:
        try:
            yield
        except BaseException:
            process.kill()
            raise


@lru_cache(maxsize=2)
def open_index(folder: Path) -> LeakageIndex:
    """The index in a folder; a process maps it once."""
    return LeakageIndex.load(folder)


def _save(built: LeakageIndex, folder: Path) -> None:
    making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        making.mkdir(parents=True)
        built.save(making)
        os.replace(making, folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
