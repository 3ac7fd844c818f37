"""A child process: what it imports, how it ends with its parent and why; and being asked to stop, by signals to this very process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import HOUSE, ROOMS
from phasewise.trainer.process.child_process import ending_with_reason, python_command
from phasewise.trainer.process.signals import STOP_VARIABLE, positive_seconds, seconds_left_to_save, stop_requests
from tests.shadows import write_shadows

SAYS = "import atexit, gc, sys; atexit.register(lambda: print(*gc.get_threshold(), file=sys.stderr)); "


@pytest.mark.parametrize(
    ("code", "rarely"),
    [("from phasewise.flows.cli.main import main; main(['schema'])", True), ("from phasewise.trainer.run import main; main([])", False)],
    ids=["a command", "the trainer"],
)
def test_a_command_looks_rarely_for_garbage_and_the_trainer_as_python_does(code: str, rarely: bool):
    done = subprocess.run([sys.executable, "-c", SAYS + code], capture_output=True, text=True, check=True)
    assert (done.stderr.splitlines()[-1] == "100000 50 50") is rarely


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

        def begin(**variables: str) -> Any:
            command, environment = [sys.executable, "-c", PROGRAM], {**os.environ, **variables}
            process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=environment, bufsize=0)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout
            process.stdout.readline()
            return process

        yield begin


def test_it_ends_with_its_parent_or_stops_at_a_byte_as_at_sigterm(start: Start):
    process, asked = start(), start(PHASEWISE_PARENT_SECONDS="100")
    process.stdin.close()
    assert process.wait(20) == 7
    asked.stdin.write(b"...s")
    assert asked.wait(20) == 75


def test_a_parent_that_is_silent_for_too_long_counts_as_gone(start: Start):
    process = start(PHASEWISE_PARENT_SECONDS="0.3")
    assert process.wait(20) == 7
    assert b"gave no sign of life for 0.3 s (PHASEWISE_PARENT_SECONDS)" in process.stderr.read()


def test_children_are_started_by_one_function_alone():
    starts = re.compile(r"""(?<!"-P", )["']-m["']|(executable|PYTHON|python)["}]+ -m """)
    files = [path for room in ROOMS for path in (HOUSE / room).rglob("*.py")]
    found = {str(path.relative_to(HOUSE)) for path in files if starts.search(path.read_text())}
    assert found == {"flows/__init__.py"}, "a command of its own has -P, as `python_command` gives it"


@pytest.mark.parametrize("module", ["phasewise.trainer", "phasewise.trainer.preflight"])
def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path, module: str):
    ended = subprocess.run(python_command(module), cwd=write_shadows(tmp_path), capture_output=True, text=True, check=False)
    assert ended.stderr.startswith(f"usage: python -m {module}")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ValueError('no such head')", "ended with code 1: ValueError: no such head"),
        ("print('half way'); raise SystemExit(9)", "ended with code 9: half way"),
        ("raise SystemExit(4)", "ended with code 4: its log says nothing"),
        ("import os; print('loading', flush=True); os.kill(os.getpid(), 9)", "was ended by SIGKILL: loading"),
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_is_noted_and_the_handlers_of_before_come_back(number: signal.Signals, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STOP_VARIABLE, "7")
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    with stop_requests() as is_requested:
        assert (is_requested(), seconds_left_to_save()) == (False, 0)
        os.kill(os.getpid(), number)
        assert is_requested()
        assert 0 < seconds_left_to_save() <= 7
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before
    assert seconds_left_to_save() == 0


def test_the_time_to_save_counts_from_the_first_request(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("phasewise.trainer.process.signals.time.monotonic", lambda: now)
    with stop_requests():
        for now, left in ((100.0, 30), (120.0, 10), (140.0, 0)):  # noqa: B007  # the clock reads it
            os.kill(os.getpid(), signal.SIGTERM)
            assert seconds_left_to_save() == left


def test_ctrl_c_and_the_parents_sigterm_are_one_wish_and_a_second_ctrl_c_is_another():
    with stop_requests() as is_requested:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_time_that_is_none_is_refused(text: str):
    with pytest.raises(ConfigError, match=f"PHASEWISE_JOIN_SECONDS must be a number of seconds above 0, found '{text}'"):
        positive_seconds({"PHASEWISE_JOIN_SECONDS": text}, "PHASEWISE_JOIN_SECONDS", 1.0)
