"""What a report says first."""

from types import SimpleNamespace
from typing import cast

import pytest

from phasewise.flows.status.phase_status import PhaseRecord
from phasewise.flows.status.recipe_status import headline, status_of


def records(**states: str) -> list[PhaseRecord]:
    """A phase with each of these states."""
    return [cast(PhaseRecord, SimpleNamespace(phase=SimpleNamespace(name=name), state=state)) for name, state in states.items()]


@pytest.mark.parametrize(
    ("states", "status", "sentence"),
    [
        ({"one": "done"}, "passed", "The phase trained on judged data and passed its gate."),
        ({"one": "done", "two": "done", "three": "done"}, "passed", "All 3 phases trained on judged data and passed their gates."),
        ({"one": "done", "two": "not reached", "three": "not reached"}, "unfinished", "1 of 3 phases are done; next is two."),
        ({"one": "done", "two": "refused", "three": "not reached"}, "stopped", "1 of 3 phases passed; refused: two."),
        (
            {"one": "waits for a person", "two": "not reached"},
            "stopped",
            "0 of 2 phases passed; waiting for a person: one.",
        ),
    ],
)
def test_a_phase_that_is_still_to_come_stops_nothing(states: dict[str, str], status: str, sentence: str):
    assert (status_of(records(**states)), headline(records(**states))) == (status, sentence)
