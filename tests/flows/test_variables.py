"""A misspelt variable is a setting that nothing reads: it is said."""

import pytest
from click.testing import CliRunner

from phasewise.flows.cli.main import main, names_in_code, words_of_unread
from phasewise.tasks.training.select_launcher import LAUNCHER_VARIABLE, PROCESSES_VARIABLE


def test_a_misspelt_variable_is_said_with_the_one_that_is_meant():
    given = {LAUNCHER_VARIABLE: "local", "PHASEWISE_PROCESES": "2", "PHASEWISE_TEST_SEED": "1", "HOME": "/", "PHASEWISE_ZZZ_QQQ": ""}
    assert words_of_unread(given) == [
        "PHASEWISE_PROCESES is no setting of Phasewise, and nothing reads it: do you mean PHASEWISE_PROCESSES?",
        "PHASEWISE_ZZZ_QQQ is no setting of Phasewise, and nothing reads it.",
    ]


def test_the_names_are_those_that_the_code_has():
    assert {LAUNCHER_VARIABLE, PROCESSES_VARIABLE, "PHASEWISE_HOME", "PHASEWISE_GKE_IMAGE"} <= names_in_code()


def test_the_code_is_read_only_where_there_is_such_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.flows.cli.main.names_in_code", lambda: pytest.fail("it was read"))
    assert words_of_unread({"HOME": "/"}) == []


def test_every_command_says_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_LAUNCHR", "tpu_vm")
    done = CliRunner().invoke(main, ["order", "feistel", "64"])
    assert "PHASEWISE_LAUNCHR is no setting of Phasewise" in done.stderr
    assert "PHASEWISE_LAUNCHR" not in done.stdout
