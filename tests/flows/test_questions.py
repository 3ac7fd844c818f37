import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from phasewise.flows.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "questions.md"
QUESTIONS = re.findall(r"^## (\d+)\. (.*?)\n.*?```console\n\$ phasewise (.*?)\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def squeezed(text: str) -> str:
    return " ".join(re.sub(r"[│├└─]", " ", text).split())


def test_there_are_ten():
    assert [int(number) for number, *_ in QUESTIONS] == list(range(1, 11))
    assert PAGE.read_text().count("```console") == 10


@pytest.mark.parametrize(("number", "question", "command", "shown"), QUESTIONS, ids=[number for number, *_ in QUESTIONS])
def test_a_question_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, question: str, command: str, shown: str):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(main.main, shlex.split(command))
    assert (result.exit_code, result.stderr) == (0, ""), f"{number}. {question}"
    printed, place = squeezed(result.stdout), 0
    for answer in filter(None, map(squeezed, shown.split("…\n"))):
        assert answer in printed, answer
        found = printed.find(answer, place)
        assert found >= 0, f"{answer} comes before what the page shows above it"
        place = found + len(answer)
    assert list(tmp_path.iterdir()) == []
