"""Small disks, which are soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("nobody may mount a file system on this machine")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
