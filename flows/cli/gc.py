"""`phasewise gc`: the files of a home that neither a result nor a recipe needs."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.filesize import decimal

from phasewise.flows.cli.status import evidence_of
from phasewise.flows.recipes import NAMES, scale_of
from phasewise.flows.resolved import RecipeOrigin, resolve
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.disk_usage import find_removable, remove, size_of
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, PhasewiseError
from phasewise.trainer.base.storage import read_json


def collect_garbage(recipes: Iterable[str], home: str | None, *, deletes: bool, with_trials: bool) -> dict[str, Any]:
    """Find or delete removable files, in the shape of `--json`. Raises ConfigError for a store, and as `_others`."""
    opened = Home.at(home, reads_only=not deletes)
    if not opened.is_local:
        raise ConfigError(f"gc: expected a home on this machine, found {opened.root}. Set a lifecycle rule of the bucket instead.")
    resolved = {one.recipe.run_name: one for name in recipes if (one := resolve(name, scale_of(name, None), home, reads_only=True)[0])}
    unplanned: list[str] = []
    for run_name, name in _others(opened, recipes).items():
        if run_name not in resolved:
            try:
                scale: Any = run_name.rpartition("-")[2]
                resolved[run_name] = resolve(name, scale, home, reads_only=True)[0]
            except PhasewiseError as error:
                unplanned.append(f"{run_name} ({error})")
    with opened.held("`phasewise gc`") if deletes else nullcontext():
        plans: list[DataPlan] = []
        evidence: list[Path] = []
        for run_name, one in resolved.items():
            try:
                if missing := missing_stand_ins(one.stand_ins, opened.sources):
                    unplanned.append(f"{run_name} (the text of {len(missing)} components is not collected)")
                else:
                    plans.append(one.plan)
                    evidence += evidence_of(one, one.recipe.phases)
            except PhasewiseError as error:
                unplanned.append(f"{run_name} ({error})")
        if unplanned:
            say(f"tokenizers, benchmarks and evidence are kept, because these recipes cannot be planned: {'; '.join(unplanned)}")
        found = find_removable(opened, plans, evidence, knows_all=not unplanned, with_trials=with_trials)
        if deletes:
            remove(found)
    return {
        "home": str(opened.root),
        "bytes": size_of(opened.root) + (sum(one.size_bytes for one in found) if deletes else 0),
        "removable_bytes": sum(one.size_bytes for one in found),
        "removable": [
            {"path": one.path.relative_to(opened.root).as_posix(), "bytes": one.size_bytes, "reason": one.reason} for one in found
        ],
        "deleted": deletes,
    }


def _others(home: Home, recipes: Iterable[str]) -> dict[str, str]:
    """Return run name → recipe, of included recipes and named files. Raises ConfigError for data of an unnamed file."""
    given = {_path(name) for name in recipes}
    names = {folder.name: folder.name.rpartition("-")[0] for folder in sorted(home.runs.glob("*"))}
    found = {run_name: name for run_name, name in names.items() if name in NAMES}
    missing: dict[str, str] = {}
    for path in sorted((home.root / "recipes").glob("*.json")):
        with suppress(OSError, ValueError, ValidationError):
            file = RecipeOrigin.model_validate(read_json(path)).file
            if _path(file) in given:
                found[path.stem] = file
            elif _path(file).exists():
                missing[path.stem] = file
    if missing:
        raise ConfigError(
            f"gc: expected every recipe file with data in {home.root}, found no {', '.join(missing)}. Name all of them, so that their data "
            f"are kept: `phasewise gc {' '.join(sorted(missing.values()))}` with the recipes already named."
        )
    return found


def _path(file: str) -> Path:
    return Path(file.partition(".py:")[0] + ".py" if ".py:" in file else file).resolve()


def print_garbage(found: dict[str, Any]) -> None:
    """Print one line for each removable file or folder, then the sum and the command that deletes them."""
    console = Console(highlight=False, soft_wrap=True)
    for one in found["removable"]:
        console.print(f"{decimal(one['bytes']):>10}  {one['path']}  ({one['reason']})", markup=False)
    size = f"{decimal(found['removable_bytes'])} of {decimal(found['bytes'])} in {found['home']}"
    if found["deleted"]:
        console.print(f"deleted: {size}", markup=False)
    elif found["removable"]:
        console.print(f"removable: {size}. Nothing was deleted. Delete these with --delete.", markup=False)
    else:
        console.print(f"removable: nothing of {decimal(found['bytes'])} in {found['home']}", markup=False)
