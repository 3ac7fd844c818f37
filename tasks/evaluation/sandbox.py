"""Runs programs that a model wrote, each in a process of its own that can do no harm where the kernel helps.

Kept from a program: time, memory and size of files by limits of the process; the network and other processes by namespaces; changes to
files outside its folder by Landlock; and all of that by Python's audit events as well. It can read what this user can read, and has no way
to pass it on.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.progress import advance
from phasewise.trainer.base.errors import EvaluationError

CHILD = Path(__file__).with_name("sandbox_child.py")
GUARDS = ("network", "processes", "files")


class Limits(NamedTuple):
    """Of one program: time of a processor, and time of a clock, which passes on a busy machine too."""

    cpu_seconds: int = 15
    seconds: float = 45.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20


class Ran(NamedTuple):
    """Whether the program came to its end, and what the kernel kept from it, of `GUARDS`."""

    passed: bool
    guarded: tuple[str, ...]


LIMITS = Limits()
HARMLESS = "assert sorted([2, 1]) == [1, 2]"


def check_sandbox() -> Ran:
    """What is kept from a program here."""
    ran = run_program(HARMLESS)
    if not ran.passed:
        raise EvaluationError(
            f"the sandbox must run a harmless program, and does not: {sys.executable} -I -S {CHILD} fails on this machine. "
            "Leave --allow-code out, and the benchmarks that need it are holes."
        )
    return ran


def run_program(program: str, limits: Limits = LIMITS) -> Ran:
    """Run a program. One that fails, ends early, waits too long or does what it may not has not passed; nothing else happens."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="phasewise-program-", ignore_cleanup_errors=True) as folder:
        given = {"program": program, "secret": secret, "folder": folder, **limits._asdict()}
        command = [sys.executable, "-I", "-S", str(CHILD)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env={}, start_new_session=True
        ) as process:
            try:
                said, _ = process.communicate((json.dumps(given) + "\n").encode(), timeout=limits.seconds)
            except subprocess.TimeoutExpired:
                _kill(process)
                said, _ = process.communicate()
            finally:
                _kill(process)
    first, _, rest = said.decode("utf-8", "replace").partition("\n")
    kept = json.loads(first) if first.startswith("{") else {}
    return Ran(rest == secret, tuple(name for name in GUARDS if kept.get(name)))


def run_programs(programs: Sequence[str], limits: Limits = LIMITS) -> list[Ran]:
    """One after the other: two at once would take time from each other."""
    found: list[Ran] = []
    for number, program in enumerate(programs):
        found.append(run_program(program, limits))
        advance("programs", number + 1, len(programs))
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
