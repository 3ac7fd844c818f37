"""`python -m phasewise.flows.preflight_document [--home URL] [--table NAME]`: compile every setup of the record; write their tables."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from phasewise.flows.commands.preflight import HEADINGS, cells, what_it_took
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.setups import setups_of
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.launcher import examine, versions
from phasewise.tasks.preflight.plan import GIB, Plan, spec_for
from phasewise.tasks.preflight.preflight import preflight_setup
from phasewise.tasks.preflight.report import report_of
from phasewise.tasks.preflight.search import Found, refusal
from phasewise.tasks.preflight.setup import Setup
from phasewise.tasks.preflight.sizes import kept_a_token
from phasewise.tasks.preflight.slices import find_slice, read_table
from phasewise.trainer.base.code_digest import HOUSE
from phasewise.trainer.base.errors import ConfigError

DOCUMENT = HOUSE.parent / "docs" / "lab" / "preflight-tables.md"
Report = dict[str, Any]
GIGA = 1e9
RULE = (Plan(remat="dots"), Plan(remat="full"), Plan(remat="offload"))
COMPILED = ("marin-8b", "marin-32b")
"""The dense recipes. The sparse ones have tables of their own (`flows.preflight_sparse`)."""


@click.command()
@click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
@click.option("--table", "names", multiple=True, help="Only this table; may be given more than once [default: all].")
def main(home: str | None, names: tuple[str, ...]) -> None:
    """Write the tables into the document, between their marks."""
    from phasewise.flows.preflight_sparse import smallest_slices, sparse_models

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
    """The text with the table between the marks of that name."""
    begin, end = f"<!-- {name}: made -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert len(pattern.findall(text)) == 1, f"{DOCUMENT.name} has the marks of {name} once"
    return pattern.sub(lambda _found: f"{begin}\n{table}\n{end}", text)


def main_lines(home: Home) -> str:
    """Every setup of both main lines, and what it took to fit."""
    reports = [preflight_setup(setup, home) for name in COMPILED for setup in setups_of(load_recipe(name, "full").phases)]
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines = "\n".join(f"* {what_it_took(report)}." for report in reports)
    return f"{setup_table(reports)}\n\n{network_table(reports)}\n\nWhat each took to fit:\n\n{lines}\n\nMade with {used}."


def gains(home: Home) -> str:
    """What the search gains, for every setup of the main lines: the first plan of the rule that fits, and the plan that was found."""
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
    """The first plan that fits on the mesh by rule, in the order from the least that is computed again: what preflight took before."""
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
    """Every step of the branches that no other has; with the phases that share it."""
    shared: dict[tuple[str, str], list[Setup]] = {}
    for name in COMPILED:
        known = {phase.name for phase in load_recipe(name, "full").phases}
        for setup in setups_of(phase for phase in load_record(name, "full").phases if phase.name not in known):
            shared.setdefault((setup.slice, setup.step.model_dump_json()), []).append(setup)
    reports: list[Report] = []
    for setups in shared.values():
        report = preflight_setup(setups[0], home)
        reports.append(report | {"phase": ", ".join(setup.phase for setup in setups)})
    unfit = "".join(f"\n\n{what_it_took(report)}." for report in reports if not report["fits"])
    return f"{setup_table(reports)}\n\nDays and chip-hours are those of the first phase that is named.{unfit}"


def setup_table(reports: list[Report]) -> str:
    """Phase, slice and the figures of the command's table."""
    rows = [["phase", "slice", *HEADINGS, "plan"]]
    rows += [[report["phase"], report["slice"], *cells(report), report["plan"] or "–"] for report in reports]
    return markdown(rows, left=2)


def network_table(reports: list[Report]) -> str:
    """The roofline's terms and what they are made of, for each setup that fits."""
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
    """A table; all columns but the first ones, and those of words, are to the right."""
    rule = ["---" if number < left or any(len(row[number]) > 20 for row in rows) else "---:" for number in range(len(rows[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


if __name__ == "__main__":
    main()
