"""The README's first page, as a newcomer types it: own text, `new`, `run`, report.

The run is begun once. Each test waits until it has come further, and looks at what is there then.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from phasewise.trainer.base.storage import read_json
from tests.shadows import write_shadows
from tests.tasks.evaluation.conftest import write_prose

pytestmark = pytest.mark.timeout(900)  # a guard against hanging: all together take two and a half minutes of processor time
ROOT = Path(__file__).parents[2]


def lines_of_the_readme() -> list[str]:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"<!-- your own text: a test runs these lines -->\n```\n(.*?)```", text, re.DOTALL)
    return block.splitlines()


class Newcomer(NamedTuple):
    """A folder in which somebody has typed the lines, and the process of the last one, which may still be at work."""

    folder: Path
    made: subprocess.CompletedProcess[str]
    run: subprocess.Popen[str]

    @property
    def home(self) -> Path:
        return self.folder / ".phasewise"

    def waits_until(self, holds: Callable[[], bool]) -> None:
        """That the run ends first fails the test."""
        while not holds():
            with suppress(subprocess.TimeoutExpired):
                self.run.wait(0.1)
            assert self.run.poll() in (None, 0), (self.folder / "errors").read_text()[-3000:]
            assert holds() or self.run.poll() is None, "the run ended first"

    def result(self, phase: str) -> Path:
        return self.home / "runs" / "my-recipe-own" / phase / "result.json"

    def steps(self, phase: str) -> int:
        metrics = self.result(phase).with_name("metrics.jsonl")
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def write_text(folder: Path) -> None:
    folder.mkdir()
    for number in range(4):
        (folder / f"notes-{number}.txt").write_text("\n\n".join(write_prose(100 * number + part, 120) for part in range(60)))
    (folder / "diary.md").write_text("\n\n".join(write_prose(1000 + part, 80) for part in range(60)))


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    folder = tmp_path_factory.mktemp("newcomer")
    write_shadows(folder)
    write_text(folder / "my_text")
    ours = ("PHASEWISE_HOME", "PREFECT_API_URL", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    new, run = lines_of_the_readme()
    made = subprocess.run(new, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    with (
        open(folder / "said", "w") as said,
        open(folder / "errors", "w") as errors,
        subprocess.Popen(f"exec {run}", shell=True, cwd=folder, env=environment, stdout=said, stderr=errors, text=True) as process,
    ):
        yield Newcomer(folder, made, process)
        process.kill()


def test_the_lines_write_a_short_recipe_and_its_data_are_judged(newcomer: Newcomer):
    assert lines_of_the_readme() == ["phasewise new my_recipe.py --text my_text", "phasewise run my_recipe.py"]
    assert newcomer.made.returncode == 0, newcomer.made.stderr
    assert "*.md, *.txt" not in newcomer.made.stdout, "nothing is left out, and nothing said of it"
    assert len((newcomer.folder / "my_recipe.py").read_text().splitlines()) <= 60
    newcomer.waits_until(lambda: (newcomer.home / "verdicts" / "my-recipe-own" / "warm-up" / "data.json").exists())


@pytest.mark.parametrize("steps", [10, 40, 70])
def test_the_first_phase_trains(newcomer: Newcomer, steps: int):
    newcomer.waits_until(lambda: newcomer.steps("warm-up") >= steps)


def test_the_first_phase_is_trained(newcomer: Newcomer):
    newcomer.waits_until(newcomer.result("warm-up").exists)
    assert read_json(newcomer.result("warm-up"))["stop_step"] == 100


def test_the_first_phase_passes_its_gates(newcomer: Newcomer):
    verdict = newcomer.home / "verdicts" / "my-recipe-own" / "warm-up" / "model.json"
    newcomer.waits_until(verdict.exists)
    assert read_json(verdict)["passes"] is True


def test_the_second_phase_is_trained(newcomer: Newcomer):
    newcomer.waits_until(newcomer.result("cooldown").exists)
    assert read_json(newcomer.result("cooldown"))["stop_step"] == 150


def test_the_run_ends_with_a_report(newcomer: Newcomer):
    newcomer.waits_until(lambda: newcomer.run.poll() is not None)
    assert newcomer.run.returncode == 0
    report = newcomer.home / "reports" / "my-recipe-own" / "report.html"
    assert str(report) in (newcomer.folder / "said").read_text().replace("\n", "")
    assert "as it is written" in report.read_text()
    assert not list(newcomer.folder.rglob("__pycache__"))
