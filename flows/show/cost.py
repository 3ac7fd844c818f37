"""The cost of a recipe's main line: parameters, tokens, steps, FLOPs, and on a slice days and chip-hours."""

from typing import Any

from rich.console import Console

from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.wording import small, to_places, tokens
from phasewise.trainer.config import sequences_between

Takes = dict[str, Any]


def describe_takes(recipe: Recipe, slice_name: str | None, home: Home) -> Takes:
    """Sums over the main line. A recipe without a main line has sums over all phases. Raises ConfigError for an unknown slice."""
    from phasewise.flows.recipes.sizes import body_parameters
    from phasewise.trainer.flops import step_flops
    from phasewise.trainer.model.params import count_active_parameters, count_parameters

    phases = recipe.main_line or recipe.phases
    model = phases[0].model
    found: Takes = {
        "body_parameters": body_parameters(model),
        "parameters": count_parameters(model),
        "active_parameters": count_active_parameters(model),
        "tokens": sum(phase.tokens for phase in phases),
        "steps": sum(phase.stop_step - phase.start_step for phase in phases),
        "batch": [list(entry) for phase in phases for entry in phase.batch.within(phase.start_step, phase.stop_step)],
        "flops": sum(
            step_flops(phase.model, 1).total * sequences_between(phase.batch, phase.start_step, phase.stop_step) for phase in phases
        ),
        "on": None,
    }
    if slice_name is None:
        return found
    from phasewise.flows.plan import setups_of
    from phasewise.tasks.preflight.launcher import preflight_setup
    from phasewise.tasks.preflight.slices import find_slice

    where = find_slice(slice_name)
    reports = [preflight_setup(setup, home, estimated=True) for setup in setups_of(phases, slice_name)]
    refused = [f"{report['phase']}: {report['reason']}" for report in reports if not report["fits"]]
    places = {"days": 2, "chip_hours": 0}
    sums = {name: None if refused else to_places(sum(report[name] for report in reports), places[name]) for name in places}
    most = max((report["gib_per_chip"]["peak"] or 0.0 for report in reports), default=0.0)
    found["on"] = {"slice": where.name, "chips": where.chips, "estimated": True, "refused": refused, "gib_per_chip": most or None, **sums}
    return found


def print_takes(takes: Takes, console: Console) -> None:
    """One or two lines below the table of phases."""
    size = f"{tokens(takes['body_parameters'])} parameters without embedding and head"
    is_sparse = takes["parameters"] != takes["active_parameters"]
    size += f" that a token meets ({tokens(takes['parameters'])} in all)" if is_sparse else f" ({tokens(takes['parameters'])} with)"
    sizes = [size for _, size in takes["batch"]]
    changes = [size for number, size in enumerate(sizes) if number == 0 or sizes[number - 1] != size]
    batches = " → ".join(f"{size:,}" for size in changes)
    steps = f"{tokens(takes['tokens'])} tokens in {takes['steps']:,} steps of {batches} sequences"
    console.print(f"Takes: {size}; {steps}; {takes['flops']:.2g} FLOPs.")
    if (on := takes["on"]) is None:
        return
    if on["refused"]:
        console.print(f"Does not fit {on['slice']}, by an estimate: {on['refused'][0]}.", markup=False)
        return
    console.print(
        f"On {on['slice']}: {small(on['days'], 2)} days, {small(on['chip_hours'], 0)} chip-hours, up to {on['gib_per_chip']:.1f} GiB a "
        "chip. Estimated, not compiled: preflight says more."
    )
