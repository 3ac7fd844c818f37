"""What all tests share: the stores, and which of them run two at a time."""

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax: with libtpu installed it would look for a TPU

QUICK_COMPILATION = "--xla_cpu_use_fusion_emitters=false"
"""Programs of tests run for milliseconds and take seconds to compile. XLA's older way to compile fusions takes half as long."""
if QUICK_COMPILATION not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILATION}".strip()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what is to run in its background; children would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.compilation", "tests.processor_time", "tests.stores.fixtures"]
TESTS = Path(__file__).parent
LONGEST = (
    "pulse/test_run.py",
    "deployments/test_browser.py",
    "deployments/test_operations.py",
    "deployments/test_approving.py",
    "deployments/test_scheduling.py",
    "deployments/test_surviving.py",
    "pulse/test_own_text.py",
    "trainer/test_killed.py",
    "trainer/test_roll_back.py",
    "pulse/data/test_killed.py",
    "trainer/preflight/test_compiler.py",
    "pulse/test_bison.py",
)
"""Files that take longest. They come first: begun last, one of them would run while nothing is left to run beside it.

Those that operate `phasewise up` follow one another, so that a process starts it once; it ends with the last of them.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the rest stay in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(TESTS).as_posix(), len(LONGEST)))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: gzip and zip write the time into theirs, and two processes must name a test alike."""
    return argname if isinstance(val, bytes) and not val.decode("latin-1").isprintable() else None
