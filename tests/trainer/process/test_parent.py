"""A process that watches its standard input: bytes, silence, and the end."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

Start = Callable[..., Any]
PROGRAM = """
import signal, sys, threading
from phasewise.trainer.process.parent import end_with_parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
end_with_parent(7)
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(**environment: str) -> "subprocess.Popen[bytes]":
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, stderr=-1, env={**os.environ, **environment}, bufsize=0
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout
            process.stdout.readline()
            return process

        yield begin


def test_it_ends_with_its_parent(start: Start):
    process = start()
    process.stdin.close()
    assert process.wait(20) == 7


def test_a_byte_asks_it_to_stop_as_sigterm_does(start: Start):
    process = start(PHASEWISE_PARENT_SECONDS="100")
    process.stdin.write(b"...s")
    assert process.wait(20) == 75


def test_a_parent_that_is_silent_for_too_long_counts_as_gone(start: Start):
    """A connection that is cut in the middle gives neither bytes nor an end."""
    process = start(PHASEWISE_PARENT_SECONDS="0.3")
    assert process.wait(20) == 7
    assert b"gave no sign of life for 0.3 s (PHASEWISE_PARENT_SECONDS)" in process.stderr.read()


def test_a_time_that_is_none_is_refused(start: Start):
    process = start(PHASEWISE_PARENT_SECONDS="never")
    assert process.wait(20) == 1
    assert b"PHASEWISE_PARENT_SECONDS must be a number of seconds above 0, found 'never'" in process.stderr.read()
