"""Five quick replays of public incidents with their twins, and the agreement of the table's names and functions."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from experiments.incidents.__main__ import MODULES, STAGES, page_of, read_incidents, replay, source_of
from tests.compilation import compile_from_now_on

QUICK = (
    "eight-cells-of-a-mixture-round-to-zero", "average-has-its-decay-backwards", "learning-rate-jumps-by-17",
    "relaunch-discards-the-newest-steps", "tokens-lie-outside-the-vocabulary",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    compile_from_now_on(quickly=True)


def test_each_incident_has_a_function_and_each_function_an_incident():
    incidents = read_incidents()
    functions: set[str] = set()
    for module in (import_module(f"experiments.incidents.{name}") for name in MODULES):
        replays = inspect.getmembers(
            module, lambda found: inspect.isfunction(found) and list(inspect.signature(found).parameters) == ["case"]
        )
        functions |= {name.replace("_", "-") for name, _ in replays}
    assert {name for name, one in incidents.items() if not {"record", "own"} & set(one)} == functions
    assert len(incidents) >= 40
    for incident in incidents.values():
        assert incident["happens"] in STAGES
        assert source_of(incident)


def test_incidents_are_caught_in_time_and_their_twins_pass(tmp_path: Path):
    incidents = read_incidents()
    outcomes = [replay(incidents[name], tmp_path) for name in QUICK]
    assert [(one.incident["name"], one.is_caught, one.twin_said) for one in outcomes] == [(name, True, None) for name in QUICK]
    assert [one.when for one in outcomes] == ["recipe", "recipe", "recipe", "start", "start"]
    page = page_of(outcomes)
    assert "5 of 5 caught before or at the step where they happen, 0 of 5 twins refused." in page
    assert str(tmp_path) not in page
