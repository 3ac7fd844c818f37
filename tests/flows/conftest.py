"""The command line in this process, a home, and the file of a small recipe."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from experiments.survival.runs import tiny_recipe
from phasewise.flows.cli import main
from phasewise.tasks.home import Home
from tests.flows.commands import Run


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(str(tmp_path))


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(tiny_recipe().model_dump_json())
    return str(path)


@pytest.fixture
def phasewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHASEWISE_HOME", raising=False)

    def run(command: str, *arguments: object) -> Result:
        return CliRunner().invoke(main.main, [*command.split(), *map(str, arguments)])

    return run
