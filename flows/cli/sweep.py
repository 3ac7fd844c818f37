"""`phasewise run --sweep` and `--seeds`: variants of a recipe, one after another, and their table."""

import json
import math
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, print_words, shown_on_terminal
from phasewise.flows.prefect.server import server_for
from phasewise.flows.recipes.assignments import setting, settings_in_force
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve, resolving_once
from phasewise.flows.status.recipe_status import is_done
from phasewise.flows.status.retraining import check_named, check_replaced, find_replaced, phases_to_train
from phasewise.flows.status.summary import run_summary
from phasewise.tasks.progress import say
from phasewise.trainer.base import wording
from phasewise.trainer.base.errors import ConfigError, TrainingDiverged, VerdictError
from phasewise.trainer.base.storage import parse_json

MEASURES = ("final_loss", "bits_per_byte")
SEPARATE_ERRORS = 2.0
"""Standard errors between two means of seeds that the table calls different."""


@dataclass(frozen=True)
class Variant:
    """A variant of a recipe. `seed` None is the recipe's seed. `phases` are the phases to train, the measured one last."""

    settings: tuple[str, ...]
    seed: int | None
    resolved: Resolved
    phases: tuple[Phase, ...]

    @property
    def name(self) -> str:
        """`peak=0.001,seed=0`."""
        return ",".join(seeded(self.settings, self.seed))

    @property
    def folder(self) -> str:
        """The run of the measured phase."""
        return str(self.resolved.home.run(self.resolved.recipe.run_name, self.phases[-1].name))


