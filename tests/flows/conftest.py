"""The command line in this process."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phasewise.flows.cli import main
from tests.flows.commands import Run


@pytest.fixture
def phasewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHASEWISE_HOME", raising=False)

    def run(command: str, *arguments: object) -> Result:
        return CliRunner().invoke(main.main, [*command.split(), *map(str, arguments)])

    return run
