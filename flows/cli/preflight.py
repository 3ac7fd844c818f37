"""`phasewise preflight`."""

from collections.abc import Iterable
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table
from phasewise.flows.plan import build_run, setups_of
from phasewise.flows.recipes import load_target, load_written, split_target
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import name_some, small, tokens
from phasewise.trainer.data.manifest import MANIFEST_NAME
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import PLAIN, RowRule

Report = dict[str, Any]
MIN_WIDTH = 120  # width of the table in a file: readers scroll, and a narrow table would be cut
HEADINGS = ("batch", "GiB a chip", "FLOPs a step", "s a step", "bound by", "days", "chip-hours")


def preflight_target(
    target: str,
    scale: Scale | None,
    home: str | None,
    *,
    slice_name: str | None,
    machine_code: bool,
    estimated: bool,
    region: str | None,
    usd_per_gib: float | None,
) -> Report:
    """Report on every setup, in the shape of `--json`. `scale`: None is full or own. `region`: of the slice, to list remote reads."""
    written = load_written(split_target(target)[0])
    recipe, phase = load_target(target, scale or ("own" if written.scale == "own" else "full"))
    phases = [phase] if phase else list(recipe.phases)
    setups = setups_of(phases, slice_name)
    # These modules load JAX: a refusal above must not
    from phasewise.tasks.preflight.launcher import check_region, preflight_setup, reads_between, region_of, versions
    from phasewise.tasks.preflight.slices import find_slice

    if not estimated and any(find_slice(setup.slice).chip.platform != "gpu" for setup in setups):
        versions()
    opened = Home.open(home)
    bucket_region = None
    if region is not None:
        check_region(region)
        bucket_region = region_of(opened.root)
        if bucket_region is None:
            raise ConfigError(f"--region is for a home on a store, found {opened.root}: leave it out, or name a gs:// home with --home.")
    elif usd_per_gib is not None:
        raise ConfigError("--price-per-gib needs --region: it is the price of reads from another region.")
    reports: list[Report] = []
    for setup in setups:
        say(f"preflight of {setup.words}")
        reports.append(preflight_setup(setup, opened, machine_code=machine_code, estimated=estimated))
    utilisation = utilisation_of(recipe, phases, opened)
    for name, found in utilisation.items():
        times: dict[str, float] = {}
        for report in reports:
            if report["phase"] == name and report["step_seconds"] is not None and found["counted"]:
                counted = report["batch_sequences"] * recipe.phase(name).model.seq_len * found["counted"]
                times[f"{report['slice']}, {report['batch_sequences']:,} sequences"] = 1e6 * report["step_seconds"] / counted
        found["seconds_per_million_counted"] = times
    answer = {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "phases": reports,
        "local": [one.name for one in phases if one.name not in {setup.phase for setup in setups}],
        "utilisation": utilisation,
    }
    if region is None or bucket_region is None:
        return answer
    reads = [one for setup in setups if (one := reads_between(setup, bucket_region, region, usd_per_gib))]
    return {**answer, "bucket_region": bucket_region, "reads": [one.model_dump(mode="json") for one in reads]}


def utilisation_of(recipe: Recipe, phases: Iterable[Phase], home: Home) -> dict[str, Report]:
    """Return, per phase that packs rows or computes the loss on answers only, the shares of its positions that hold tokens.

    `tokens` is the share of positions with a token, `counted` the share with a loss. Both are null with a reason (`why`) unless the home
    has exactly one cache of each component.
    """
    from phasewise.validations.evidence.mixture import packing_evidence  # it loads pandas

    found: dict[str, Report] = {}
    for phase in phases:
        if RowRule(phase.packing, phase.loss_on) == PLAIN:
            continue
        rule = {"packing": phase.packing, "loss_on": phase.loss_on}
        every = {name: list((home.root / "tokens" / name).glob(f"train-*/{MANIFEST_NAME}")) for name in phase.components}
        if missing := [name for name, manifests in every.items() if len(manifests) != 1]:
            why = f"{home.root} does not have just one cache of {name_some(missing, 3)}: prepare the data first"
            found[phase.name] = {**rule, "tokens": None, "counted": None, "why": why}
            continue
        caches = {name: manifests[0].parent for name, manifests in every.items()}
        run = build_run(recipe, phase, home, caches, needs_parent=False)
        table = packing_evidence(run).set_index("component")
        schedule = MixtureSchedule.of_run(run)
        drawn = schedule.realised(run.start_step, run.stop_step)
        positions = {name: max(int(table["rows"][name]), 1) * run.model.seq_len for name in drawn}
        shares = {
            share: sum(count * float(table[column][name]) / positions[name] for name, count in drawn.items()) / sum(drawn.values())
            for share, column in (("tokens", "tokens"), ("counted", "counted_tokens"))
        }
        found[phase.name] = {**rule, **shares, "why": ""}
    return found


