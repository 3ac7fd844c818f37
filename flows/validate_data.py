"""Evidence → verdict, for the data of one phase."""

from phasewise.flows.prefect.flow_decorator import door, this_run
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve_phase
from phasewise.flows.status.phase_status import approving_command, raise_unless_let_pass
from phasewise.flows.status.verdict_inputs import decided_by, hand_off_facts
from phasewise.flows.token_budget import check_enough, drawn_earlier
from phasewise.tasks.validation.task import data_gate
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.waivers import accepted_in


@door(name="validate-data", flow_run_name="validate data of {recipe}/{phase} ({scale})")
def validate_data(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, settings: Settings = ()) -> None:
    """Judge the caches, the mixture, the order, the leakage and the hand-off of a phase. Fails where the verdict does.

    Refused before that where a budget was too small: what was read of a component is less than the phase draws.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        phase: Name of one of its phases.
        scale: `proxy`, `full`, or `own` for a recipe that is run as it is written.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    resolved.home.make_ready()
    with resolved.kept(this_run()):
        # Judge what a phase would train on
        run = resolved.run(chosen)
        plan = resolved.plan
        check_enough(resolved.recipe, plan, [chosen])
        facts = hand_off_facts(resolved.recipe, chosen, run)
        hand_off = hand_off_evidence(facts.declared, facts.found)
        rests_on = decided_by(resolved, chosen, run)
        accepts = accepted_in(chosen.name, resolved.recipe.accepts)
        asks = resolved.recipe.asks_people_in(chosen)
        verdict = data_gate(
            run,
            plan,
            chosen.gates.data,
            resolved.home,
            hand_off=hand_off,
            rows_before=drawn_earlier(resolved.recipe, chosen),
            decided_by=rests_on,
            accepts=accepts,
            asks_people=asks,
        )
        raise_unless_let_pass(verdict, run.verdict, approving_command(resolved, chosen))
