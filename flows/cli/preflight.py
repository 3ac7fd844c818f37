"""`phasewise preflight`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table
from phasewise.flows.plan import build_run
from phasewise.flows.recipes import load_target, load_written, split_target
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.flows.setups import setups_of
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.launcher import versions
from phasewise.tasks.preflight.report import GIB, check_region, reads_between, region_of
from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import name_some, small, tokens
from phasewise.trainer.config import Component
from phasewise.trainer.data.manifest import MANIFEST_NAME
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import PLAIN, RowRule
from phasewise.validations.evidence.mixture import packing_evidence

Utilisation = dict[str, Any]


def utilisation_of(recipe: Recipe, phases: Iterable[Phase], home: Home) -> dict[str, Utilisation]:
    """Phase → shares of the places of its rows, for phases that pack or predict answers alone.

    `tokens` is the share of the places that hold a token, `counted` the share that is predicted, by what the phase draws. Both are null
    where the home does not have just one cache of each component, and `why` says so.

    Raises:
        DataError: a cache cannot be read.
    """
    return {phase.name: _of_phase(recipe, phase, home) for phase in phases if RowRule(phase.packing, phase.loss_on) != PLAIN}


def _of_phase(recipe: Recipe, phase: Phase, home: Home) -> Utilisation:
    caches = {name: found for name in phase.components if (found := _only_cache(home, name))}
    rule = {"packing": phase.packing, "loss_on": phase.loss_on}
    if missing := [name for name in phase.components if name not in caches]:
        why = f"{home.root} does not have just one cache of {name_some(missing, 3)}: prepare the data first"
        return {**rule, "tokens": None, "counted": None, "why": why}
    run = build_run(recipe, phase, home, caches, needs_parent=False)
    table = packing_evidence(run).set_index("component")
    schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
    drawn = schedule.realised(run.start_step, run.stop_step)
    rows, total = {name: max(int(table["rows"][name]), 1) * run.model.seq_len for name in drawn}, sum(drawn.values())
    shares = {
        what: sum(count * float(table[column][name]) / rows[name] for name, count in drawn.items()) / total
        for what, column in (("tokens", "tokens"), ("counted", "counted_tokens"))
    }
    return {**rule, **shares, "why": ""}


def seconds_per_million(seconds: float | None, places: int, found: Utilisation) -> float | None:
    """Seconds for a million tokens that count, where so many places take so many seconds; None where that is not known."""
    return None if seconds is None or not found["counted"] else 1e6 * seconds / (places * found["counted"])


def utilisation_in_words(name: str, found: Utilisation) -> str:
    """A line for people."""
    rows = f"{name}, packing {found['packing']}, loss on {found['loss_on']}"
    if found["tokens"] is None:
        return f"{rows}: how much of its rows is text is not known; {found['why']}."
    times = [f"{seconds:.3g} s a million of these on {where}" for where, seconds in found.get("seconds_per_million_counted", {}).items()]
    counted = "; ".join([f"{100 * found['counted']:.1f} % count", *times])
    return f"{rows}: {100 * found['tokens']:.1f} % of the places in its rows are tokens, and {counted}."


def _only_cache(home: Home, name: Component) -> Path | None:
    found = sorted((home.root / "tokens" / name).glob(f"train-*/{MANIFEST_NAME}"))
    return found[0].parent if len(found) == 1 else None


Report = dict[str, Any]
MIN_WIDTH = 120
"""A table that is read from a file, or scrolled, rather than cut."""


def preflight_target(
    target: str,
    slice_name: str | None,
    home: str | None,
    *,
    scale: Scale | None = None,
    machine_code: bool = False,
    estimated: bool = False,
    region: str | None = None,
    usd_per_gib: float | None = None,
) -> Report:
    """Every setup of the target, in the shape of `--json`.

    Args:
        scale: None is full scale, or as it is written for a recipe whose sizes are its own.
        estimated: nothing is compiled.
        region: where the slice is: reads from a home in another region are named.
        usd_per_gib: the store's price of them.

    Raises:
        PhasewiseError: no such region, recipe or slice, no compiler, or the compiler failed.
    """
    written = load_written(split_target(target)[0])
    recipe, phase = load_target(target, scale or ("own" if written.scale == "own" else "full"))
    phases = [phase] if phase else list(recipe.phases)
    setups = setups_of(phases, slice_name)
    compiled = [setup for setup in setups if find_slice(setup.slice).is_compiled_for and not estimated]
    if compiled:
        versions()
    from phasewise.tasks.preflight.launcher import preflight_setup  # it imports jax

    place, reports = Home.open(home), list[Report]()
    bucket_region = _bucket_region(place, region, usd_per_gib)
    for setup in setups:
        say(f"preflight of {setup.words}")
        reports.append(preflight_setup(setup, place, machine_code=machine_code, estimated=estimated))
    away = {setup.phase for setup in setups}
    found = {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "phases": reports,
        "local": [one.name for one in phases if one.name not in away],
        "utilisation": _utilisation(recipe, phases, place, reports),
    }
    if region is None or bucket_region is None:
        return found
    reads = [one for setup in setups if (one := reads_between(setup, bucket_region, region, usd_per_gib))]
    return {**found, "bucket_region": bucket_region, "reads": [one.model_dump(mode="json") for one in reads]}


def _utilisation(recipe: Recipe, phases: Sequence[Phase], home: Home, reports: Sequence[Report]) -> dict[str, Utilisation]:
    found = utilisation_of(recipe, phases, home)
    for phase in phases:
        if phase.name not in found:
            continue
        one = found[phase.name]
        times = {
            f"{report['slice']}, {report['batch_sequences']:,} sequences": seconds_per_million(
                report["step_seconds"], report["batch_sequences"] * phase.model.seq_len, one
            )
            for report in reports
            if report["phase"] == phase.name
        }
        one["seconds_per_million_counted"] = {where: seconds for where, seconds in times.items() if seconds is not None}
    return found


def _bucket_region(home: Home, region: str | None, usd_per_gib: float | None) -> str | None:
    if region is None:
        if usd_per_gib is not None:
            raise ConfigError("--price-per-gib needs --region: it is the price of reads from another region.")
        return None
    check_region(region)
    found = region_of(home.root)
    if found is None:
        raise ConfigError(f"--region is for a home on a store, found {home.root}: leave it out, or name a gs:// home with --home.")
    return found


def print_preflight(report: Report) -> None:
    """A table, then what was changed to make each setup fit."""
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else max(console.width, MIN_WIDTH)
    if report["phases"]:
        setups = report["phases"]
        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for name in ("phase", "slice"):
            table.add_column(name, no_wrap=True)
        for name in HEADINGS:
            table.add_column(name, justify="right", no_wrap=True)
        for setup in setups:
            table.add_row(setup["phase"], setup["slice"], *cells(setup))
        print_table(console, table)
    for line in dict.fromkeys(parameters_of(setup) for setup in report["phases"]):
        console.print(line, soft_wrap=True, markup=False)
    for setup in report["phases"]:
        console.print(what_it_took(setup), soft_wrap=True, markup=False)
    for name, found in report["utilisation"].items():
        console.print(utilisation_in_words(name, found), soft_wrap=True, markup=False)
    for line in reads_in_words(report):
        console.print(line, soft_wrap=True, markup=False)
    if report["local"]:
        console.print(f"On this machine, nothing to compile: {', '.join(report['local'])}.", soft_wrap=True, markup=False)


def reads_in_words(report: Report) -> list[str]:
    """A line for each phase that reads from another region, and one where none does; nothing where nobody asked."""
    if "reads" not in report:
        return []
    if not report["reads"]:
        return [f"The home's bucket is in {report['bucket_region']}, as the slice: reads from it cost nothing."]
    lines: list[str] = []
    for one in report["reads"]:
        priced = "what that costs, --price-per-gib computes"
        if one["usd"] is not None:
            priced = f"about ${one['usd']:,.2f} at ${one['usd_per_gib']:.2f} a GiB"
        lines.append(
            f"{one['phase']} on {one['slice']} in {one['slice_region']} reads about {one['read_bytes'] / GIB:,.2f} GiB of tokens from "
            f"{one['bucket_region']}, which is another location: {priced}."
        )
    return lines


HEADINGS = ("batch", "GiB a chip", "FLOPs a step", "s a step", "bound by", "days", "chip-hours")


def cells(setup: Report) -> list[str]:
    """The figures of a setup, under `HEADINGS`."""
    memory = setup["gib_per_chip"]
    needs = "–" if memory["peak"] is None else f"{'~' * setup['estimated']}{memory['peak']:.1f} of {memory['limit']:.2f}"
    if not setup["fits"]:
        return [f"{setup['batch_sequences']:,}", needs, "does not fit", "–", "–", "–", "–"]
    return [
        f"{setup['batch_sequences']:,}",
        needs,
        f"{setup['flops_per_step']:.2e}",
        small(setup["step_seconds"], 2),
        setup["roofline_seconds"]["binds"],
        small(setup["days"], 1),
        small(setup["chip_hours"], 0),
    ]


def parameters_of(setup: Report) -> str:
    """How many parameters a setup's model has, and how many of them a token meets."""
    total, active = (tokens(setup[name]) for name in ("parameters", "active_parameters"))
    return f"{total} parameters" if total == active else f"{total} parameters, of which a token meets {active}"


def what_it_took(setup: Report) -> str:
    """What a setup took to fit, or why it does not, in a line."""
    who = f"{setup['phase']} on {setup['slice']}, {setup['batch_sequences']:,} sequences"
    if setup["estimated"]:
        who = f"Estimated, not compiled: {who}"
    if not setup["fits"]:
        return f"{who}: {setup['reason']}"
    cost = 100 * setup["flops_recomputed"] / setup["flops_per_step"]
    text = f"{who}: {setup['plan']}; {cost:.0f} % more FLOPs than the model's; {setup['why']}"
    tried = "; ".join(f"{one['plan']}: {one['reason']}" for one in setup["tried"])
    return f"{text} ({tried})" if tried else text
