"""`phasewise status`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from flows.ancestors import phases_to_train
from flows.finished import find_of_recipe
from flows.recipes.phase import Phase
from flows.recipes.recipe import Scale
from flows.record import Finding, read_record
from flows.resolved import Resolved, resolve
from tasks.data.standins import missing_stand_ins
from tasks.data.touched import changed_files
from tasks.prediction.account import Account, read_account, words_of_account
from tasks.training.spent import Spent, read_spent, words_of
from trainer.base.errors import DataError
from trainer.base.wording import name_some
from trainer.data.manifest import SPLITS

SHARDS = "shards"
"""What a finding is called that a file of a cache was changed."""


def describe(target: str, scale: Scale, home: str | None) -> dict[str, Any]:
    """What holds of each phase, what must be done again, and why: in the shape of `--json`. Nothing is done."""
    resolved, phase = resolve(target, scale, home, reads_only=True)
    recipe = resolved.recipe
    wanted = phases_to_train(recipe, phase)
    of_recipe: tuple[Finding, ...] = ()
    try:
        records = [read_record(resolved, one) for one in wanted]
    except DataError as error:
        missing = Finding(what="sources", holds=False, again="prepare", why=_why_no_sources(resolved, error))
        found = [(one.name, "not reached", (missing,)) for one in wanted]
    else:
        damaged = _damaged_caches(resolved, wanted)
        found = [(one.phase.name, one.state, (*one.findings, *_shards_of(one.phase, damaged))) for one in records]
        of_recipe = () if phase else find_of_recipe(resolved, records)
    phases = [
        {
            "name": name,
            "state": state,
            "results": [finding.model_dump(mode="json") for finding in findings],
            "spent": spent.model_dump(mode="json") if (spent := read_spent(resolved.home.run(recipe.run_name, name))) else None,
            "predicted": account.model_dump(mode="json") if (account := read_account(resolved.home.run(recipe.run_name, name))) else None,
        }
        for name, state, findings in found
    ]
    results = [finding.model_dump(mode="json") for finding in of_recipe]
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": phases, "results": results}


def _damaged_caches(resolved: Resolved, phases: Sequence[Phase]) -> dict[str, str]:
    """Component → what of its caches is not what their manifests say, in words; those that are sound are not among them."""
    words: dict[str, str] = {}
    for name in sorted({name for phase in phases for name in phase.components}):
        caches = [cache for split in SPLITS if (cache := resolved.plan.components[name].cache(split)).is_built]
        if files := [f"{cache.folder.name}/{file}" for cache in caches for file in changed_files(cache.folder, resolved.digests)]:
            words[name] = name_some(files, 3)
    return words


def _shards_of(phase: Phase, damaged: Mapping[str, str]) -> tuple[Finding, ...]:
    """One finding of all that a phase draws from."""
    files = [words for name, words in damaged.items() if name in phase.components]
    if not files:
        return ()
    why = (
        f"changed since the cache was written: {'; '.join(files)}. `phasewise data verify` names every difference; delete the cache's "
        "folder and prepare the data again"
    )
    return (Finding(what=SHARDS, holds=False, again="prepare", why=why),)


def _why_no_sources(resolved: Resolved, error: DataError) -> str:
    missing = missing_stand_ins(resolved.stand_ins, resolved.home.sources)
    return f"the text of {len(missing)} components is not collected from this installation yet" if missing else str(error)


def is_done(description: dict[str, Any]) -> bool:
    """Whether every phase is done, no cache was changed, and what is of the recipe as a whole holds."""
    phases = description["phases"]
    if any(one["what"] == SHARDS and not one["holds"] for phase in phases for one in phase["results"]):
        return False
    return all(phase["state"] == "done" for phase in phases) and all(found["holds"] for found in description["results"])


def print_description(description: dict[str, Any]) -> None:
    """A line a phase, and one for each thing that keeps it from being done; at the end what is of the recipe as a whole."""
    console = Console(highlight=False, soft_wrap=True)
    for phase in description["phases"]:
        console.print(f"{phase['name']}: {phase['state']}", markup=False)
        if phase["spent"]:
            console.print(f"  trained in {words_of(Spent.model_validate(phase['spent']))}", markup=False)
        if phase["predicted"]:
            console.print(f"  {words_of_account(Account.model_validate(phase['predicted']))}", markup=False)
        _print_what_lacks(console, phase["results"], "  ")
    _print_what_lacks(console, description["results"], "")


def _print_what_lacks(console: Console, results: list[dict[str, Any]], before: str) -> None:
    for found in results:
        if found["why"]:
            console.print(f"{before}{found['again'] or 'refused'}: {found['why']}", markup=False)
