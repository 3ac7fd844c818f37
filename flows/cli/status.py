"""`phasewise status`, `phasewise goodput`, and `phasewise gc`: the files of a home that neither a result nor a recipe needs."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import rich.box
from pydantic import ValidationError
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, print_words
from phasewise.flows.recipes import NAMES, scale_of
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import RecipeOrigin, Resolved, resolve
from phasewise.flows.status.phase_status import Again, Finding, read_states
from phasewise.flows.status.recipe_status import find_of_recipe
from phasewise.flows.status.retraining import phases_to_train
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.evaluation.ngram_baselines import baselines_path
from phasewise.tasks.home import Home
from phasewise.tasks.inventory import AGAIN, EXPORT, RESTORE, changed_files, find_removable, remove, size_of
from phasewise.tasks.phase_state import AT_WORK, PENDING, PhaseState, State
from phasewise.tasks.progress import say
from phasewise.tasks.training.time_breakdown import BUCKETS, LEAST_SHARE, Goodput, read_goodput, read_time_breakdown
from phasewise.tasks.validation.evidence_keys import kept_evidence
from phasewise.trainer.base.errors import ConfigError, DataError, PhasewiseError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.base.wording import name_some

FILES = "files"  # name of a finding on files that changed after they were written
MAX_NAMED = 5
AGAIN_BY: dict[str, Again] = {EXPORT: "report", RESTORE: "train", AGAIN: "judge"}


def describe(target: str, scale: Scale, home: str | None, *, reads_all: bool = False) -> dict[str, Any]:
    """Return states, outdated results and reasons, as JSON. Read only. `reads_all`: every byte, not only a changed size or time."""
    resolved, phase = resolve(target, scale, home, reads_only=True)
    if reads_all:
        resolved = replace(resolved, digests=KnownDigests(resolved.home, reads_all=True))
    size = {"home": size_of(resolved.home.root)} if resolved.home.is_local else {}  # refuses a home with pipes before a reader hangs
    recipe = resolved.recipe
    wanted = phases_to_train(recipe, phase)
    of_recipe: list[Finding] = []
    try:
        read = read_states(resolved, wanted)
    except DataError as error:
        missing = missing_stand_ins(resolved.stand_ins, resolved.home.sources)
        why = f"the text of {len(missing)} components is not collected from this installation yet" if missing else str(error)
        lacking = Finding(what="sources", holds=False, again="prepare", why=why)
        found = [(one.name, PhaseState(state=State.NOT_STARTED, why=why), [lacking]) for one in wanted]
    else:
        evidence = evidence_of(resolved, wanted)
        changed: dict[str | None, dict[str, list[str]]] = {}
        for file in changed_files(resolved.home, resolved.plan, recipe.run_name, resolved.digests, evidence):
            changed.setdefault(file.phase, {}).setdefault(file.remedy, []).append(file.path)
        on_files = {
            name: [
                Finding(
                    what=FILES,
                    holds=False,
                    again=AGAIN_BY.get(remedy, "prepare"),
                    why=f"changed after they were written: {name_some(paths, MAX_NAMED)}. To do: {remedy}",
                )
                for remedy, paths in by_remedy.items()
            ]
            for name, by_remedy in changed.items()
        }
        found = [
            (one.phase.name, state, [*one.findings, *on_files.get(resolved.home.run(recipe.run_name, one.phase.name).name, [])])
            for one, state in read
        ]
        of_recipe = [*(() if phase else find_of_recipe(resolved, [record for record, _ in read])), *on_files.get(None, [])]
    phases: list[dict[str, Any]] = []
    for name, state, findings in found:
        folder = RunFolder(resolved.home.run(recipe.run_name, name))
        spent = read_time_breakdown(folder.path)
        phases.append(
            {
                "name": name,
                **state.model_dump(mode="json"),
                "results": [finding.model_dump(mode="json") for finding in findings],
                "bytes": {"run": size_of(folder.path), "checkpoints": size_of(folder.checkpoints)},
                "spent": spent.model_dump(mode="json") if spent else None,
            }
        )
    results = [finding.model_dump(mode="json") for finding in of_recipe]
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": phases, "results": results, "bytes": size}


def evidence_of(resolved: Resolved, phases: Iterable[Phase]) -> list[Path]:
    """The kept evidence of the phases with prepared data, and the n-gram baselines. Some files may be missing."""
    evidence: list[Path] = []
    for phase in phases:
        with suppress(PhasewiseError):  # unprepared data are a separate finding
            own = resolved.recipe.own_benchmarks(phase)
            evidence += kept_evidence(resolved.plan, phase.components, phase.gates.data.leakage, resolved.home, own=own)
    return [*evidence, baselines_path(resolved.plan, resolved.home, resolved.recipe.phases[0].evaluation.held_out_tokens)]


def is_done(description: dict[str, Any]) -> bool:
    """Return whether all phases are done, all results of the recipe are valid, and no file changed."""
    phases = description["phases"]
    if any(one["what"] == FILES for phase in phases for one in phase["results"]):
        return False
    return all(phase["state"] == State.DONE for phase in phases) and all(found["holds"] for found in description["results"])


def print_description(description: dict[str, Any]) -> None:
    """Print phases with outdated results, then the recipe's. Results of a phase with a live process are omitted."""
    console = Console(highlight=False, soft_wrap=True)
    for phase in description["phases"]:
        state = PhaseState.model_validate({name: phase[name] for name in PhaseState.model_fields})
        is_pending = state.state in PENDING
        console.print(f"{phase['name']}: {state.words if is_pending or state.state == State.INTERRUPTED else state.state}", markup=False)
        if phase["spent"]:
            size = f"{decimal(phase['bytes']['run'])}, of these checkpoints {decimal(phase['bytes']['checkpoints'])}"
            console.print(f"  size: {size}", markup=False)
        for found in phase["results"]:
            if found["why"] and not is_pending:
                console.print(f"  {found['again'] or 'refused'}: {found['why']}", markup=False)
    is_at_work = any(phase["state"] in AT_WORK for phase in description["phases"])
    for found in description["results"]:
        if found["why"] and not is_at_work:
            console.print(f"{found['again'] or 'refused'}: {found['why']}", markup=False)
    if home := description["bytes"].get("home"):
        console.print(f"size of the home: {decimal(home)}", markup=False)


