"""Run generated programs in separate processes with limited rights.

Process limits bound time, memory and file size. Namespaces block the network and other processes. Landlock blocks changes outside the
program's folder, and Python's audit events block all of these again. A program can read this user's files, but cannot send them anywhere.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from phasewise.trainer.base.errors import EvaluationError

CHILD = Path(__file__).with_name("sandbox_child.py")
GUARDS = ("network", "processes", "files")


class Limits(NamedTuple):
    """Limits of one program: processor time, and wall time for a busy machine."""

    cpu_seconds: int = 15
    seconds: float = 45.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20


class Ran(NamedTuple):
    """Whether the program finished, and the active kernel guards of `GUARDS`."""

    passed: bool
    guarded: tuple[str, ...]


LIMITS = Limits()


def check_sandbox() -> Ran:
    """Run a harmless program, or raise an EvaluationError if the sandbox does not work here."""
    ran = run_program("assert sorted([2, 1]) == [1, 2]")
    if not ran.passed:
        raise EvaluationError(
            f"the sandbox must run a harmless program, and does not: {sys.executable} -I -S {CHILD} fails on this machine. "
            "Leave --allow-code out to skip the benchmarks that need it."
        )
    return ran


def run_program(program: str, limits: Limits = LIMITS) -> Ran:
    """Run a program. It passes only if it finishes without error, early exit, timeout or forbidden action."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="phasewise-program-", ignore_cleanup_errors=True) as folder:
        given = {"program": program, "secret": secret, "folder": folder, **limits._asdict()}
        command = [sys.executable, "-I", "-S", str(CHILD)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env={}, start_new_session=True
        ) as process:
            try:
                output, _ = process.communicate((json.dumps(given) + "\n").encode(), timeout=limits.seconds)
            except subprocess.TimeoutExpired:
                _kill(process)
                output, _ = process.communicate()
            finally:
                _kill(process)
    first, _, rest = output.decode("utf-8", "replace").partition("\n")
    kept = json.loads(first) if first.startswith("{") else {}
    return Ran(rest == secret, tuple(name for name in GUARDS if kept.get(name)))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
