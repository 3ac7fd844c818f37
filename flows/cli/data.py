"""`phasewise data prepare` and `phasewise data verify`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich.console import Console

from phasewise.flows.cli.terminal import shown_on_terminal
from phasewise.flows.plan import sources_of
from phasewise.flows.prefect.server import server_for
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve, resolving_once
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.listing import expand
from phasewise.tasks.data.plan import ComponentPlan
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.data.verify import Difference, verify_component
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.wording import small
from phasewise.trainer.data.manifest import read_manifest


@resolving_once()
def prepare(target: str, scale: Scale, home: str | None) -> dict[str, Any]:
    """Build every cache of the recipe that is not there; the caches that the target draws from, with their digests."""
    resolved, phase = resolve(target, scale, home)
    resolved.check_sources()
    resolved.home.make_ready()
    what = f"`phasewise data prepare {target}`"
    with resolved.home.held(what), shown_on_terminal(), server_for(resolved.home, what):
        from phasewise.flows.prepare_data import prepare_data

        prepare_data(target, scale, str(resolved.home.root), resolved.settings)
    return {
        "recipe": resolved.recipe.name,
        "scale": resolved.recipe.scale,
        "tokenizer": str(resolved.plan.tokenizer),
        "components": [_describe(component) for component in _chosen(resolved, phase)],
    }


def plan(target: str, scale: Scale, home: str | None, price_per_hour: float | None) -> dict[str, Any]:
    """What `prepare` would read and take, in the shape of `--json`. Sources are listed, and nothing of them is read or written.

    Raises:
        DataError: stand-ins must be collected before it is known how much text there is.
    """
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
    """A line a component, then the sums, with what they rest on."""
    console = Console(highlight=False)
    for one in plan["components"]:
        part = f"{one['files']:,} of {one['of_files']:,} files, {one['bytes'] / 1e9:,.3f} of {one['of_bytes'] / 1e9:,.3f} GB"
        state = "is there" if one["is_built"] else "to be read"
        console.print(f"{one['name']}: {part}, {one['tokens']:,} tokens, {state}", soft_wrap=True, markup=False)
    console.print(f"To be read: {small(plan['bytes'] / 1e9, 2)} GB, about {plan['tokens']:,} tokens to train on.", soft_wrap=True)
    workers = f"{plan['workers']} workers" if plan["workers"] != 1 else "one worker"
    console.print(
        f"About {small(plan['hours'], 2)} hours on {workers}, at {plan['tokens_per_second']:,.0f} tokens a second each: measured here for "
        f"{plan['measured_seconds']:.0f} s with {plan['measured_with']}. The network must give {plan['bytes_per_second'] / 1e6:,.1f} MB/s, "
        "and was not measured.",
        soft_wrap=True,
        markup=False,
    )
    if plan["dollars"] is not None:
        price = f"at ${plan['price_per_hour']:,.2f} an hour for all workers, as --price-per-hour says"
        console.print(f"About ${small(plan['dollars'], 2)}, {price}; storage and traffic are not in it.", soft_wrap=True, markup=False)


def verify(target: str, scale: Scale, home: str | None, *, full: bool = False) -> dict[str, Any]:
    """What is expected now against what is cached, in the shape of `--json`; every component's training and held-out cache.

    Args:
        full: the sources are read whole, whatever earlier commands knew of them. The caches always are.
    """
    resolved, phase = resolve(target, scale, home)
    resolved.home.make_ready()
    if full:
        resolved = replace(resolved, digests=KnownDigests(resolved.home, reads_all=True))
    if unlisted := _unlisted(resolved):
        return {"passes": False, "components": [_verified(name, None, [found]) for name, found in unlisted.items()]}
    components = [
        _verified(component.name, component.train.key, verify_component(component.name, resolved.plan, resolved.home))
        for component in _chosen(resolved, phase)
    ]
    return {"passes": all(component["passes"] for component in components), "components": components}


def print_verification(verification: dict[str, Any]) -> None:
    """One line a difference."""
    console = Console(highlight=False)
    for component in verification["components"]:
        for found in component["differences"]:
            where = f"{component['name']}: {found['what']}: {found['file']}"
            text = f"{where} (expected {found['expected']}, found {found['found']}): {found['remedy']}"
            console.print(text, soft_wrap=True, markup=False)
    bad = sum(not component["passes"] for component in verification["components"])
    total = len(verification["components"])
    console.print(f"{total} components are cached as their sources are now." if not bad else f"{bad} of {total} components differ.")


def _unlisted(resolved: Resolved) -> dict[str, Difference]:
    found: dict[str, Difference] = {}
    to_collect = missing_stand_ins(resolved.stand_ins, resolved.home.sources)
    for name, source in sources_of(resolved.recipe, resolved.home).items():
        if name in to_collect and not (resolved.home.sources / name).exists():
            found[name] = Difference("text not collected", source.root, "text of this installation", "nothing")
            continue
        try:
            expand(source)
        except DataError as error:
            found[name] = Difference("files gone", source.root, f"files that match {', '.join(source.include)}", str(error))
    return found


def _verified(name: str, key: str | None, differences: list[Difference]) -> dict[str, Any]:
    return {"name": name, "key": key, "passes": not differences, "differences": [difference.as_json() for difference in differences]}


def _chosen(resolved: Resolved, phase: Phase | None) -> Iterable[ComponentPlan]:
    return [resolved.plan.components[name] for name in (phase.components if phase else resolved.recipe.components)]


def _describe(component: ComponentPlan) -> dict[str, Any]:
    described: dict[str, Any] = {"name": component.name}
    for split in ("train", "held_out"):
        cache = component.cache(split)
        manifest = read_manifest(cache.folder)
        described[split] = {
            "key": cache.key,
            "path": str(cache.folder),
            "digest": manifest.digest,
            "documents": manifest.documents,
            "tokens": manifest.tokens,
            "left_out": manifest.left_out,
        }
    return described
