import subprocess
import sys
from pathlib import Path

from tests.processor_time import NAME, lines

ROOT = Path(__file__).parents[1]
TESTS = """
import subprocess, sys

BUSY = "import time; end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"

def test_here():
    exec(BUSY)

def test_elsewhere():
    subprocess.run([sys.executable, "-c", BUSY], check=True)
"""


def test_the_longest_files_come_first_and_short_ones_are_in_the_sum():
    found = lines({"a": 20.0, "b": 1.0, "c": 30.25})
    assert found == ["   30.2 c", "   20.0 a", "   51.2 all 3 files"]
    assert lines({"a": 1.0}) == []


def test_time_of_the_process_and_of_its_children_is_counted_by_file_also_where_two_share_the_work(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests import processor_time\nprocessor_time.MIN_SECONDS = 0.6\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.processor_time", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run([*command, str(tmp_path), "--rootdir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.partition(NAME)[2].splitlines()[1:4]
    assert [line.split()[1].rpartition("/")[2] for line in said] in (
        ["test_one.py", "test_two.py", "all"],
        ["test_two.py", "test_one.py", "all"],
    )
    one, two, both = (float(line.split()[0]) for line in said)
    assert min(one, two) >= 0.6
    assert abs(both - one - two) <= 0.2
