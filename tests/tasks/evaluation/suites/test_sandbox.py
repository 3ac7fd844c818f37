import json
import os
import socket
from pathlib import Path

import pytest

from phasewise.tasks.evaluation import sandbox
from phasewise.tasks.evaluation.sandbox import GUARDS, Limits, check_sandbox, run_program
from phasewise.tasks.evaluation.suite import program_of
from phasewise.trainer.base.errors import EvaluationError

QUICK = Limits(cpu_seconds=1, seconds=2.0, memory_bytes=1 << 29, file_bytes=1 << 16)
ITEMS = Path(__file__).parents[5] / "shared" / "benchmarks" / "humaneval" / "test.jsonl"


@pytest.mark.parametrize(
    "program", ["x = 1", "import heapq, typing, collections\nassert sorted([2, 1]) == [1, 2]", "open('a', 'w').write('x')"]
)
def test_a_program_that_comes_to_its_end_passes(program: str):
    assert run_program(program, QUICK).passed


@pytest.mark.parametrize("program", [
    "assert 1 == 2", "def broken(:", "import os; os._exit(0)", "raise SystemExit(0)", "while True: pass", "import time; time.sleep(60)",
    "import os\nwhile True: os.fork()", "import _posixsubprocess, os\nwhile True: os.fork()", "x = ' ' * (1 << 32)",
    "open('large', 'wb').write(b'x' * (1 << 20))", "import os; os.kill(os.getppid(), 9)",
    "import os, signal\ntry: os.kill(1, signal.SIGKILL)\nexcept BaseException: pass", "import subprocess; subprocess.run(['true'])",
    "import os; os.system('true')", "import ctypes; ctypes.CDLL(None)", "def f(): f()\nf()",
])  # fmt: skip
def test_a_program_that_does_not_has_failed(program: str):
    assert not run_program(program, QUICK).passed


def test_nothing_is_written_removed_or_reached_outside(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        programs = [
            f"open({str(tmp_path / 'new')!r}, 'w')",
            f"import os; os.open({str(tmp_path / 'new')!r}, os.O_CREAT | os.O_WRONLY)",
            f"try: open({str(mine)!r}, 'a').write('x')\nexcept BaseException: pass",
            f"import os; os.remove({str(mine)!r})",
            f"import os; os.rename({str(mine)!r}, 'a')",
            f"import socket; socket.create_connection(('127.0.0.1', {port}))",
        ]
        assert [run_program(program, QUICK).passed for program in programs] == [False] * len(programs)
        with pytest.raises(TimeoutError):
            server.accept()
    assert (mine.read_text(), sorted(path.name for path in tmp_path.iterdir())) == ("mine", ["mine"])


def test_the_kernel_refuses_what_python_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child = tmp_path / "child.py"
    child.write_text(sandbox.CHILD.read_text().replace("    sys.addaudithook(watch)\n", ""))
    monkeypatch.setattr(sandbox, "CHILD", child)
    ran = check_sandbox()
    assert ran.passed
    attempts = {
        "files": f"try: open({str(tmp_path / 'new')!r}, 'w')\nexcept OSError: done = True\nassert done",
        "processes": f"import os\ntry: os.kill({os.getpid()}, 0)\nexcept OSError: done = True\nassert done",
        "network": (
            "import socket\nask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "try: ask.sendto(b'x', ('192.0.2.1', 53))\nexcept OSError as error: done = error.errno == 101\nassert done"
        ),
    }
    assert {guard: run_program(attempts[guard], QUICK).passed for guard in ran.guarded} == dict.fromkeys(ran.guarded, True)
    if set(ran.guarded) != set(GUARDS):
        pytest.skip(f"this kernel keeps only {', '.join(ran.guarded) or 'nothing'} from a program")


def test_a_sandbox_that_runs_nothing_is_an_error_and_not_a_score_of_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "CHILD", tmp_path / "gone.py")
    with pytest.raises(EvaluationError, match="must run a harmless program, and does not"):
        check_sandbox()


def test_solutions_are_judged_by_the_tests_of_their_items():
    item = {"test_setup_code": "two = 2", "test_list": ["assert twice(1) == two", "assert twice(2) == 4"]}
    assert run_program(program_of("mbpp", item, "def twice(n): return 2 * n")).passed
    assert not run_program(program_of("mbpp", item, "def twice(n): return 2")).passed
    if not ITEMS.exists():
        pytest.skip("the items of HumanEval are not here")
    items = [json.loads(line) for line in ITEMS.read_text().splitlines()][::8]
    programs = [program_of("humaneval", item, item["canonical_solution"]) for item in items]
    assert [run_program(program).passed for program in programs] == [True] * len(items)
    unsolved = [program_of("humaneval", item, "    pass\n") for item in items[:5]]
    assert not any(run_program(program).passed for program in unsolved)
