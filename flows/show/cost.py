"""What the main line of a recipe takes: parameters, tokens, steps, arithmetic, and on a slice that is named days and chip-hours."""

from typing import Any

from rich.console import Console

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.setups import setups_of
from phasewise.tasks.home import Home
from phasewise.trainer.base.wording import small, to_places, tokens
from phasewise.trainer.config import sequences_between

Takes = dict[str, Any]


def describe_takes(recipe: Recipe, slice_name: str | None, home: Home) -> Takes:
    """Sums over the main line, or where there is none over all phases.

    Raises:
        ConfigError: no slice is called so.
    """
    from phasewise.flows.recipes.sizes import body_parameters
    from phasewise.trainer.model.params import count_active_parameters, count_parameters

    phases = recipe.main_line or recipe.phases
    model = phases[0].model
    batches = [entry for phase in phases for entry in phase.batch.within(phase.start_step, phase.stop_step)]
    found: Takes = {
        "body_parameters": body_parameters(model),
        "parameters": count_parameters(model),
        "active_parameters": count_active_parameters(model),
        "tokens": sum(phase.tokens for phase in phases),
        "steps": sum(phase.stop_step - phase.start_step for phase in phases),
        "batch": [list(entry) for entry in batches],
        "flops": sum(_flops(phase) for phase in phases),
        "on": None,
    }
    return found if slice_name is None else found | {"on": _on_slice(phases, slice_name, home)}


def _flops(phase: Phase) -> int:
    from phasewise.trainer.flops import step_flops

    return step_flops(phase.model, 1).total * sequences_between(phase.batch, phase.start_step, phase.stop_step)


def _on_slice(phases: tuple[Phase, ...], slice_name: str, home: Home) -> Takes:
    from phasewise.tasks.preflight.launcher import preflight_setup
    from phasewise.tasks.preflight.slices import find_slice

    where = find_slice(slice_name)
    reports = [preflight_setup(setup, home, estimated=True) for setup in setups_of(phases, slice_name)]
    refused = [f"{report['phase']}: {report['reason']}" for report in reports if not report["fits"]]
    places = {"days": 2, "chip_hours": 0}
    sums = {name: None if refused else to_places(sum(report[name] for report in reports), places[name]) for name in places}
    most = max((report["gib_per_chip"]["peak"] or 0.0 for report in reports), default=0.0)
    return {"slice": where.name, "chips": where.chips, "estimated": True, "refused": refused, "gib_per_chip": most or None, **sums}


def print_takes(takes: Takes, console: Console) -> None:
    """One or two lines below the table."""
    size = f"{tokens(takes['body_parameters'])} parameters without embedding and head"
    size += f" that a token meets ({tokens(takes['parameters'])} in all)" if _is_sparse(takes) else f" ({tokens(takes['parameters'])} with)"
    steps = f"{tokens(takes['tokens'])} tokens in {takes['steps']:,} steps of {_batches(takes)} sequences"
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


def _is_sparse(takes: Takes) -> bool:
    return takes["parameters"] != takes["active_parameters"]


def _batches(takes: Takes) -> str:
    sizes = [size for _, size in takes["batch"]]
    changes = [size for number, size in enumerate(sizes) if number == 0 or sizes[number - 1] != size]
    return " → ".join(f"{size:,}" for size in changes)
