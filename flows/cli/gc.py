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
from phasewise.flows.resolved import RecipeOrigin, Resolved, resolve
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.disk_usage import find_removable, remove, size_of
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, PhasewiseError
from phasewise.trainer.base.storage import read_json


def collect_garbage(recipes: Iterable[str], home: str | None, *, deletes: bool, with_trials: bool) -> dict[str, Any]:
    """Find or delete everything that may go, in the shape of `--json`.

    Raises ConfigError for a home on a store, and for a home with runs or data of a recipe file that is not named.
    """
    opened = Home.at(home, reads_only=not deletes)
    if not opened.is_local:
        raise ConfigError(f"gc: expected a home on this machine, found {opened.root}. Set a lifecycle rule of the bucket instead.")
    resolved = [resolve(name, scale_of(name, None), home, reads_only=True)[0] for name in recipes]
    _check_all_named(opened, resolved)
    named = {one.recipe.run_name for one in resolved}
    for folder in sorted(opened.runs.glob("*")):
        name, _, scale = folder.name.rpartition("-")
        if name in NAMES and folder.name not in named:
            with suppress(PhasewiseError):
                resolved.append(resolve(name, scale, home, reads_only=True)[0])  # pyright: ignore[reportArgumentType]  # a scale
    with opened.held("`phasewise gc`") if deletes else nullcontext():
        plans: list[DataPlan] = []
        evidence: list[Path] = []
        for one in resolved:
            try:
                if not missing_stand_ins(one.stand_ins, opened.sources):
                    plans.append(one.plan)
                    evidence += evidence_of(one, one.recipe.phases)
            except PhasewiseError as error:
                say(f"{one.recipe.run_name}: its sources cannot be read, so only outdated data of other recipes are found ({error})")
        found = find_removable(opened, plans, evidence, with_trials=with_trials)
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


def _check_all_named(home: Home, resolved: Iterable[Resolved]) -> None:
    named = {one.recipe.run_name for one in resolved}
    files: dict[str, str] = {}
    for path in sorted((home.root / "recipes").glob("*.json")):
        with suppress(OSError, ValueError, ValidationError):
            origin = RecipeOrigin.model_validate(read_json(path))
            file = origin.file.rpartition(":")[0] if ".py:" in origin.file else origin.file
            if path.stem not in named and Path(file).exists():
                files[path.stem] = origin.file
    if files:
        raise ConfigError(
            f"gc: expected every recipe file with data in {home.root}, found no {', '.join(files)}. Name all of them, so that their data "
            f"are kept: `phasewise gc {' '.join(sorted(files.values()))}` with the recipes already named."
        )


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
