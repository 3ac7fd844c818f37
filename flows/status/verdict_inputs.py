"""Inputs of the verdict on the data of a phase, with the changes of its hand-off."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phasewise.flows.plan import check_enough, drawn_earlier
from phasewise.flows.recipes.hand_off import Pair, both_in_words
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.frozen import in_one_line
from phasewise.trainer.base.identity import digest_of_json, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import MixtureShares, RunConfig, Steps
from phasewise.trainer.config.run import ADDED_LATER
from phasewise.trainer.data.loader import Loader
from phasewise.validations.limits import accepted_in
from phasewise.validations.verdict import Verdict

IN_ORDER = ("start_step", "stop_step", "batch", "mixture", "order", "packing", "loss_on")
TRAINED_AS = ("model", "optimizer", "learning_rate", "stability", "batch", "mixture", "order", "packing", "loss_on")
COMPARED_OTHERWISE = {"batch", "mixture", "components", "seq_len", "packing", "packing_version", "loss_on"}


def judge_data(resolved: Resolved, phase: Phase, gate: Callable[..., Verdict]) -> Verdict:
    """Judge the data of a phase by `gate`, as `judge_phase_data`. Raises DataError if a budget left less text than the phase draws."""
    from phasewise.validations.evidence.caches import hand_off_evidence  # pandas

    run, recipe = resolved.run(phase), resolved.recipe
    check_enough(recipe, resolved.plan, [phase])
    declared, changes = hand_off_facts(recipe, phase, run)
    return gate(
        run,
        resolved.plan,
        phase.gates.data,
        resolved.home,
        hand_off=hand_off_evidence(declared, changes),
        rows_before=drawn_earlier(recipe, phase),
        own=recipe.own_benchmarks(phase),
        decided_by=decided_by(resolved, phase, run),
        accepts=accepted_in(phase.name, recipe.accepts),
        asks_people=recipe.asks_people_in(phase),
    )


def decided_by(resolved: Resolved, phase: Phase, run: RunConfig) -> dict[str, str]:
    """Input → digest, of a verdict on data: the order of rows, the test items, the limits on unreadable records, and the hand-off."""
    settings = run.model_dump(mode="json", include=set(IN_ORDER))
    found = {
        "order": digest_of_json({**settings, "seq_len": run.model.seq_len}),
        "test items": resolved.items_key(phase),
        "unreadable": unreadable_key(phase, resolved.plan),
    }
    if earlier := drawn_earlier(resolved.recipe, phase):
        counts: dict[str, object] = {}
        for name, drawn_rows in earlier.items():
            in_tokens = all(one.packing == "chunk" for one in drawn_rows)
            counts[name] = sum(one.sequences * one.seq_len for one in drawn_rows) if in_tokens else drawn_rows
        found["drawn before the order began"] = digest_of_json(counts)
    if isinstance(phase.start, HandOff) and run.start is not None:
        run_file = RunFolder(as_path(run.start.checkpoint).parents[1]).run_file
        parent = _as_trained(resolved.recipe.phase(phase.start.parent), run_file)
        compared = {one.name: one.model_dump(mode="json", include={*TRAINED_AS, "slice"}) for one in (parent, phase)}
        drawn, earlier_order = resolved.recipe.drawn_before(phase)
        decided = {
            "declared": [name for name in phase.start.declares if not resolved.recipe.is_scaled or name != "slice"],
            "compared": compared,
            "drawn": sorted(drawn),
            "start": run.decisive["start"],
        }
        found["hand-off"] = digest_of_json({**decided, "earlier": sorted(earlier_order)} if earlier_order else decided)
    return found


def unreadable_key(phase: Phase, plan: DataPlan) -> str:
    """Digest of the limits on unreadable records and records without text."""
    sources = {name: plan.components[name].source for name in phase.components}
    return digest_of_json({name: [source.max_bad_fraction, source.max_empty_fraction] for name, source in sources.items()})


def hand_off_facts(recipe: Recipe, phase: Phase, run: RunConfig) -> tuple[tuple[str, ...] | None, dict[str, Pair]]:
    """The declared and the found changes of a hand-off as text, since the training of the parent. None and nothing from scratch."""
    if not isinstance(phase.start, HandOff) or run.start is None:
        return None, {}
    from phasewise.trainer.checkpoints.state import read_about  # it imports JAX

    checkpoint = Path(run.start.checkpoint)
    parent = _as_trained(recipe.phase(phase.start.parent), RunFolder(checkpoint.parents[1]).run_file)
    found: dict[str, Pair] = {name: both_in_words(*pair) for name, pair in recipe.changes_of(phase, parent).items()}
    contract = read_about(checkpoint)["contract"]
    declared = tuple(name for name in phase.start.declares if not recipe.is_scaled or name != "slice")
    return declared, {**changes_of_contract(contract, Loader(run).contract(), run.start_step), **found}


def _as_trained(parent: Phase, run_file: Path) -> Phase:
    if not run_file.exists():
        return parent
    trained = read_sealed(run_file)
    try:
        return parent.but(**{name: trained[name] for name in TRAINED_AS})
    except (KeyError, ValidationError) as error:
        raise TrainingError(
            f"{run_file} must have the settings of phase {parent.name}, and is invalid ({in_one_line(error)}): train {parent.name} again."
        ) from None


def changes_of_contract(before: Mapping[str, Any], after: Mapping[str, Any], start_step: int) -> dict[str, Pair]:
    """The differences of two data order contracts: batches and mixtures up to the hand-off, shared components, further fields."""
    contracts = (before, after)
    pairs: dict[str, list[Any]] = {
        "batches so far": [dict(Steps[int].model_validate(one["batch"]).within(0, start_step)) for one in contracts],
        "mixtures so far": [dict(Steps[MixtureShares].model_validate(one["mixture"]).within(0, start_step)) for one in contracts],
    }
    for component in sorted(before["components"].keys() & after["components"].keys()):
        pairs[f"data of {component}"] = [one["components"][component].get("content") for one in contracts]
    pairs["packing"] = []
    for one in contracts:
        kind, version = one["packing"], one.get("packing_version")
        pairs["packing"].append("chunk" if kind == "buffer" else kind if version is None else f"{kind}, version {version}")
    pairs["loss_on"] = [one.get("loss_on", ADDED_LATER["loss_on"]) for one in contracts]
    others = [name for name in {**before, **after} if name not in COMPARED_OTHERWISE]
    pairs["order"] = [{name: one.get(name) for name in others} for one in contracts]
    return {name: both_in_words(was, now) for name, (was, now) in pairs.items() if was != now}
