import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phasewise.trainer.base.code_digest import HOUSE, ROOMS
from phasewise.trainer.process.child_process import ending_with_reason, last_line, python_command
from tests.shadows import write_shadows


def test_children_are_started_by_one_function_alone():
    """A walk over the source: a command of its own would put the current folder on the module path."""
    starts = re.compile(r"""["']-m["']|(executable|PYTHON|python)["}]+ -m """)
    files = [path for room in ROOMS for path in (HOUSE / room).rglob("*.py")]
    found = {str(path.relative_to(HOUSE)) for path in files if starts.search(path.read_text())}
    assert found == {"trainer/process/child_process.py", "flows/__init__.py"}


@pytest.mark.parametrize("module", ["phasewise.trainer", "phasewise.trainer.preflight"])
def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path, module: str):
    """`tests/end_to_end/test_own_text.py` runs everything in such a folder, and `tests/deployments/up.py` brings everything up in one."""
    ended = subprocess.run(python_command(module), cwd=write_shadows(tmp_path), capture_output=True, text=True, check=False)
    assert ended.stderr.startswith(f"usage: python -m {module}")


def test_without_the_flag_the_folder_is_in_the_way(tmp_path: Path):
    (tmp_path / "random.py").write_text("raise SystemExit('was imported from the current folder')\n")
    command = [word for word in python_command("phasewise.trainer.process.devices") if word != "-P"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "was imported from the current folder" in ended.stderr


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


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path):
    assert last_line(tmp_path / "log") == ""
    assert ending_with_reason(-signal.SIGTERM, tmp_path / "log").startswith("was ended by SIGTERM: its log says nothing")
