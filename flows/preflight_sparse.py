"""The tables of sparse models in the document of preflight: every setup of the Trinities, and the smallest slices that hold them."""

from functools import partial

from phasewise.flows.preflight_document import GIGA, Report, markdown
from phasewise.flows.recipes import load_recipe
from phasewise.flows.setups import setups_of
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.launcher import examine, versions
from phasewise.tasks.preflight.plan import GIB
from phasewise.tasks.preflight.preflight import preflight_setup
from phasewise.tasks.preflight.setup import Setup
from phasewise.tasks.preflight.smallest import smallest_slice

SPARSE = ("trinity-nano", "trinity-mini", "trinity-large")
CHIPS = ("v5p", "tpu7x")
"""The chips with slices of thousands. A v6e has a third of the memory, and no slice of more than 256."""


def sparse_models(home: Home) -> str:
    """Every setup of the three, once: phases that share a compiled step are in one row."""
    reports = [report | {"recipe": name, "phase": phases} for name in SPARSE for phases, report in setups_once(name, home)]
    lines = "\n".join(f"* {report['recipe']} {what_was_tried(report)}" for report in reports)
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"{size_table(reports)}\n\n{time_table(reports)}\n\nWhat was compiled for each:\n\n{lines}\n\nMade with {used}."


def setups_once(name: str, home: Home) -> list[tuple[str, Report]]:
    """The setups of a recipe's main line with different steps, each with the phases that have it."""
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
    """What goes from each to each, the terms of the roofline, and what follows from the largest."""
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


def what_was_tried(report: Report) -> str:
    """Why the plan was taken, and what else was compiled."""
    who = f"{report['phase']}, {report['batch_sequences']:,} sequences"
    if not report["fits"]:
        return f"{who}: {report['reason']}."
    again = 100 * report["flops_recomputed"] / report["flops_per_step"]
    by_muon = 100 * report["flops_per_step_per_chip"]["update"] / report["flops_per_step_per_chip"]["analytic"]
    tried = "".join(f"; {one['plan']}: {one['reason']}" for one in report["tried"])
    return f"{who}: {again:.0f} % more FLOPs to save memory, {by_muon:.1f} % by Muon; {report['why']}{tried}."


def smallest_slices(home: Home) -> str:
    """For the first setup of each model and each chip: the smallest slice that holds it, and why the next smaller one does not."""
    rows = [["recipe", "batch", "chip", "smallest slice", "chips", "GiB a device", "plan that needs least", "the next smaller"]]
    for name in SPARSE:
        setup = setups_of(load_recipe(name, "full").phases[:1])[0]
        for chip in CHIPS:
            rows.append([name, f"{setup.step.batch_sequences:,}", chip, *smallest_cells(setup, chip, home)])
    return markdown(rows, left=1)


def smallest_cells(setup: Setup, chip: str, home: Home) -> list[str]:
    """Slice, chips, memory, plan, and the reason of the next smaller slice."""
    found = smallest_slice(setup.step, chip, partial(examine, home=home))
    below = f"{found.smaller[0][0]}: {found.smaller[0][1]}" if found.smaller else "there is none"
    if found.where is None or found.plan is None or found.result is None or found.result.memory is None:
        return ["none", "–", "–", "–", below]
    memory = f"{found.result.memory.peak / GIB:.1f} of {found.result.limit_bytes / GIB:.2f}"
    return [found.where.name, f"{found.where.chips:,}", memory, found.plan.words, below]
