"""The types of all options: a number is finite, and a place is named. A walk over every command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from phasewise.flows.cli import main
from phasewise.flows.cli.options import FiniteFloat, NamedPlace
from tests.flows.commands import Run, assert_refused

PLACES = {"DIR", "FILE", "FOLDER", "URL", "OUT", "PATH"}
NOT_FINITE = ("nan", "NAN", "inf", "-inf", "1e999", "-1e999")


def parameters(command: click.Command = main.main, words: str = "phasewise") -> Iterator[tuple[str, click.Parameter]]:
    """Every option and argument, after the words of its command."""
    for name, one in command.commands.items() if isinstance(command, click.Group) else ():
        yield from parameters(one, f"{words} {name}")
    yield from ((f"{words} {one.opts[-1]}", one) for one in command.params)


def test_every_number_of_every_command_is_finite():
    found: dict[str, Any] = {words: one.type for words, one in parameters()}
    floats: dict[str, Any] = {words: kind for words, kind in found.items() if isinstance(kind, click.types.FloatParamType)}
    assert len(floats) >= 4
    assert [words for words, kind in floats.items() if not isinstance(kind, FiniteFloat)] == []
    for kind in floats.values():
        for text in NOT_FINITE:
            with pytest.raises(click.BadParameter, match="expected a finite number"):
                kind.convert(text, None, None)
    whole: list[Any] = [kind for kind in found.values() if isinstance(kind, click.types.IntParamType)]
    for kind in whole:
        with pytest.raises(click.BadParameter):
            kind.convert("nan", None, None)


def test_every_place_of_every_command_is_named():
    found = [(words, one.type) for words, one in parameters() if one.metavar in PLACES]
    assert len(found) > 30
    unchecked = [words for words, kind in found if not isinstance(kind, NamedPlace | click.Path)]
    assert unchecked == []
    for text in ("", " ", "\t", "a\0b"):
        with pytest.raises(click.BadParameter, match="expected a path or a URL"):
            NamedPlace().convert(text, None, None)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("data prepare marin-8b --plan", ("--price-per-hour", "nan")),
        ("preflight marin-8b", ("--price-per-gib", "nan")),
        ("status marin-8b", ("--home", "")),
        ("run marin-8b", ("--home", " ")),
    ],
)
def test_wrong_usage_names_the_option(phasewise: Run, command: str, arguments: tuple[str, str]):
    result = phasewise(command, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"Error: Invalid value for '{arguments[0]}': expected a ")


def test_an_empty_variable_is_no_home(phasewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for value in ("", " "):
        monkeypatch.setenv("PHASEWISE_HOME", value)
        for command in ("status", "show", "run", "data prepare"):
            assert_refused(phasewise(command, "marin-8b"), 2, "PHASEWISE_HOME: expected a folder or a gs:// URL, found")
    assert list(tmp_path.iterdir()) == []
