"""Swarm of proxies → law of mixtures → the best mixture within its limits → a recipe file, with its predicted gain."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from phasewise.flows.prefect.flow_decorator import door, say_waiting, this_run
from phasewise.flows.prepare_data import prepare_data
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.assignments import Settings, problems
from phasewise.flows.recipes.feasibility import check_feasible
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.flows.recipes.starter import name_for
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.validate_data import validate_data
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.identity import digest_of_file, write_sealed
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.base.wording import near
from phasewise.trainer.config import MixtureShares, RunConfig, Steps
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.data.mixture import block_counts

OF_MIXTURE = ("mixture", "coverage")  # changes of a hand-off that another mixture makes or takes back


@door(name="search-mixture")
def search_mixture(
    recipe: str,
    phase: str,
    scale: Scale = "proxy",
    home: str | None = None,
    proxies: Annotated[int, Field(ge=8, le=4096)] = 64,
    steps: Annotated[int, Field(ge=1)] | None = None,
    max_epochs: Annotated[float, Field(gt=0)] | None = None,
    target: tuple[str, ...] = (),
    zero: tuple[str, ...] = (),
    seeds: Annotated[int, Field(ge=0, le=100)] = 0,
    out: str | None = None,
    settings: Settings = (),
) -> dict[str, Any]:
    """Search the best mixture of a phase with a swarm of short trainings, and write a recipe with it and its predicted gain.

    Args:
        phase: Name of a phase. Its parent must be trained.
        proxies: Number of trainings in the swarm.
        steps: Steps of each training. Default: the steps of the phase.
        max_epochs: Most epochs of each component in the phase. Default: the limit of the phase's gate.
        target: Components with the held-out loss to minimise. Default: the mean over all components.
        zero: Components that may get no sequences.
        seeds: Afterwards train the natural mixture, the best of the swarm and the found mixture with this number of seeds.
        out: JSON file of the recipe. Default: a file in the home.
    """
    from phasewise.tasks.training.swarm import proxy_of, shortened, train_swarm  # it imports Dask
    from phasewise.validations.evidence.mixing_law import best_counts, draw_mixtures, fit_law, predicted_gain  # it imports NumPy

    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    names = chosen.components
    for option, listed in {"target": target, "zero": zero}.items():
        if unknown := [name for name in listed if name not in chosen.components]:
            raise ConfigError(f"{option}: {chosen.name} has no component {unknown[0]!r}, {near(unknown[0], chosen.components)}")
    if len(chosen.components) < 2:
        raise ConfigError(f"phase {chosen.name}: expected at least 2 components to mix, found 1. Name another phase.")
    resolved.check([chosen])
    resolved.home.make_ready()
    with resolved.held(this_run(), on_wait=say_waiting):
        prepare_data(resolved.name, scale, home, resolved.settings)
        run = resolved.run(chosen)
        validate_data(resolved.name, phase, scale, home, resolved.settings)
        block = run.order.block_sequences
        tokens, natural, least, most = _bounds(run, chosen, zero, limit := max_epochs or chosen.gates.data.max_epochs)
        weights = np.array([not target or name in target for name in names]) / len(set(target or names))
        small = run if steps is None else shortened(run, steps)
        folders = resolved.plan.folders("held_out")
        held_out = {name: str(folders[name]) for name in names}
        base = proxy_of(small, _shares(names, natural), held_out, Path())
        folder = resolved.home.work / "mixtures" / resolved.recipe.run_name / phase / base.digest[:16]

        def proxies_of(mixtures: Iterable[np.ndarray], label: str, seed: int | None = None) -> list[RunConfig]:
            listed = enumerate(_shares(names, counts) for counts in mixtures)
            return [proxy_of(small, shares, held_out, folder / f"{label}-{number}", seed) for number, shares in listed]

        drawn = draw_mixtures(tokens / tokens.sum(), block, proxies, run.order.seed % 2**32)
        losses = train_swarm("train proxies", proxies_of(drawn, "proxy"))
        whole = np.isfinite(losses).all(axis=1)
        mixed, losses = drawn[whole], losses[whole]
        law = fit_law(mixed / block, losses)
        best = best_counts(law, weights, natural, least, most)
        gain = predicted_gain(mixed / block, losses, law, weights, (natural / block, best / block))
        swarm_best = mixed[np.argmin(losses @ weights)]
        path = Path(out) if out else folder / f"{resolved.recipe.name}-{phase}-mixed.json"
        write_recipe(path, resolved, chosen, _shares(names, best))
        rows = zip(names, *(one.tolist() for one in (tokens, natural, best, most)), strict=True)
        found: dict[str, Any] = {
            "recipe": resolved.recipe.name, "scale": scale, "phase": phase, "file": str(path), "digest": digest_of_file(path),
            "proxies": len(losses), "steps": small.stop_step - small.start_step, "target": list(target or names), "max_epochs": limit,
            "block": block, "components": [dict(zip(("name", "tokens", "natural", "best", "most"), row, strict=True)) for row in rows],
            "predicted": gain._asdict(), "measured": [],
        }  # fmt: skip
        write_sealed(folder / "prediction.json", found)  # before any training of the mixture
        say(f"{phase}: {path} is predicted to gain {gain.mean:.4f} nats per token, 80 % interval {gain.low:.4f} to {gain.high:.4f}")
        for seed in range(1, seeds + 1):
            three = proxies_of((natural, swarm_best, best), f"seed-{seed}", seed)
            values = (train_swarm(f"verify with seed {seed}", three) @ weights).tolist()
            found["measured"].append(dict(zip(("natural", "swarm_best", "best"), values, strict=True)) | {"seed": seed})
        write_sealed(folder / "measured.json", found)
    return found


def _bounds(run: RunConfig, phase: Phase, zero: Sequence[str], max_epochs: float | None) -> tuple[np.ndarray, ...]:
    """Return tokens of each component, and counts in a block: natural by tokens, least, and most within the epochs."""
    names, block = phase.components, run.order.block_sequences
    tokens = np.array([read_manifest(run.caches[name]).tokens for name in names])
    most = np.full(len(names), block)
    if max_epochs is not None:
        most = np.minimum(most, np.floor(block * max_epochs * tokens / phase.tokens).astype(np.int64))
    least = np.array([0 if name in zero else 1 for name in names])
    counts = block_counts(dict(zip(names, (100 * tokens / tokens.sum()).tolist(), strict=True)), run.order)
    natural = np.maximum(np.array([counts[name] for name in names]), least)
    natural[natural.argmax()] -= natural.sum() - block
    return tokens, natural, least, most


def _shares(names: Sequence[str], counts: np.ndarray) -> MixtureShares:
    """The counts of a block in percent, without components that have none."""
    return {name: 100 * count / int(counts.sum()) for name, count in zip(names, counts.tolist(), strict=True) if count}


def write_recipe(path: Path, resolved: Resolved, phase: Phase, shares: MixtureShares) -> None:
    """Write the recipe with another mixture of a phase, and with the declarations of its hand-offs that follow from the mixture."""
    record = load_record(resolved.recipe_name, resolved.recipe.scale, phase.name)
    phases = {one.name: one for one in record.phases}
    phases[phase.name] = phases[phase.name].but(mixture=Steps[MixtureShares](((0, shares),)))
    drawn = {component for one in phases.values() for component in one.components}
    kept = {name: source for name, source in record.sources.items() if name in drawn}
    changed = {**dict(record), "name": name_for(path), "sources": kept, "phases": tuple(phases.values())}
    draft = Recipe.model_construct(None, **changed)
    for one in draft.phases:
        if isinstance(one.start, HandOff):
            made = draft.changes_of(one)
            declared = [name for name in one.start.declares if name not in OF_MIXTURE or name in made]
            declared += [name for name in OF_MIXTURE if name in made and name not in declared]
            phases[one.name] = one.but(start=one.start.but(declares=declared))
    try:
        written = Recipe.model_validate({**changed, "phases": tuple(phases.values())})
    except ValidationError as error:
        raise RecipeError(f"{path}: the recipe is invalid with the found mixture: {problems(error)}") from None
    check_feasible(written, written.phases)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(written.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n").encode())
