"""How much of a phase's rows is text, and how much of it counts: from the caches that a home has. Nothing is planned or fetched."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phasewise.flows.plan import build_run
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.config import Component
from phasewise.trainer.data.manifest import MANIFEST_NAME
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.rows import PLAIN, RowRule
from phasewise.validations.evidence.packing import packing_evidence

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
