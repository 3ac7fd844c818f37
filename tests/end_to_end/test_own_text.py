"""The README's first page, as a newcomer types it: own text, `new`, `run`, report."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from phasewise.trainer.base.storage import read_json
from tests.shadows import write_shadows
from tests.tasks.evaluation.conftest import write_prose

ROOT = Path(__file__).parents[2]
NEW, RUN = "phasewise new my_recipe.py --text my_text", "phasewise run my_recipe.py"


@pytest.fixture
def typed(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run a line in a folder of own text where every import from the current folder would fail."""
    write_shadows(tmp_path)
    (text := tmp_path / "my_text").mkdir()
    for number in range(4):
        (text / f"notes-{number}.txt").write_text("\n\n".join(write_prose(100 * number + part, 120) for part in range(60)))
    (text / "diary.md").write_text("\n\n".join(write_prose(1000 + part, 80) for part in range(60)))
    ours = ("PHASEWISE_HOME", "PREFECT_API_URL", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return partial(subprocess.run, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_the_first_line_of_the_readme_makes_a_recipe(typed: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path):
    (block,) = re.findall(r"<!-- your own text: a test runs these lines -->\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block.splitlines() == [NEW, RUN]
    new = typed(NEW)
    assert new.returncode == 0, new.stderr
    assert "*.md, *.txt" not in new.stdout, "nothing is left out"
    assert len((tmp_path / "my_recipe.py").read_text().splitlines()) <= 60


@pytest.mark.long
@pytest.mark.timeout(900)  # a guard against hanging: the test takes two and a half minutes of processor time
def test_the_second_line_of_the_readme_trains_both_phases_and_reports(
    typed: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
):
    new, run = typed(NEW), typed(RUN)
    assert (new.returncode, run.returncode) == (0, 0), new.stderr + run.stderr[-3000:]
    home, name = tmp_path / ".phasewise", "my-recipe-own"
    assert [read_json(home / "runs" / name / phase / "result.json")["stop_step"] for phase in ("warm-up", "cooldown")] == [100, 150]
    assert all(read_json(home / "verdicts" / name / "warm-up" / f"{gate}.json")["passes"] for gate in ("data", "model"))
    report = home / "reports" / name / "report.html"
    assert str(report) in run.stdout.replace("\n", "")
    assert "as it is written" in report.read_text()
    assert not list(tmp_path.rglob("__pycache__"))
