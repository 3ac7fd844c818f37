"""`phasewise data prepare`, `verify` and `fetch`, and `phasewise order`: the mixing of a permutation."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows import recipes
from phasewise.flows.cli.terminal import print_table, shown_on_terminal
from phasewise.flows.plan import sources_of
from phasewise.flows.prefect.server import server_for
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.listing import expand
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.data.verify import Difference, verify_component
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.storage import read_yaml
from phasewise.trainer.base.wording import near, small
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.data.permutation import MAX_LENGTH, Kind, Permutation
from phasewise.validations.evidence.order.measures import measure_order, take_sample


@resolving_once()
def prepare(target: str, scale: Scale, home: str | None) -> dict[str, Any]:
    """Build all missing caches of the recipe. Return the caches of the target with their digests, in the shape of `--json`."""
    resolved, phase = resolve(target, scale, home)
    resolved.check_sources()
    resolved.home.make_ready()
    purpose = f"`phasewise data prepare {target}`"
    with resolved.home.held(purpose), shown_on_terminal(), server_for(resolved.home, purpose):
        from phasewise.flows.prepare_data import prepare_data

        resolved.note_origin()
        prepare_data(target, scale, str(resolved.home.root), resolved.settings)
    components: list[dict[str, Any]] = []
    for name in phase.components if phase else resolved.recipe.components:
        described: dict[str, Any] = {"name": name}
        for split in ("train", "held_out"):
            cache = resolved.plan.components[name].cache(split)
            manifest = read_manifest(cache.folder)
            counts = {field: getattr(manifest, field) for field in ("digest", "documents", "tokens", "left_out")}
            described[split] = {"key": cache.key, "path": str(cache.folder), **counts}
        components.append(described)
    recipe = resolved.recipe
    return {"recipe": recipe.name, "scale": recipe.scale, "tokenizer": str(resolved.plan.tokenizer), "components": components}


def fetch(name: str, folder: str) -> dict[str, Any]:
    """Download a public text for `evaluate --text` and `evaluation.held_out` to a new folder, whole or not at all.

    Raises ConfigError for an unknown name, or if the folder exists. Raises DataError if a file cannot be read.
    """
    import fsspec

    texts: dict[str, Any] = read_yaml(Path(recipes.__file__).with_name("public_texts.yaml"))
    if name not in texts:
        raise ConfigError(f"no public text has the name {name!r}, {near(name, list(texts))}")
    target = Path(folder).expanduser()
    if target.exists():
        raise ConfigError(f"{folder}: expected no file and no folder of this name, found one. Give another folder.")
    source = Source.model_validate(texts[name])
    partial = target.with_name(f".{target.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    files = expand(source).files
    try:
        for file, url in files.items():
            path = partial / file
            path.parent.mkdir(parents=True, exist_ok=True)
            file_system, remote = fsspec.core.url_to_fs(url)
            file_system.get_file(remote, str(path))
        partial.replace(target)
    except OSError as error:
        raise DataError(f"{name}: the download of {source.root} failed: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    subsets = sorted({file.partition("/")[0] for file in files})
    return {"name": name, "source": source.root, "folder": str(target), "files": len(files), "bytes": size, "subsets": subsets}


def plan(target: str, scale: Scale, home: str | None, price_per_hour: float | None) -> dict[str, Any]:
    """List the sources and project the work of `prepare`, in the shape of `--json`. Reads no source."""
    from phasewise.tasks.data.cluster import workers_at_work  # Dask
    from phasewise.tasks.data.plan import measure_speed, project

    resolved, _ = resolve(target, scale, home)
    if missing := missing_stand_ins(resolved.stand_ins, resolved.home.sources):
        raise DataError(
            f"{target}: the text of {len(missing)} components is collected from this installation first, which takes minutes: there is "
            "nothing to plan. Prepare the data."
        )
    speed = measure_speed(resolved.plan.tokenizer)
    found = project(resolved.plan, speed, workers=workers_at_work(), price_per_hour=price_per_hour)
    return {"recipe": resolved.recipe.name, "scale": resolved.recipe.scale, **found}


def print_plan(plan: dict[str, Any]) -> None:
    """Print a line per component, then the sums with the measured speed."""
    console = Console(highlight=False, soft_wrap=True)
    for one in plan["components"]:
        part = f"{one['files']:,} of {one['of_files']:,} files, {one['bytes'] / 1e9:,.3f} of {one['of_bytes'] / 1e9:,.3f} GB"
        state = "is there" if one["is_built"] else "to be read"
        console.print(f"{one['name']}: {part}, {one['tokens']:,} tokens, {state}", markup=False)
    console.print(f"To be read: {small(plan['bytes'] / 1e9, 2)} GB, about {plan['tokens']:,} tokens to train on.")
    workers = f"{plan['workers']} workers" if plan["workers"] != 1 else "one worker"
    console.print(
        f"About {small(plan['hours'], 2)} hours on {workers}, at {plan['tokens_per_second']:,.0f} tokens a second each: measured here for "
        f"{plan['measured_seconds']:.0f} s with {plan['measured_with']}. The network must give {plan['bytes_per_second'] / 1e6:,.1f} MB/s, "
        "and was not measured.",
        markup=False,
    )
    if plan["dollars"] is not None:
        price = f"at ${plan['price_per_hour']:,.2f} an hour for all workers, as --price-per-hour says"
        console.print(f"About ${small(plan['dollars'], 2)}, {price}; storage and traffic are not in it.", markup=False)


def verify(target: str, scale: Scale, home: str | None, *, full: bool = False) -> dict[str, Any]:
    """Compare the caches of each component with their sources, in the shape of `--json`. `full`: read all sources as well."""
    resolved, phase = resolve(target, scale, home)
    resolved.home.make_ready()
    if full:
        resolved = replace(resolved, digests=KnownDigests(resolved.home, reads_all=True))
    unlisted: dict[str, Difference] = {}
    to_collect = missing_stand_ins(resolved.stand_ins, resolved.home.sources)
    for name, source in sources_of(resolved.recipe, resolved.home).items():
        if name in to_collect and not (resolved.home.sources / name).exists():
            unlisted[name] = Difference("text not collected", source.root, "text of this installation", "nothing")
            continue
        try:
            expand(source)
        except DataError as error:
            unlisted[name] = Difference("files gone", source.root, f"files that match {', '.join(source.include)}", str(error))
    results: list[tuple[str, str | None, list[Difference]]] = [(name, None, [found]) for name, found in unlisted.items()]
    if not unlisted:
        for name in phase.components if phase else resolved.recipe.components:
            results.append((name, resolved.plan.components[name].train.key, verify_component(name, resolved.plan, resolved.home)))
    components = [
        {"name": name, "key": key, "passes": not differences, "differences": [one.as_json() for one in differences]}
        for name, key, differences in results
    ]
    return {"passes": all(component["passes"] for component in components), "components": components}


def print_verification(verification: dict[str, Any]) -> None:
    """Print a line per difference."""
    console = Console(highlight=False)
    for component in verification["components"]:
        for found in component["differences"]:
            difference = f"{component['name']}: {found['what']}: {found['file']} (expected {found['expected']}, found {found['found']})"
            console.print(f"{difference}: {found['remedy']}", soft_wrap=True, markup=False)
    bad = sum(not component["passes"] for component in verification["components"])
    total = len(verification["components"])
    console.print(f"{total} components are cached as their sources are now." if not bad else f"{bad} of {total} components differ.")


FALSE_ALARM_RATE = 1e-6  # probability that the measures together reject a true random permutation


def judge_order(kind: str, length: int, seed: int) -> dict[str, Any]:
    """Compare a permutation, with the seed as its key, with random permutations, in the shape of `--json`."""
    kinds = get_args(Kind)
    if kind not in kinds:
        raise ConfigError(f"unknown permutation {kind!r}: choose one of {', '.join(kinds)}.")
    if not 1 <= length <= MAX_LENGTH:
        raise ConfigError(f"a permutation needs a length from 1 to {MAX_LENGTH}, found {length}.")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"the seed of a permutation must be from 0 to 2^64 - 1, found {seed}.")
    permutation = Permutation(cast(Kind, kind), length=length, key=seed)
    measures = measure_order(take_sample(length, permutation, permutation.inverse))
    judged = [one.judged(FALSE_ALARM_RATE / len(measures)) for one in measures]
    return {
        "kind": kind,
        "length": length,
        "seed": seed,
        "passes": all(one["passes"] for one in judged),
        "false_alarm_rate": FALSE_ALARM_RATE,
        "measures": judged,
    }


def print_judgement(judgement: dict[str, Any]) -> None:
    """Print a table of the measures, failing measures first."""
    console = Console(highlight=False)
    word = "mixes" if judgement["passes"] else "does NOT mix"
    console.print(f"{judgement['kind']} over {judgement['length']:,} places, seed {judgement['seed']}: [bold]{word}[/bold]")
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("measure")
    for name in ("value", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("where")
    for one in sorted(judgement["measures"], key=lambda measure: measure["passes"]):
        sign = "≤" if one["bound"] == "max" else "≥"
        table.add_row(one["name"], f"{one['value']:.4g}", f"{sign} {one['limit']:.4g}", "ok" if one["passes"] else "FAILS", one["detail"])
    print_table(console, table)
    console.print(f"Limits: true random permutations go beyond one of them once in {1 / judgement['false_alarm_rate']:,.0f} times.")
