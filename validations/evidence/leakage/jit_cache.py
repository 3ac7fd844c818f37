"""Decorators for compiled functions, cached for later processes.

Numba invalidates its cache only by the file of a function. A changed constant or function in another file would be missed, so the cache
folder has the digest of all code of this package. `make setup` and the image compile into `compiled/`, which wheels contain. The first
process of a user copies this code, which takes half a minute to compile.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config
from numba.core.caching import UserProvidedCacheLocator

from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import user_cache, write_atomically

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[Function], Function]:
    """Compile a function at its first call. It runs without the GIL.

    The function must not allocate arrays. Without reference counts, compiling and scanning take less than half the time.
    """
    njit = cast(Any, numba.njit)  # pyright: ignore[reportUnknownMemberType]  # untyped
    return njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False, **options)


inlined = partial(compiled, inline="always")
"""Compile a function as part of its callers."""
inner = partial(compiled, no_cpython_wrapper=True)
"""Compile a function for compiled callers. Python cannot call it."""


_sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
_home = user_cache()
with suppress(OSError):
    _home.mkdir(parents=True, exist_ok=True)
_parent = str(_home) if os.access(_home, os.W_OK) else tempfile.gettempdir()
_name = f"compiled-{digest_of_bytes(_sources)[:16]}"
_folder = f"{_parent}/{_name}"
# One code for all processors of an architecture, which scans at the same rate. No effect if this process compiled something before.
for _setting, _value in {"CACHE_DIR": _folder, "CPU_NAME": "generic", "CPU_FEATURES": ""}.items():
    setattr(config, _setting, _value)
_place = Path(_folder, UserProvidedCacheLocator.get_suitable_cache_subpath(__file__))
with suppress(OSError):
    for _path in sorted(Path(__file__).parent.glob(f"compiled/*/{_name}/*/*.nb?")):  # X.nbc before X.nbi
        if not (_place / _path.name).exists():
            write_atomically(_place / _path.name, _path.read_bytes())