def print_preflight(report: Report) -> None:
    """Print a table of the setups, then a line on each setup, on utilisation and on reads from another region."""
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else max(console.width, MIN_WIDTH)
    setups = report["phases"]
    if setups:
        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for name in ("phase", "slice"):
            table.add_column(name, no_wrap=True)
        for name in HEADINGS:
            table.add_column(name, justify="right", no_wrap=True)
        for setup in setups:
            table.add_row(setup["phase"], setup["slice"], *cells(setup))
        print_table(console, table)
    lines: list[str] = []
    for setup in setups:
        total, active = (tokens(setup[name]) for name in ("parameters", "active_parameters"))
        line = f"{total} parameters" if total == active else f"{total} parameters, of which a token meets {active}"
        if line not in lines:
            lines.append(line)
    lines += [setup_line(setup) for setup in setups]
    for name, found in report["utilisation"].items():
        rows = f"{name}, packing {found['packing']}, loss on {found['loss_on']}"
        if found["tokens"] is None:
            lines.append(f"{rows}: the share of tokens in its rows is unknown: {found['why']}.")
            continue
        times = [f"{seconds:.3g} s per million of these on {on}" for on, seconds in found.get("seconds_per_million_counted", {}).items()]
        counted = "; ".join([f"{100 * found['counted']:.1f} % count", *times])
        lines.append(f"{rows}: {100 * found['tokens']:.1f} % of the places in its rows are tokens, and {counted}.")
    if report.get("reads") == []:
        lines.append(f"The home's bucket is in {report['bucket_region']}, as the slice: reads from it cost nothing.")
    for one in report.get("reads", ()):
        price = "--price-per-gib computes the cost"
        if one["usd"] is not None:
            price = f"about ${one['usd']:,.2f} at ${one['usd_per_gib']:.2f} a GiB"
        lines.append(
            f"{one['phase']} on {one['slice']} in {one['slice_region']} reads about {one['read_bytes'] / 2**30:,.2f} GiB of tokens from "
            f"{one['bucket_region']}, which is another location: {price}."
        )
    if report["local"]:
        lines.append(f"On this machine, nothing to compile: {', '.join(report['local'])}.")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def cells(setup: Report) -> list[str]:
    """Return the figures of a setup under `HEADINGS`."""
    memory = setup["gib_per_chip"]
    needs = "–" if memory["peak"] is None else f"{'~' * setup['estimated']}{memory['peak']:.1f} of {memory['limit']:.2f}"
    first = [f"{setup['batch_sequences']:,}", needs]
    if not setup["fits"]:
        return [*first, "does not fit", "–", "–", "–", "–"]
    return [
        *first,
        f"{setup['flops_per_step']:.2e}",
        small(setup["step_seconds"], 2),
        setup["roofline_seconds"]["binds"],
        small(setup["days"], 1),
        small(setup["chip_hours"], 0),
    ]


def setup_line(setup: Report) -> str:
    """Describe in one line the plan of a setup, or why it does not fit."""
    name = f"{setup['phase']} on {setup['slice']}, {setup['batch_sequences']:,} sequences"
    if setup["estimated"]:
        name = f"Estimated, not compiled: {name}"
    if not setup["fits"]:
        return f"{name}: {setup['reason']}"
    cost = 100 * setup["flops_recomputed"] / setup["flops_per_step"]
    text = f"{name}: {setup['plan']}; {cost:.0f} % more FLOPs than the model's; {setup['why']}"
    tried = "; ".join(f"{one['plan']}: {one['reason']}" for one in setup["tried"])
    return f"{text} ({tried})" if tried else text
