"""Stored leakage indexes on this machine: built once per items and code, and memory-mapped by every process."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

from phasewise.tasks.locks import held
from phasewise.tasks.validation.evidence_keys import folder_digest, index_folder
from phasewise.trainer.base.errors import ConfigError, DataError, refused_by_system
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.process.child_process import python_command
from phasewise.validations.evidence import leakage
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.item_files import read_benchmarks
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.jit_cache import is_cold

WARM_UP = f"{leakage.__name__}.scan"


def index_of_folder(folder: str, store: Path) -> Path:
    """Return the index of a file or folder of benchmarks, which is built if it is missing."""
    path = as_path(folder)
    if not path.exists():
        raise ConfigError(f"there is no {folder}: --benchmarks needs a folder with a folder for each benchmark, or one of its files.")
    try:
        return keep_index(folder_digest(path), lambda: read_benchmarks(path), store)
    except DataError as error:
        raise ConfigError(f"--benchmarks needs a folder of benchmark items: {error}") from None


def keep_index(key: str, read: Callable[[], Sequence[BenchmarkItem]], store: Path) -> Path:
    """Return the folder of the index with this key. If it is missing, one process builds it atomically."""
    folder = index_folder(key, store)
    if folder.exists():
        return folder
    with held(store / f"{folder.name}.lock"):
        if folder.exists():
            return folder
        with ExitStack() as stack:
            if is_cold() and (os.cpu_count() or 1) > 1:  # compile the scan's loops meanwhile. If that fails, the first scan compiles them
                nothing = subprocess.DEVNULL
                process = stack.enter_context(subprocess.Popen(python_command(WARM_UP), stdin=nothing, stdout=nothing, stderr=nothing))
                stack.push(lambda kind, *_: process.kill() if kind else None)
            built = LeakageIndex.build(read())
            making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
            try:
                with refused_by_system(folder):
                    making.mkdir(parents=True)
                    built.save(making)
                    os.replace(making, folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return folder


@lru_cache(maxsize=2)
def open_index(folder: Path) -> LeakageIndex:
    """Return the memory-mapped index in a folder."""
    return LeakageIndex.load(folder)
