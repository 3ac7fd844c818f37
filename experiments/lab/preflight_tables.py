"""`python -m experiments.lab.preflight_tables [--home URL] [--table NAME]`: compile every setup of the published runs and write tables."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import click
import numpy as np

from phasewise.flows.cli.preflight import HEADINGS, cells, setup_line
from phasewise.flows.plan import setups_of
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.estimate import FLOAT32_BYTES, Table, count_weights, kept_a_token, state_bytes
from phasewise.tasks.preflight.launcher import examine, preflight_setup, report_of, versions
from phasewise.tasks.preflight.plan import GIB, Plan, Setup, policies_for, settings_for, spec_for
from phasewise.tasks.preflight.search import RESERVED_BYTES, Found, host_gib, refusal
from phasewise.tasks.preflight.slices import Slice, find_slice, read_table
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import HOUSE
from phasewise.trainer.preflight.spec import Result, Spec, StepShape

Report = dict[str, Any]
GIGA = 1e9

SPARSE = ("trinity-nano", "trinity-mini", "trinity-large")
CHIPS = ("v5p", "tpu7x")
"""The chips with slices of thousands. A v6e has a third of the memory, and no slice of more than 256."""


def sparse_models(home: Home) -> str:
    """One row per compiled step of the three sparse recipes."""
    reports = [report | {"recipe": name, "phase": phases} for name in SPARSE for phases, report in setups_once(name, home)]
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"{size_table(reports)}\n\n{time_table(reports)}\n\nMade with {used}."


def setups_once(name: str, home: Home) -> list[tuple[str, Report]]:
    """Phase names and report of every different step on a recipe's main line."""
    shared: dict[tuple[str, str], list[Setup]] = {}
    for setup in setups_of(phase for phase in load_recipe(name, "full").phases if not phase.branch):
        shared.setdefault((setup.slice, setup.step.model_dump_json()), []).append(setup)
    return [(", ".join(setup.phase for setup in setups), preflight_setup(setups[0], home)) for setups in shared.values()]


def size_table(reports: list[Report]) -> str:
    """Parameters, memory and plan."""
    rows = [["recipe", "phases", "parameters", "active", "slice", "devices", "batch", "GiB a device", "plan"]]
    for report in reports:
        memory = report["gib_per_chip"]
        needs = "–" if memory["peak"] is None else f"{memory['peak']:.1f} of {memory['limit']:.2f}"
        counts = [f"{report['parameters'] / 1e9:.2f} B", f"{report['active_parameters'] / 1e9:.2f} B"]
        place = [report["slice"], f"{report['devices']:,}", f"{report['batch_sequences']:,}"]
        rows.append([report["recipe"], report["phase"], *counts, *place, needs, report["plan"] or "does not fit"])
    return markdown(rows, left=2)


def time_table(reports: list[Report]) -> str:
    """All-to-all traffic, terms of the roofline, and the time that follows from the largest term."""
    terms = ("compute", "hbm", "ici", "dcn", "host")
    headings = [
        "recipe",
        "phases",
        "all-to-all",
        "GB",
        "s",
        *(f"{term} s" for term in terms),
        "s a step",
        "MFU",
        "M tokens/s",
        "compiled in s",
    ]
    rows = [headings]
    for report in reports:
        if not report["fits"]:
            continue
        sent = report["all_to_all"].get("expert", {"bytes": 0, "seconds": 0.0})
        devices = report["mesh"]["expert"]
        moved = [f"over {devices}" if devices > 1 else "none", f"{sent['bytes'] / GIGA:,.1f}", f"{sent['seconds']:.2f}"]
        times = [f"{report['roofline_seconds'][term]:.2f}" for term in terms]
        ends = [f"{report['step_seconds']:.2f}", f"{report['mfu']:.2f}", f"{report['tokens_per_second'] / 1e6:.2f}"]
        rows.append([report["recipe"], report["phase"], *moved, *times, *ends, f"{report['compile_seconds']:.0f}"])
    return markdown(rows, left=2)


def smallest_slices(home: Home) -> str:
    """For every model and chip: the smallest slice that fits, and the reason why the next smaller slice does not."""
    rows = [["recipe", "batch", "chip", "smallest slice", "chips", "GiB a device", "plan that needs least", "the next smaller"]]
    for name in SPARSE:
        setup = setups_of(load_recipe(name, "full").phases[:1])[0]
        for chip in CHIPS:
            rows.append([name, f"{setup.step.batch_sequences:,}", chip, *smallest_cells(setup, chip, home)])
    return markdown(rows, left=1)


