"""`python -m experiments.lab.scales_tables [--home URL] [--compile SCALE]…`: write tables of Marin 8B at every scale on
four slices."""

from typing import Any

import click

from phasewise.flows.plan import setups_of
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import BETWEEN, Recipe, Scale
from phasewise.flows.show.describe import describe_takes
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.launcher import examine
from phasewise.tasks.preflight.plan import GIB, spec_for
from phasewise.tasks.preflight.search import estimate_plan, refusal
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.identity import HOUSE
from phasewise.trainer.base.wording import small, tokens

DOCUMENT = HOUSE.parent / "docs" / "lab" / "scales.md"
RECIPE = "marin-8b"
SLICES = ("h100-1", "h100-8", "v5e-8", "v6e-8")
COMPILED_ON = "v6e-8"
BEGIN, END = "<!-- scales: made -->", "<!-- scales: end -->"


@click.command()
@click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
@click.option("--compile", "compiled", multiple=True, metavar="SCALE", help=f"Also compile this scale's plan for {COMPILED_ON}.")
def main(home: str | None, compiled: tuple[str, ...]) -> None:
    """Write the tables into the document, between their marks."""
    place = Home.open(home)
    scales: tuple[Scale, ...] = (*BETWEEN, "full")
    recipes = [load_recipe(RECIPE, scale) for scale in scales]
    parts = [sizes_table(recipes, place), slices_table(recipes, place)]
    parts += [compiled_table([recipe for recipe in recipes if recipe.scale in compiled], place)] if compiled else []
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


def sizes_table(recipes: list[Recipe], home: Home) -> str:
    rows = [["scale", "parameters without embedding and head", "in all", "layers × width", "tokens", "steps", "sequences a step", "FLOPs"]]
    for recipe in recipes:
        takes, model = describe_takes(recipe, None, home), recipe.main_line[0].model
        sizes = sorted({size for _, size in takes["batch"]})
        rows.append([
            recipe.scale, tokens(takes["body_parameters"]), tokens(takes["parameters"]), f"{model.num_layers} × {model.d_model:,}",
            tokens(takes["tokens"]), f"{takes['steps']:,}", f"{sizes[0]:,} to {sizes[-1]:,}", f"{takes['flops']:.2g}",
        ])  # fmt: skip
    return markdown(rows)


def slices_table(recipes: list[Recipe], home: Home) -> str:
    """Days and chip-hours of the main line, all estimated."""
    rows = [["scale", *(f"{name}: days (chip-hours, GiB a chip)" for name in SLICES)]]
    for recipe in recipes:
        rows.append([recipe.scale, *(_cell(describe_takes(recipe, name, home)["on"]) for name in SLICES)])
    return markdown(rows)


def _cell(on: dict[str, Any]) -> str:
    if on["refused"]:
        return "does not fit"
    return f"{small(on['days'], 2)} ({small(on['chip_hours'], 0)}, {on['gib_per_chip']:.1f})"


def compiled_table(recipes: list[Recipe], home: Home) -> str:
    """Compile the estimated plan of the largest batch per scale, and compare memory with the estimate."""
    rows = [["scale", "phase", "slice", "plan", "GiB estimated", "GiB compiled", "of", "compiled in"]]
    where = find_slice(COMPILED_ON)
    for recipe in recipes:
        phase = max(recipe.main_line, key=_last_batch)
        step = setups_of([phase], COMPILED_ON)[-1].step
        found = estimate_plan(step, where)
        assert found.plan is not None
        assert found.result is not None
        assert found.result.memory is not None
        result = examine(spec_for(step, where, found.plan), home)
        peak = "–" if result.memory is None else f"{result.memory.peak / GIB:.1f}"
        reason = "" if refusal(result, where) is None else " (does not fit)"
        rows.append([
            recipe.scale, phase.name, COMPILED_ON, found.plan.words, f"{found.result.memory.peak / GIB:.1f}", peak + reason,
            f"{result.limit_bytes / GIB:.2f}", f"{result.compile_seconds:.0f} s",
        ])  # fmt: skip
    return markdown(rows)


def _last_batch(phase: Phase) -> int:
    return phase.batch.at(phase.stop_step - 1)


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


if __name__ == "__main__":
    main()
