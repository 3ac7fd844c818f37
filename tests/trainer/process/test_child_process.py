import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.identity import HOUSE, ROOMS
from phasewise.trainer.process.child_process import ending_with_reason, python_command
from tests.shadows import write_shadows

SAYS = "import atexit, gc, sys; atexit.register(lambda: print(*gc.get_threshold(), file=sys.stderr)); "


@pytest.mark.parametrize(
    ("code", "rarely"),
    [("from phasewise.flows.cli.main import main; main(['schema'])", True), ("from phasewise.trainer.run import main; main([])", False)],
    ids=["a command", "the trainer"],
)
def test_a_command_looks_rarely_and_the_trainer_as_python_does(code: str, rarely: bool):
    done = subprocess.run([sys.executable, "-c", SAYS + code], capture_output=True, text=True, check=True)
    found = tuple(map(int, done.stderr.splitlines()[-1].split()))
    assert (found == (100_000, 50, 50)) is rarely


Start = Callable[..., Any]
PROGRAM = """
import signal, sys, threading
from phasewise.trainer.process.child_process import end_with_parent
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


def test_children_are_started_by_one_function_alone():
    """A walk over the source: a command of its own would put the current folder on the module path."""
    starts = re.compile(r"""(?<!"-P", )["']-m["']|(executable|PYTHON|python)["}]+ -m """)
    files = [path for room in ROOMS for path in (HOUSE / room).rglob("*.py")]
    found = {str(path.relative_to(HOUSE)) for path in files if starts.search(path.read_text())}
    assert found == {"flows/__init__.py"}, "a command of its own has -P, as `python_command` gives it"


@pytest.mark.parametrize("module", ["phasewise.trainer", "phasewise.trainer.preflight"])
def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path, module: str):
    """`tests/end_to_end/test_own_text.py` runs everything in such a folder, and `tests/deployments/up.py` brings everything up in one."""
    ended = subprocess.run(python_command(module), cwd=write_shadows(tmp_path), capture_output=True, text=True, check=False)
    assert ended.stderr.startswith(f"usage: python -m {module}")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ValueError('no such head')", "ended with code 1: ValueError: no such head"),
        ("print('half way'); raise SystemExit(9)", "ended with code 9: half way"),
        ("raise SystemExit(4)", "ended with code 4: its log says nothing"),
        ("import os; print('loading', flush=True); os.kill(os.getpid(), 9)", "was ended by SIGKILL: loading"),
        ("import numbers_that_nobody_has", "ended with code 1: ModuleNotFoundError: No module named 'numbers_that_nobody_has'"),
        ("try:\n 1/0\nexcept Exception as e:\n raise OSError(28, 'full') from e", "ended with code 1: OSError: [Errno 28] full"),
    ],
)
def test_an_unexpected_end_quotes_the_last_line_of_the_log(tmp_path: Path, program: str, said: str):
    log = tmp_path / "log"
    log.write_text("an earlier life\n")
    before = log.stat().st_size
    with open(log, "ab") as output:
        code = subprocess.run([sys.executable, "-c", program], stdout=output, stderr=output, check=False).returncode
    assert ending_with_reason(code, log, before) == f"{said} (log: {log})"
