"""What a hand-off changes: what the recipe says of parent and phase, held against what the parent was really trained as.

The parent's `run.json` says as what it was trained; the contract in its checkpoint says in which order its data came, by which version of
the permutation, and which bytes they were. A recipe that was edited after the parent was trained is found out so.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from phasewise.flows.recipes.hand_off import Pair, both_in_words
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.token_budget import drawn_earlier
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.frozen import in_one_line
from phasewise.trainer.base.identity import digest_of_json, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import MixtureShares, RunConfig, Steps, without_added
from phasewise.trainer.config.run import ADDED_LATER
from phasewise.trainer.data.loader import Loader, compared_by, with_contents
from phasewise.trainer.data.packing import DrawnRows

IN_ORDER = ("start_step", "stop_step", "batch", "mixture", "order")


def decided_by(resolved: Resolved, phase: Phase, run: RunConfig) -> dict[str, str]:
    """Name → digest: the order in which the rows are drawn, the test items that are looked for, how much of a source may be unreadable, and
    the hand-off where there is one.

    Raises:
        DataError: a held-out cache is not there.
        TrainingError: what the parent was trained as does not read.
    """
    settings = run.model_dump(mode="json", include=set(IN_ORDER))
    rows = without_added({"packing": run.packing, "loss_on": run.loss_on})
    found = {
        "order": digest_of_json({**settings, "seq_len": run.model.seq_len, **rows}),
        "test items": resolved.items_key(phase),
        "unreadable": unreadable_key(phase, resolved.plan),
    }
    if earlier := drawn_earlier(resolved.recipe, phase):
        found["drawn before the order began"] = digest_of_json({name: _in_tokens(rows) for name, rows in earlier.items()})
    if not isinstance(phase.start, HandOff) or run.start is None:
        hand_off = None
    else:
        run_file = RunFolder.of_checkpoint(run.start.checkpoint).run_file
        parent = _as_trained(resolved.recipe.phase(phase.start.parent), run_file)
        compared = {one.name: one.model_dump(mode="json", include={*TRAINED_AS, "slice"} - _plain_rows(one)) for one in (parent, phase)}
        drawn = resolved.recipe.drawn_before(phase)
        decided = {
            "declared": _declared(resolved.recipe, phase.start),
            "compared": compared,
            "drawn": sorted(drawn.ever),
            "start": run.decisive["start"],
        }
        hand_off = digest_of_json({**decided, "earlier": sorted(drawn.earlier)} if drawn.earlier else decided)
    return found if hand_off is None else {**found, "hand-off": hand_off}


def _in_tokens(rows: tuple[DrawnRows, ...]) -> int | tuple[DrawnRows, ...]:
    return sum(one.places for one in rows) if all(one.packing == "chunk" for one in rows) else rows


def unreadable_key(phase: Phase, plan: DataPlan) -> str:
    """Digest of how much of each source may be unreadable, or without text."""
    sources = {name: plan.components[name].source for name in phase.components}
    return digest_of_json({name: [source.max_bad_fraction, source.max_empty_fraction] for name, source in sources.items()})


TRAINED_AS = ("model", "optimizer", "learning_rate", "stability", "batch", "mixture", "order", "packing", "loss_on")
ROWS = ("packing", "loss_on")
"""What came later: a run of before does not say it, and no key of before has it."""
COMPARED_OTHERWISE = {"batch", "mixture", "components", "seq_len", "packing", "packing_version", "loss_on"}


class HandOffFacts(NamedTuple):
    """What `validations.evidence.hand_off.hand_off_evidence` makes its table of."""

    declared: tuple[str, ...] | None
    found: dict[str, Pair]


def hand_off_facts(recipe: Recipe, phase: Phase, run: RunConfig) -> HandOffFacts:
    """What the phase declares and what it changes, in words; for a phase from scratch, that there is nothing to declare.

    Raises:
        CheckpointError: the parent's checkpoint is not there.
        TrainingError: what the parent was trained as does not read.
        DataError: a cache of the phase cannot be read.
    """
    if not isinstance(phase.start, HandOff) or run.start is None:
        return HandOffFacts(None, {})
    from phasewise.trainer.checkpoints.state import read_about  # it imports JAX

    checkpoint = Path(run.start.checkpoint)
    parent = _as_trained(recipe.phase(phase.start.parent), RunFolder.of_checkpoint(checkpoint).run_file)
    found: dict[str, Pair] = {name: both_in_words(*pair) for name, pair in recipe.changes_of(phase, parent).items()}
    contract = with_contents(read_about(checkpoint)["contract"], run)
    return HandOffFacts(_declared(recipe, phase.start), {**changes_of_contract(contract, Loader(run).contract(), run.start_step), **found})


def _plain_rows(phase: Phase) -> set[str]:
    return {name for name in ROWS if getattr(phase, name) == ADDED_LATER[name]}


def _declared(recipe: Recipe, start: HandOff) -> tuple[str, ...]:
    return tuple(name for name in start.declares if not recipe.is_scaled or name != "slice")


def _as_trained(parent: Phase, run_file: Path) -> Phase:
    if not run_file.exists():
        return parent
    trained = read_sealed(run_file, may_lack_seal=True)
    try:
        return parent.but(**{name: trained.get(name, ADDED_LATER[name]) if name in ROWS else trained[name] for name in TRAINED_AS})
    except (KeyError, ValidationError) as error:
        raise TrainingError(
            f"{run_file} must say as what phase {parent.name} was trained, and does not read so ({in_one_line(error)}): train "
            f"{parent.name} again."
        ) from None


def changes_of_contract(before: Mapping[str, Any], after: Mapping[str, Any], start_step: int) -> dict[str, Pair]:
    """What differs between the data order contract of the parent's checkpoint and that of the phase, name → before and after.

    The schedules of batch and mixture are compared up to the hand-off, where they must be the same: what the phase believes of the past
    decides which rows it draws next. The components are compared where both have them; how many rows each has follows from its bytes and
    from the model's `seq_len`. What else is in a contract must be equal.
    """
    found: dict[str, Pair] = {}
    batch = (Steps[int].model_validate(contract["batch"]).within(0, start_step) for contract in (before, after))
    mixture = (Steps[MixtureShares].model_validate(contract["mixture"]).within(0, start_step) for contract in (before, after))
    for name, (was, now) in (("batches so far", batch), ("mixtures so far", mixture)):
        if was != now:
            found[name] = both_in_words(dict(was), dict(now))
    for component in sorted(before["components"].keys() & after["components"].keys()):
        caches = [contract["components"][component] for contract in (before, after)]
        was, now = (cache[compared_by(*caches)] for cache in caches)
        if was != now:
            found[f"data of {component}"] = both_in_words(was, now)
    for name, of_contract in (("packing", _packing_in), ("loss_on", lambda contract: contract.get("loss_on", ADDED_LATER["loss_on"]))):
        was, now = of_contract(before), of_contract(after)
        if was != now:
            found[name] = both_in_words(was, now)
    others = [name for name in {**before, **after} if name not in COMPARED_OTHERWISE]
    order = [{name: contract.get(name) for name in others} for contract in (before, after)]
    if order[0] != order[1]:
        found["order"] = both_in_words(*order)
    return found


def _packing_in(contract: Mapping[str, Any]) -> str:
    kind, version = contract["packing"], contract.get("packing_version")
    return "chunk" if kind == "buffer" else kind if version is None else f"{kind}, version {version}"
