"""What a verdict on a phase's data rests on beside caches, limits and suite: where one of these changes, it must be given again."""

from phasewise.flows.hand_off import hand_off_key
from phasewise.flows.needs import drawn_earlier
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.resolved import Resolved
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config import RunConfig, without_added
from phasewise.trainer.data.rows import DrawnRows

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
    hand_off = hand_off_key(resolved.recipe, phase, run)
    return found if hand_off is None else {**found, "hand-off": hand_off}


def _in_tokens(rows: tuple[DrawnRows, ...]) -> int | tuple[DrawnRows, ...]:
    """Full rows by their tokens, as verdicts of before name them; packed ones as they are."""
    return sum(one.places for one in rows) if all(one.packing == "chunk" for one in rows) else rows


def unreadable_key(phase: Phase, plan: DataPlan) -> str:
    """Digest of how much of each source may be unreadable, or without text."""
    sources = {name: plan.components[name].source for name in phase.components}
    return digest_of_json({name: [source.max_bad_fraction, source.max_empty_fraction] for name, source in sources.items()})
