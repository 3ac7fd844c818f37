"""`phasewise status`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.phase_status import Again, Finding, read_record
from phasewise.flows.status.recipe_status import find_of_recipe
from phasewise.flows.status.retraining import phases_to_train
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.evaluation.ngram_baselines import baselines_path
from phasewise.tasks.inventory import AGAIN, EXPORT, RESTORE, ChangedFile, changed_files
from phasewise.tasks.training.time_breakdown import TimeBreakdown, read_time_breakdown, words_of
from phasewise.trainer.base.errors import DataError, PhasewiseError
from phasewise.trainer.base.wording import name_some

FILES = "files"
"""The name of a finding about files that are not as they were written."""
CHANGED = "changed after they were written: "
MAX_NAMED = 5
AGAIN_BY: Mapping[str, Again] = {EXPORT: "report", RESTORE: "train", AGAIN: "judge"}


def describe(target: str, scale: Scale, home: str | None, *, reads_all: bool = False) -> dict[str, Any]:
    """What holds of each phase, what must be done again, and why: in the shape of `--json`. Nothing is done.

    Args:
        reads_all: every byte of the recipe's files is read. Else a file is read if its size or its times have changed.
    """
    resolved, phase = resolve(target, scale, home, reads_only=True)
    if reads_all:
        resolved = replace(resolved, digests=KnownDigests(resolved.home, reads_all=True))
    recipe = resolved.recipe
    wanted = phases_to_train(recipe, phase)
    of_recipe: tuple[Finding, ...] = ()
    try:
        records = [read_record(resolved, one) for one in wanted]
    except DataError as error:
        missing = Finding(what="sources", holds=False, again="prepare", why=_why_no_sources(resolved, error))
        found = [(one.name, "not reached", (missing,)) for one in wanted]
    else:
        changed = changed_files(resolved.home, resolved.plan, recipe.run_name, resolved.digests, _evidence(resolved, wanted))
        found = [(one.phase.name, one.state, (*one.findings, *_files(changed, one.phase.name))) for one in records]
        of_recipe = (*(() if phase else find_of_recipe(resolved, records)), *_files(changed, None))
    phases = [
        {
            "name": name,
            "state": state,
            "results": [finding.model_dump(mode="json") for finding in findings],
            "spent": spent.model_dump(mode="json") if (spent := read_time_breakdown(resolved.home.run(recipe.run_name, name))) else None,
        }
        for name, state, findings in found
    ]
    results = [finding.model_dump(mode="json") for finding in of_recipe]
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": phases, "results": results}


def _evidence(resolved: Resolved, phases: Sequence[Phase]) -> Iterator[Path]:
    from phasewise.tasks.validation.scan_caches import kept_evidence  # it imports the scan

    for phase in phases:
        with suppress(PhasewiseError):  # nothing is prepared yet: a finding of its own
            yield from kept_evidence(resolved.plan, phase.components, phase.gates.data.leakage, resolved.home)
    yield baselines_path(resolved.plan, resolved.home, resolved.recipe.phases[0].evaluation.held_out_tokens)


def _files(changed: Sequence[ChangedFile], phase: str | None) -> tuple[Finding, ...]:
    named: dict[str, list[str]] = {}
    for one in changed:
        if one.phase == phase:
            named.setdefault(one.remedy, []).append(one.path)
    words = {remedy: f"{CHANGED}{name_some(files, MAX_NAMED)}. To do: {remedy}" for remedy, files in named.items()}
    return tuple(Finding(what=FILES, holds=False, again=AGAIN_BY.get(remedy, "prepare"), why=why) for remedy, why in words.items())


def _why_no_sources(resolved: Resolved, error: DataError) -> str:
    missing = missing_stand_ins(resolved.stand_ins, resolved.home.sources)
    return f"the text of {len(missing)} components is not collected from this installation yet" if missing else str(error)


def is_done(description: dict[str, Any]) -> bool:
    """Whether every phase is done, no file was changed, and what is of the recipe as a whole holds."""
    phases = description["phases"]
    if any(one["what"] == FILES for phase in phases for one in phase["results"]):
        return False
    return all(phase["state"] == "done" for phase in phases) and all(found["holds"] for found in description["results"])


def print_description(description: dict[str, Any]) -> None:
    """A line a phase, and one for each thing that keeps it from being done; at the end what is of the recipe as a whole."""
    console = Console(highlight=False, soft_wrap=True)
    for phase in description["phases"]:
        console.print(f"{phase['name']}: {phase['state']}", markup=False)
        if phase["spent"]:
            console.print(f"  trained in {words_of(TimeBreakdown.model_validate(phase['spent']))}", markup=False)
        _print_what_lacks(console, phase["results"], "  ")
    _print_what_lacks(console, description["results"], "")


def _print_what_lacks(console: Console, results: list[dict[str, Any]], before: str) -> None:
    for found in results:
        if found["why"]:
            console.print(f"{before}{found['again'] or 'refused'}: {found['why']}", markup=False)
