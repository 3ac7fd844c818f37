"""Evidence → verdict, for the data of a phase."""

from phasewise.flows.prefect.flow_decorator import at_stage, door, say_waiting, this_run
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve_phase
from phasewise.flows.status.phase_status import approving_command, raise_unless_let_pass
from phasewise.flows.status.verdict_inputs import judge_data
from phasewise.tasks.phase_state import State
from phasewise.tasks.validation.task import data_gate


@door(name="validate-data")
def validate_data(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, settings: Settings = ()) -> None:
    """Judge the caches, the mixture, the order, the leakage and the hand-off of a phase. Fails if the verdict fails.

    Caches with less text than the phase draws, because of a token budget, are rejected first.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    resolved.home.make_ready()
    with resolved.kept(this_run()), resolved.working(chosen, this_run(), on_wait=say_waiting):
        at_stage(resolved, chosen, State.CHECKING_DATA)
        verdict = judge_data(resolved, chosen, data_gate)
        raise_unless_let_pass(verdict, resolved.run(chosen).verdict, approving_command(resolved, chosen))
