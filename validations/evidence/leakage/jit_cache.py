"""Compiled functions, kept for the next process.

Numba looks only at the file of a function before it uses what it kept: a changed constant or function of another file would go
unseen. So what is kept is kept under a digest of all the code of this package.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config

from phasewise.trainer.base.identity import digest_of_bytes

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[Function], Function]:
    """A decorator: compile the function when it is first called, for its arguments' types; it then runs without Python's lock.

    It makes no arrays, and counts no references to those that it is given: counting took most of the time of compiling and of scanning.
    """
    njit = cast(Any, numba.njit)  # pyright: ignore[reportUnknownMemberType]  # untyped
    return njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False, **options)


def inlined() -> Callable[[Function], Function]:
    """A decorator: the function becomes part of those that call it, and is compiled with them alone."""
    return compiled(inline="always")


def inner() -> Callable[[Function], Function]:
    """A decorator: compile the function for compiled ones alone; Python can't call it."""
    return compiled(no_cpython_wrapper=True)


def is_cold() -> bool:
    """Whether nothing was compiled on this machine for this code."""
    return next(_folder().rglob("*.nbc"), None) is None


def _folder() -> Path:
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    name = f"compiled-{digest_of_bytes(sources)[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phasewise"
    try:
        home.mkdir(parents=True, exist_ok=True)
        return home / name if os.access(home, os.W_OK) else Path(tempfile.gettempdir()) / name
    except OSError:
        return Path(tempfile.gettempdir()) / name


config.CACHE_DIR = str(_folder())  # pyright: ignore[reportAttributeAccessIssue]  # the module has it at run time
