"""`phasewise status`."""

from typing import Any

from rich.console import Console

from flows.ancestors import phases_to_train
from flows.plan import check_sources, data_plan
from flows.recipes import load_target
from flows.recipes.recipe import Scale
from flows.record import Finding, read_record
from tasks.home import Home
from trainer.errors import DataError


def describe(target: str, scale: Scale, home: str | None) -> dict[str, Any]:
    """What holds of each phase, what must be done again, and why: in the shape of `--json`. Nothing is done."""
    recipe, phase = load_target(target, scale)
    place = Home.open(home)
    try:
        check_sources(recipe, place)
        plan = data_plan(recipe, place)
    except DataError as error:
        missing = Finding(what="sources", holds=False, again="prepare", why=str(error))
        found = [(one.name, "not reached", (missing,)) for one in phases_to_train(recipe, phase)]
    else:
        records = [read_record(recipe, one, place, plan) for one in phases_to_train(recipe, phase)]
        found = [(record.phase.name, record.state, record.findings) for record in records]
    phases = [
        {"name": name, "state": state, "results": [finding.model_dump(mode="json") for finding in findings]}
        for name, state, findings in found
    ]
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": phases}


def is_done(description: dict[str, Any]) -> bool:
    """Whether every phase is done."""
    return all(phase["state"] == "done" for phase in description["phases"])


def print_description(description: dict[str, Any]) -> None:
    """A line a phase, and one for each thing that keeps it from being done."""
    console = Console(highlight=False, soft_wrap=True)
    for phase in description["phases"]:
        console.print(f"{phase['name']}: {phase['state']}", markup=False)
        for found in phase["results"]:
            if found["why"]:
                console.print(f"  {found['again'] or 'refused'}: {found['why']}", markup=False)