def describe_goodput(target: str, scale: Scale, home: str | None) -> dict[str, Any]:
    """Return the seconds of each phase by bucket, in the shape of `--json`. Seconds and goodput of a phase before its start are None."""
    resolved, phase = resolve(target, scale, home, reads_only=True)
    phases: list[dict[str, Any]] = []
    for one in (*resolved.recipe.ancestors(phase), phase) if phase else resolved.recipe.phases:
        found = read_goodput(resolved.home, resolved.recipe.run_name, one.name)
        fields = found.model_dump(mode="json") if found else {"wall_seconds": None, "seconds": None}
        phases.append({"name": one.name, "goodput": found.goodput if found else None, **fields})
    wall_seconds = sum(one["wall_seconds"] or 0.0 for one in phases)
    seconds = {bucket: round(sum((one["seconds"][bucket] for one in phases if one["seconds"]), 0.0), 3) for bucket in BUCKETS}
    of_all = Goodput(wall_seconds=round(wall_seconds, 3), seconds=seconds)
    total = {"goodput": of_all.goodput if wall_seconds else None, **of_all.model_dump(mode="json")}
    return {"recipe": resolved.recipe.name, "scale": resolved.recipe.scale, "phases": phases, "total": total}


def print_goodput(description: dict[str, Any]) -> None:
    """Print a line for each started phase, and a table of all phases together: a row for each bucket, and the total."""
    started, total = [one for one in description["phases"] if one["seconds"]], description["total"]
    for one in started:
        shares = sorted(((seconds / one["wall_seconds"], bucket) for bucket, seconds in one["seconds"].items()), reverse=True)
        lost = ", ".join(f"{bucket} {100 * share:.1f} %" for share, bucket in shares if share >= LEAST_SHARE and bucket != "productive")
        print_words(Console(), f"{one['name']}: goodput {100 * one['goodput']:.1f} % of {one['wall_seconds']:,.1f} s; {lost}")
    if started:
        title = f"{started[0]['name'] if len(started) == 1 else 'all phases'}: goodput {100 * total['goodput']:.1f} %"
        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title=title, title_justify="left")
        table.add_column("time")
        table.add_column("seconds", justify="right")
        table.add_column("%", justify="right")
        for bucket, seconds in {**total["seconds"], "total": total["wall_seconds"]}.items():
            if seconds:
                table.add_row(bucket, f"{seconds:,.1f}", f"{100 * seconds / total['wall_seconds']:.1f}", end_section=bucket == "total")
        print_table(Console(highlight=False), table)
    if waiting := [one["name"] for one in description["phases"] if not one["seconds"]]:
        click.echo(f"not started: {', '.join(waiting)}")


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
