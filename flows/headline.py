"""What became of a run of a recipe, in a word and in a sentence."""

from collections.abc import Sequence
from typing import Literal

from phasewise.flows.record import PhaseRecord


def status_of(records: Sequence[PhaseRecord]) -> Literal["passed", "stopped", "unfinished"]:
    """Of the whole recipe. A phase that nobody has trained yet stops nothing."""
    states = {record.state for record in records}
    if states <= {"done"}:
        return "passed"
    return "stopped" if states & {"refused", "waits for a person"} else "unfinished"


def headline(records: Sequence[PhaseRecord]) -> str:
    """What happened, in a sentence."""
    done = [record for record in records if record.state == "done"]
    if len(done) == len(records):
        every = {1: "The phase", 2: "Both phases"}.get(len(records), f"All {len(records)} phases")
        return f"{every} trained on judged data and passed {'its gate' if len(records) == 1 else 'their gates'}."
    if waiting := [record.phase.name for record in records if record.state == "waits for a person"]:
        return f"{len(done)} of {len(records)} phases passed; waiting for a person: {', '.join(waiting)}."
    if refused := [record.phase.name for record in records if record.state == "refused"]:
        return f"{len(done)} of {len(records)} phases passed; refused: {', '.join(refused)}."
    return f"{len(done)} of {len(records)} phases are done; next is {next(one.phase.name for one in records if one.state != 'done')}."