class Smallest(NamedTuple):
    """The smallest slice that fits with its compiled plan, and the smaller slices with the reasons, the largest first."""

    where: Slice | None
    plan: Plan | None
    result: Result | None
    smaller: tuple[tuple[str, str], ...]


def smallest_slice(step: StepShape, chip: str, attempt: Callable[[Spec], Result]) -> Smallest:
    """Try the slices of a chip in ascending order with the plan that needs least, until one fits."""
    smaller: list[tuple[str, str]] = []
    for where in slices_of(chip):
        state_gib = (state_bytes(step) + FLOAT32_BYTES * sum(count_weights(step.model))) / where.devices / GIB
        free_gib = where.chip.device_gib - RESERVED_BYTES / GIB
        if state_gib > free_gib:
            smaller.insert(0, (where.name, f"state and gradients alone need {state_gib:.1f} GiB a device, of {free_gib:.1f}"))
            continue
        settings = settings_for(step, where)
        if not settings:
            smaller.insert(0, (where.name, "no mesh fits model and batch"))
            continue
        table = Table(step, where, settings, list(policies_for(step.model)))
        plan = table.plan(int(np.argmin(np.where(table.host <= host_gib(where), table.gib(), np.inf))))
        result = attempt(spec_for(step, where, plan))
        reason = refusal(result, where)
        if reason is None:
            return Smallest(where, plan, result, tuple(smaller))
        smaller.insert(0, (where.name, reason))
    return Smallest(None, None, None, tuple(smaller))


def slices_of(chip: str) -> list[Slice]:
    """The slices of a chip, the smallest first."""
    return sorted((find_slice(name) for name, torus in read_table().slices.items() if torus.chip == chip), key=lambda where: where.chips)


def smallest_cells(setup: Setup, chip: str, home: Home) -> list[str]:
    """Slice, chips, memory, plan, and the reason of the next smaller slice."""
    found = smallest_slice(setup.step, chip, partial(examine, home=home))
    below = f"{found.smaller[0][0]}: {found.smaller[0][1]}" if found.smaller else "there is none"
    if found.where is None or found.plan is None or found.result is None or found.result.memory is None:
        return ["none", "–", "–", "–", below]
    memory = f"{found.result.memory.peak / GIB:.1f} of {found.result.limit_bytes / GIB:.2f}"
    return [found.where.name, f"{found.where.chips:,}", memory, found.plan.words, below]


DOCUMENT = HOUSE.parent / "docs" / "lab" / "preflight-tables.md"


RULE = (Plan(remat="dots"), Plan(remat="full"), Plan(remat="offload"))
COMPILED = ("marin-8b", "marin-32b")
"""The dense recipes. The sparse ones have tables of their own (`flows.preflight_sparse`)."""


@click.command()
@click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
@click.option("--table", "names", multiple=True, help="Only this table; may be given more than once [default: all].")
def main(home: str | None, names: tuple[str, ...]) -> None:
    """Write the tables into the document, between their marks."""

    place = Home.open(home)
    tables: dict[str, Callable[[], str]] = {
        "main lines": partial(main_lines, place),
        "gains": partial(gains, place),
        "branches": partial(branches, place),
        "sparse models": partial(sparse_models, place),
        "smallest slices": partial(smallest_slices, place),
        "slices": slices,
    }
    if unknown := sorted(set(names) - set(tables)):
        raise click.UsageError(f"no table is called {', '.join(unknown)}: take of {', '.join(tables)}.")
    for name in names or tables:
        table = tables[name]()
        DOCUMENT.write_text(put(DOCUMENT.read_text(encoding="utf-8"), name, table), encoding="utf-8")


def put(text: str, name: str, table: str) -> str:
    """Replace the table between the marks called `name`."""
    begin, end = f"<!-- {name}: made -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert len(pattern.findall(text)) == 1, f"{DOCUMENT.name} has the marks of {name} once"
    return pattern.sub(lambda _found: f"{begin}\n{table}\n{end}", text)


def main_lines(home: Home) -> str:
    reports = [preflight_setup(setup, home) for name in COMPILED for setup in setups_of(load_recipe(name, "full").phases)]
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"{setup_table(reports)}\n\n{network_table(reports)}\n\nMade with {used}."


def gains(home: Home) -> str:
    """Gain of the search for every setup of the main lines, compared with the first fitting plan of the rule."""
    rows = [["phase", "slice", "batch", "by the rule", "GiB", "s a step", "MFU", "found", "GiB", "s a step", "MFU", "faster"]]
    for name in COMPILED:
        for setup in setups_of(load_recipe(name, "full").phases):
            before, after = by_rule(setup, home), preflight_setup(setup, home)
            cells_of = [gain_cells(report) for report in (before, after)]
            faster = f"{before['step_seconds'] / after['step_seconds']:.2f} ×"
            rows.append([setup.phase, setup.slice, f"{setup.step.batch_sequences:,}", *cells_of[0], *cells_of[1], faster])
    return markdown(rows, left=2)


