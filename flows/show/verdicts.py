"""What a home says of a phase, at a glance: read from the few files that say it, with no plan and no heavy library.

`phasewise status` asks more: whether every result still holds for the sources, the code and the settings as they are now.
"""

from pathlib import Path
from typing import Any

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import RunFolder

GATES = ("data", "health", "model")
COMPARED = ("start_step", "stop_step", "model", "optimizer", "learning_rate", "stability", "order")
"""What `run.json` has of the phase itself, as the phase has it."""


def verdict_here(recipe: Recipe, phase: Phase, home: Home) -> dict[str, Any]:
    """`state` is "passed", "refused", "waits for a person", "out of date" or None where the phase is not finished here; `why` says more."""
    verdicts = {gate: _read(home.verdict(recipe.run_name, phase.name, gate)) for gate in GATES}
    limits = {"data": phase.gates.data, "health": phase.gates.health, "model": phase.gates.model}
    for gate, verdict in verdicts.items():
        if verdict is None:
            continue
        if verdict.get("thresholds") != limits[gate].model_dump(mode="json"):
            return {"state": "out of date", "why": f"its verdict on {gate} was given within other limits"}
        if why := _why_stopped(home.verdict(recipe.run_name, phase.name, gate), verdict):
            return why
    run = _read(RunFolder(home.run(recipe.run_name, phase.name)).run_file)
    if run and (changed := _changed(run, phase)):
        return {"state": "out of date", "why": f"it was trained with other values of {', '.join(changed)}"}
    return {"state": "passed" if all(verdicts.values()) else None, "why": ""}


def _why_stopped(path: Path, verdict: dict[str, Any]) -> dict[str, Any] | None:
    """None where the phase may go on. A decision that does not read stops it, too."""
    try:
        ruling = ruling_at(path, verdict)
    except VerdictError as error:
        return {"state": "refused", "why": str(error)}
    if ruling.lets_go_on:
        return None
    reasons = verdict.get("reasons") or [{"what": f"see verdicts/{path.parent.parent.name}/{path.parent.name}/{path.name}"}]
    if ruling.state == "waits":
        return {"state": "waits for a person", "why": reasons[0]["what"]}
    return {"state": "refused", "why": ruling.decision.words if ruling.decision else reasons[0]["what"]}


def _read(path: Path) -> dict[str, Any] | None:
    """None also where the file cannot be read: then nothing is known."""
    try:
        return read_sealed(path, may_lack_seal=True)
    except (OSError, NotAsWritten):
        return None


def _changed(run: dict[str, Any], phase: Phase) -> list[str]:
    dumped: dict[str, Any] = {"start_step": phase.start_step, "stop_step": phase.stop_step}
    dumped |= {name: getattr(phase, name).model_dump(mode="json") for name in ("model", "optimizer", "stability", "order")}
    dumped["learning_rate"] = [segment.model_dump(mode="json") for segment in phase.learning_rate]
    return [name for name in COMPARED if _without_defaults(run.get(name)) != _without_defaults(dumped[name])]


def _without_defaults(value: Any) -> Any:
    """Without fields that came later and have the value of before: a run of before has none of them."""
    from phasewise.trainer.config import without_added

    return without_added(value)
