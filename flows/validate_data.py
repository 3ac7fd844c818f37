"""Evidence → verdict, for the data of one phase."""

from flows.decided_by import decided_by
from flows.door import door
from flows.hand_off import hand_off_facts
from flows.recipes.assignments import Settings
from flows.recipes.recipe import Scale
from flows.resolved import resolve_phase
from tasks.validation.task import data_gate
from trainer.base.errors import VerdictError
from validations.accepted import accepted_in
from validations.evidence.hand_off import hand_off_evidence
from validations.report.words import lines_of
from validations.verdict import Verdict


@door(name="validate_data", flow_run_name="validate data of {recipe}/{phase} ({scale})")
def validate_data(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, settings: Settings = ()) -> None:
    """Judge the caches, the mixture, the order, the leakage and the hand-off of a phase. Fails where the verdict does.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        phase: Name of one of its phases.
        scale: `proxy`, `full`, or `own` for a recipe that is run as it is written.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    resolved.home.make_ready()
    run = resolved.run(chosen)
    plan = resolved.plan
    facts = hand_off_facts(resolved.recipe, chosen, run)
    hand_off = hand_off_evidence(facts.declared, facts.found)
    rests_on = decided_by(resolved, chosen, run)
    accepts = accepted_in(phase, resolved.recipe.accepts)
    raise_unless_passed(data_gate(run, plan, chosen.gates.data, resolved.home, hand_off=hand_off, decided_by=rests_on, accepts=accepts))


def raise_unless_passed(verdict: Verdict) -> None:
    """Turn a verdict that fails into the error that stops a phase.

    Raises:
        VerdictError: in three lines: what is wrong and where, what was found against which limit, what to do.
    """
    if not verdict.passes:
        raise VerdictError("\n".join(lines_of(verdict)))
