"""The README's first page, as a newcomer types it: own text, `new`, `run`, report."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.evaluation.conftest import write_prose
from trainer.base.storage import read_json

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: it takes two and a half minutes of processor time
ROOT = Path(__file__).parents[2]


def lines_of_the_readme() -> list[str]:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"<!-- your own text: a test runs these lines -->\n```\n(.*?)```", text, re.DOTALL)
    return block.splitlines()


def test_the_lines_of_the_readme_end_with_a_report(tmp_path: Path):
    folder = tmp_path / "my_text"
    folder.mkdir()
    for number in range(4):
        (folder / f"notes-{number}.txt").write_text("\n\n".join(write_prose(100 * number + part, 120) for part in range(60)))
    (folder / "diary.md").write_text("\n\n".join(write_prose(1000 + part, 80) for part in range(60)))
    environment = {name: value for name, value in os.environ.items() if name not in ("PHASEWISE_HOME", "PREFECT_API_URL")}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    lines = lines_of_the_readme()
    assert lines == ["phasewise new my_recipe.py --text my_text", "phasewise run my_recipe.py"]
    said = [
        subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=850, check=False)
        for line in lines
    ]
    assert [done.returncode for done in said] == [0, 0], said[-1].stderr[-3000:]
    assert "*.md, *.txt" not in said[0].stdout, "nothing is left out, and nothing said of it"
    assert len((tmp_path / "my_recipe.py").read_text().splitlines()) <= 60
    report = tmp_path / ".phasewise" / "reports" / "my-recipe-own" / "report.html"
    assert str(report) in said[1].stdout.replace("\n", "")
    assert "as it is written" in report.read_text()
    results = [read_json(tmp_path / ".phasewise" / "runs" / "my-recipe-own" / name / "result.json") for name in ("warm-up", "cooldown")]
    assert [result["stop_step"] for result in results] == [100, 150]
    assert not list(tmp_path.rglob("__pycache__"))