def gain_cells(report: Report) -> list[str]:
    """Plan, memory, time and MFU."""
    return [report["plan"], f"{report['gib_per_chip']['peak']:.1f}", f"{report['step_seconds']:.2f}", f"{report['mfu']:.2f}"]


def by_rule(setup: Setup, home: Home) -> Report:
    """The first fitting plan on the mesh by rule, ordered by recomputation: preflight's earlier choice."""
    where, step = find_slice(setup.slice), setup.step
    tokens = step.batch_sequences * step.model.seq_len // where.devices
    for plan in RULE:
        if tokens * kept_a_token(step.model, plan.remat)[0] / GIB > where.chip.device_gib:
            continue
        result = examine(spec_for(step, where, plan), home)
        if refusal(result, where) is None:
            seconds = result.lower_seconds + result.compile_seconds
            found = Found(plan=plan, result=result, tried=(), compile_seconds=seconds, considered=len(RULE), why="the first that fits")
            return report_of(setup, where, found)
    raise ConfigError(f"no plan of the rule fits {setup.words}: it has no line in the table of gains.")


def branches(home: Home) -> str:
    """One row per compiled step that only branches have."""
    shared: dict[tuple[str, str], list[Setup]] = {}
    for name in COMPILED:
        known = {phase.name for phase in load_recipe(name, "full").phases}
        for setup in setups_of(phase for phase in load_record(name, "full").phases if phase.name not in known):
            shared.setdefault((setup.slice, setup.step.model_dump_json()), []).append(setup)
    reports: list[Report] = []
    for setups in shared.values():
        report = preflight_setup(setups[0], home)
        reports.append(report | {"phase": ", ".join(setup.phase for setup in setups)})
    unfit = "".join(f"\n\n{setup_line(report)}." for report in reports if not report["fits"])
    return f"{setup_table(reports)}\n\nDays and chip-hours are the values of the first named phase.{unfit}"


def setup_table(reports: list[Report]) -> str:
    """Phase, slice and the figures of the command's table."""
    rows = [["phase", "slice", *HEADINGS, "plan"]]
    rows += [[report["phase"], report["slice"], *cells(report), report["plan"] or "–"] for report in reports]
    return markdown(rows, left=2)


def network_table(reports: list[Report]) -> str:
    """Terms of the roofline and bytes per network for every fitting setup."""
    headings = [
        "phase",
        "slice",
        "batch",
        "compute s",
        "HBM s",
        "ICI s",
        "DCN s",
        "host s",
        "HBM GB",
        "ICI GB",
        "DCN GB",
        "MFU",
        "compiled in s",
        "compiler's GiB",
    ]
    rows = [headings]
    for report in reports:
        if not report["fits"]:
            continue
        terms = report["roofline_seconds"]
        sent = {link: sum(each["bytes"] for each in report["collectives"] if each["link"] == link) for link in ("ici", "dcn")}
        figures = [f"{terms[term]:.2f}" for term in ("compute", "hbm", "ici", "dcn", "host")]
        moved = [f"{amount / GIGA:,.1f}" for amount in (report["hbm_bytes"], sent["ici"], sent["dcn"])]
        ends = [f"{report['mfu']:.2f}", f"{report['compile_seconds']:.0f}", f"{report['compiler_host_gib']:.1f}"]
        rows.append([report["phase"], report["slice"], f"{report['batch_sequences']:,}", *figures, *moved, *ends])
    return markdown(rows, left=2)


def slices() -> str:
    """The chips of `deployments/slices.toml`."""
    rows = [["chip", "peak bf16 TFLOP/s", "memory GiB", "HBM GB/s", "ICI GB/s", "DCN GB/s", "host GB/s", "host GiB", "source"]]
    for name, chip in read_table().chips.items():
        figures = [
            f"{value:g}"
            for value in (chip.devices * chip.speeds.flops / 1e12, chip.memory_gib, chip.hbm_gbps, chip.ici_gbps, chip.dcn_gbps)
        ]
        figures += [f"{value:g}" for value in (chip.host_gbps, chip.host_memory_gib)]
        rows.append([name, *figures, chip.source])
    return markdown(rows, left=1)


def markdown(rows: list[list[str]], *, left: int) -> str:
    """A Markdown table, with columns of figures aligned to the right after the `left` first columns."""
    rule = ["---" if number < left or any(len(row[number]) > 20 for row in rows) else "---:" for number in range(len(rows[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


if __name__ == "__main__":
    main()