def seeded(settings: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    """Return the settings with the seed."""
    return settings if seed is None else (*settings, f"seed={seed}")


def settings_of(sweeps: Sequence[str], seeds: int | None) -> list[tuple[tuple[str, ...], int | None]]:
    """Return settings and seed of each variant: every combination of `--sweep NAME=V1,V2`, with seeds 0 to `seeds` - 1."""
    axes: dict[str, list[str]] = {}
    for sweep in sweeps:
        name, equals, text = (part.strip() for part in sweep.partition("="))
        try:
            values = [value if isinstance(value, str) else json.dumps(value) for value in parse_json(f"[{text}]")]
        except ValueError:
            values = [value.strip() for value in text.split(",")]
        if not (name and equals and all(values)):
            raise ConfigError(f"--sweep takes NAME=VALUE,VALUE or PHASE.NAME=VALUE,VALUE, found {sweep!r}.")
        if name in axes or (name == "seed" and seeds):
            raise ConfigError(f"--sweep: expected each name once, found {name} again. Give all its values in one option.")
        axes[name] = [f"{name}={value}" for value in dict.fromkeys(values)]
    return [(chosen, seed) for chosen in product(*axes.values()) for seed in (range(seeds) if seeds else (None,))]


def resolve_variants(target: str, scale: Scale, home: str | None, sweeps: Sequence[str], seeds: int | None) -> list[Variant]:
    """Resolve and check all variants before any work. Raises ConfigError if two variants train the same run, or the run of the recipe."""
    others, found, names = settings_in_force(), list[Variant](), dict[str, str]()
    for settings, seed in settings_of(sweeps, seeds):
        with setting((*others, *seeded(settings, seed))):
            resolved, phase = resolve(target, scale, home)
        phases = phases_to_train(resolved.recipe, phase or resolved.recipe.main_line[-1])
        resolved.check(phases)
        variant = Variant(settings, seed, resolved, phases)
        if phases[-1].name not in dict(resolved.home.trials) or variant.folder in names:
            raise ConfigError(
                f"the variant {variant.name}: expected a changed training of phase {phases[-1].name}, found the same as "
                f"{names.get(variant.folder, 'the recipe')}. Take it out, or change another argument."
            )
        names[variant.folder] = variant.name
        found.append(variant)
    return found


@resolving_once()
def run_sweep(
    target: str, scale: Scale, home: str | None, sweeps: Sequence[str], seeds: int | None, *, retrain: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train the variants that are not done, and return the table in the shape of `--json`.

    A variant that diverges or fails a gate stops no other variant.
    """
    with shown_on_terminal():
        variants = resolve_variants(target, scale, home, sweeps, seeds)
        check_named(retrain, variants[0].phases, "--retrain")
        shared, purpose = variants[0].resolved, f"the sweep of `phasewise run {target}`"
        shared.home.make_ready()
        with shared.held(purpose):
            waiting = [variant for variant in variants if not is_done(variant.resolved, variant.phases)]
            if not waiting:
                say(f"{target}: all {wording.plural(len(variants), 'variant')} are done already; nothing was run")
            with server_for(shared.home, purpose) if waiting else nullcontext():
                refusals = {variant.name: _train(variant, retrain) for variant in waiting}
    return describe_sweep(variants, refusals)


def _train(variant: Variant, retrain: tuple[str, ...]) -> str:
    """Train a variant, and return the message of its failed gate or its divergence, if any. No trained run of the recipe is replaced."""
    from phasewise.flows.prepare_data import prepare_data
    from phasewise.flows.train_recipe import train_recipe

    resolved, last = variant.resolved, variant.phases[-1].name
    scale, home, trials = resolved.recipe.scale, str(resolved.home.root), dict(resolved.home.trials)
    say(f"variant {variant.name}")
    if not resolved.is_prepared:
        prepare_data(resolved.name, scale, home, resolved.settings)
    replaced = find_replaced(resolved, variant.phases)
    check_replaced(resolved, [one for one in replaced if one.phase not in trials], retrain, asks_always=True)
    try:
        train_recipe(resolved.recipe_name, scale, home, last, retrain, resolved.settings)
    except (VerdictError, TrainingDiverged) as refusal:
        say(f"variant {variant.name}: {str(refusal).splitlines()[0]}")
        return str(refusal)
    return ""


def describe_sweep(variants: Sequence[Variant], refusals: dict[str, str]) -> dict[str, Any]:
    """Return the table: a row for all seeds of the same settings, with mean and standard deviation, and the best row marked."""
    runs_of: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for variant in variants:
        phases = {phase["name"]: phase for phase in run_summary(variant.resolved)["phases"]}
        measured = {name: phases[variant.phases[-1].name][name] for name in (*MEASURES, "verdict")}
        run = {"name": variant.name, "seed": variant.seed, "settings": list(variant.resolved.settings), "folder": variant.folder}
        runs_of.setdefault(variant.settings, []).append({**run, **measured, "refusal": refusals.get(variant.name) or None})
    rows: list[dict[str, Any]] = []
    for settings, runs in runs_of.items():
        row: dict[str, Any] = {"name": ",".join(settings) or "the recipe", "settings": list(settings)}
        for name in MEASURES:
            values = [run[name] for run in runs]
            is_whole = None not in values
            row[name] = statistics.fmean(values) if is_whole else None
            row[f"{name}_deviation"] = statistics.stdev(values) if is_whole and len(values) > 1 else None
        rows.append(row | {"passed": sum(run["verdict"] == "passed" for run in runs), "runs": runs})
    first = variants[0]
    table: dict[str, Any] = {"recipe": first.resolved.recipe.name, "scale": first.resolved.recipe.scale, "phase": first.phases[-1].name}
    return table | {"seeds": len(variants) // len(rows), "variants": marked(rows)}


def marked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the row with the least bits per byte, or the least loss, and the rows that seeds cannot tell from it."""
    measure = next((name for name in reversed(MEASURES) if any(row[name] is not None for row in rows)), MEASURES[0])
    best = min((row for row in rows if row[measure] is not None), key=lambda row: row[measure], default=None)
    found: list[dict[str, Any]] = []
    for row in rows:
        is_tied = False
        if best is not None and row is not best and None not in (row[measure], *(one[f"{measure}_deviation"] for one in (row, best))):
            deviation = math.hypot(row[f"{measure}_deviation"], best[f"{measure}_deviation"])
            is_tied = row[measure] - best[measure] < SEPARATE_ERRORS * deviation / math.sqrt(len(row["runs"]))
        found.append({**row, "is_best": row is best, "is_tied": is_tied})
    return found


def print_sweep(table: dict[str, Any]) -> None:
    """Print the table for people."""
    console, seeds = Console(), table["seeds"]
    title = f"{table['recipe']} · {table['scale']} · {table['phase']}"
    shown = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title=title, title_justify="left")
    shown.add_column("variant", no_wrap=True)
    for name in ("loss", "bits/byte"):
        shown.add_column(name, justify="right", no_wrap=True)
    for name in ("passed", ""):
        shown.add_column(name)
    for row in table["variants"]:
        values = [wording.decimal(row[name], places=3) for name in MEASURES]
        deviations = [row[f"{name}_deviation"] for name in MEASURES]
        cells = [value if error is None else f"{value} ± {error:.3f}" for value, error in zip(values, deviations, strict=True)]
        mark = "best" if row["is_best"] else "as good, within the error" if row["is_tied"] else ""
        shown.add_row(row["name"], *cells, f"{row['passed']} of {len(row['runs'])}", mark)
    print_table(console, shown)
    if seeds > 1:
        print_words(console, f"Mean ± standard deviation over {seeds} seeds.")
    for run in (run for row in table["variants"] for run in row["runs"] if run["refusal"]):
        print_words(console, f"{run['name']}: {run['refusal'].splitlines()[0]}")
    first = table["variants"][0]["runs"][0]
    given = " ".join(f"--set {one}" for one in first["settings"])
    print_words(console, f"`status`, `show` and other commands take a variant as settings, for example {given}.")
