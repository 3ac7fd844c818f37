"""Last checkpoint of a phase → benchmarks and bits per byte → verdict of the gate."""

from phasewise.flows.checks import check_benchmarks
from phasewise.flows.prefect.flow_decorator import at_stage, door, say_waiting, this_run
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.phase import Pretrained
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve_phase
from phasewise.flows.status.phase_status import approving_command, parent_evaluation, raise_unless_let_pass, trained_run
from phasewise.tasks.evaluation.task import evaluate
from phasewise.tasks.phase_state import State
from phasewise.tasks.training.pretrained import source_as_run
from phasewise.tasks.validation.task import model_gate
from phasewise.trainer.base.errors import TrainingError
from phasewise.validations.limits import accepted_in


@door(name="evaluate")
def evaluate_checkpoint(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, settings: Settings = ()) -> None:
    """Evaluate the last checkpoint of a phase and judge it against the parent. Fails if the gate fails.

    Args:
        phase: Name of a trained phase.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    check_benchmarks(resolved.recipe, chosen)
    resolved.home.make_ready()
    with resolved.kept(this_run()), resolved.working(chosen, this_run(), on_wait=say_waiting):
        run, result = trained_run(resolved, chosen)
        at_stage(resolved, chosen, State.EVALUATING)
        evaluation = evaluate(run, result, resolved.plan, chosen.evaluation.measured)
        if isinstance(chosen.start, Pretrained):
            evaluate(*source_as_run(run), resolved.plan, chosen.evaluation.measured)
        parent = parent_evaluation(resolved, chosen)
        if chosen.parent and parent is None:
            raise TrainingError(
                f"the parent {chosen.parent} of {chosen.name} is not evaluated: run "
                f"`phasewise run {resolved.recipe_name}/{chosen.parent} {resolved.options}`."
            )
        at_stage(resolved, chosen, State.GATING)
        path = resolved.home.verdict(resolved.recipe.run_name, chosen.name, "model")
        accepts, asks = accepted_in(chosen.name, resolved.recipe.accepts), resolved.recipe.asks_people_in(chosen)
        verdict = model_gate(run, evaluation, parent, chosen.gates.model, path, accepts=accepts, asks_people=asks)
        raise_unless_let_pass(verdict, path, approving_command(resolved, chosen))
