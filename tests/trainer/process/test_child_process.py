import os
import re
import signal
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import HOUSE, ROOMS
from phasewise.trainer.process.child_process import (
    STOP_VARIABLE,
    ending_with_reason,
    positive_seconds,
    python_command,
    seconds_left_to_save,
    stop_requests,
)
from tests.shadows import write_shadows

COMMANDS = {"from phasewise.flows.cli.main import main; main(['schema'])": True, "from phasewise.trainer.run import main; main([])": False}


@pytest.mark.parametrize(("code", "rarely"), COMMANDS.items(), ids=["a command", "the trainer"])
def test_a_command_looks_rarely_for_garbage_and_the_trainer_as_python_does(code: str, rarely: bool):
    says = "import atexit, gc, sys; atexit.register(lambda: print(*gc.get_threshold(), file=sys.stderr)); "
    done = subprocess.run([sys.executable, "-c", says + code], capture_output=True, text=True, check=True)
    assert (done.stderr.splitlines()[-1] == "100000 50 50") is rarely


PROGRAM = """
import signal, sys, threading
from phasewise.trainer.process.child_process import end_with_parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
end_with_parent(7)
print("ready", flush=True)
threading.Event().wait()
"""


def test_it_ends_with_its_parent_also_a_silent_one_or_stops_at_a_byte_as_at_sigterm():
    with ExitStack() as stack:
        processes: list[Any] = []
        for variables in ({}, {"PHASEWISE_PARENT_SECONDS": "100"}, {"PHASEWISE_PARENT_SECONDS": "0.3"}):
            command, environment = [sys.executable, "-c", PROGRAM], {**os.environ, **variables}
            processes.append(subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=environment, bufsize=0))
            stack.enter_context(processes[-1])
            stack.callback(processes[-1].kill)
        orphan, asked, silent = processes
        assert orphan.stdout.readline() == asked.stdout.readline() == b"ready\n"
        orphan.stdin.close()
        asked.stdin.write(b"...s")
        assert [process.wait(20) for process in processes] == [7, 75, 7]
        assert b"gave no sign of life for 0.3 s (PHASEWISE_PARENT_SECONDS)" in silent.stderr.read()


def test_children_are_started_by_one_function_alone():
    starts = re.compile(r"""(?<!"-P", )["']-m["']|(executable|PYTHON|python)["}]+ -m """)
    files = [path for room in ROOMS for path in (HOUSE / room).rglob("*.py")]
    found = {str(path.relative_to(HOUSE)) for path in files if starts.search(path.read_text())}
    assert found == {"flows/__init__.py"}, "a command of its own has -P, as `python_command` gives it"


@pytest.mark.parametrize("module", ["phasewise.trainer", "phasewise.trainer.preflight"])
def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path, module: str):
    ended = subprocess.run(python_command(module), cwd=write_shadows(tmp_path), capture_output=True, text=True, check=False)
    assert ended.stderr.startswith(f"usage: python -m {module}")


def test_an_unexpected_end_quotes_the_last_line_of_the_log(tmp_path: Path):
    log = tmp_path / "log"
    try:
        try:
            raise ValueError("no such head")
        except ValueError as error:
            raise OSError(28, "full") from error
    except OSError:
        chained = traceback.format_exc()
    for code, text, said in (
        (1, chained, "ended with code 1: OSError: [Errno 28] full"),
        (9, "half way\n\n", "ended with code 9: half way"),
        (4, "", "ended with code 4: its log says nothing"),
        (-9, "loading\nFatal Python error: Killed\n", "was ended by SIGKILL: loading"),
        (-99, "loading", "was ended by signal 99: loading"),
    ):
        log.write_text(f"an earlier life\n{text}")
        assert ending_with_reason(code, log, len("an earlier life\n")) == f"{said} (log: {log})"


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
    monkeypatch.setattr("phasewise.trainer.process.child_process.time.monotonic", lambda: now)
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


def test_a_time_that_is_none_is_refused():
    for text in ("0", "-1", "soon", "inf", "nan"):
        with pytest.raises(ConfigError, match=f"PHASEWISE_JOIN_SECONDS must be a number of seconds above 0, found '{text}'"):
            positive_seconds({"PHASEWISE_JOIN_SECONDS": text}, "PHASEWISE_JOIN_SECONDS", 1.0)
