"""What all tests share."""

import os
import signal
from collections.abc import Iterator

import pytest

from phasewise.trainer.process.child_process import collect_rarely

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax: with libtpu installed it would look for a TPU

QUICK_COMPILATION = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
"""Programs of tests run for milliseconds and take seconds to compile. XLA's older way to compile fusions takes half as long; to compile a
program in one part takes a tenth less work than to cut it up for all processors, which are busy here."""
if QUICK_COMPILATION not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILATION}".strip()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what is to run in its background; children would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_rarely()  # what is imported and collected stays to the end: to look through it for garbage took a quarter of the time to collect it
pytest_plugins = ["tests.compilation", "tests.sharing_out", "tests.stores.fixtures"]


@pytest.fixture(autouse=True)
def environment_of_a_command() -> Iterator[None]:
    """A command sets it for its own children; a test that runs one in this process must not do so for those of later tests."""
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: gzip and zip write the time into theirs, and two processes must name a test alike."""
    return argname if isinstance(val, bytes) and not val.decode("latin-1").isprintable() else None
