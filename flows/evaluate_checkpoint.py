"""A phase's last checkpoint → benchmarks and bits per byte → verdict of the gate."""

from phasewise.flows.checks import check_benchmarks
from phasewise.flows.prefect.flow_decorator import door, this_run
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.phase_status import approving_command, parent_evaluation, raise_unless_let_pass, trained_run
from phasewise.tasks.evaluation.task import evaluate
from phasewise.tasks.validation.task import model_gate
from phasewise.trainer.base.errors import TrainingError
from phasewise.validations.waivers import accepted_in


@door(name="evaluate", flow_run_name="evaluate {recipe}/{phase} ({scale})")
def evaluate_checkpoint(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, settings: Settings = ()) -> None:
    """Evaluate the checkpoint at a phase's end and judge it against its parent. Fails where the gate does.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        phase: Name of one of its phases, trained.
        scale: `proxy`, `full`, or `own` for a recipe that is run as it is written.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    check_benchmarks(resolved.recipe, chosen)
    with resolved.kept(this_run()):
        evaluate_and_judge(resolved, chosen)


def evaluate_and_judge(resolved: Resolved, chosen: Phase) -> None:
    """Evaluate the last checkpoint of a phase, and judge it.

    Raises:
        TrainingError: the phase is not trained, or its parent is not evaluated.
        VerdictError, WaitsForPerson: the verdict does not let the phase go on.
    """
    wanted, phase = resolved.recipe, chosen.name
    run, result = trained_run(resolved, chosen)
    evaluation = evaluate(run, result, resolved.plan, chosen.evaluation.measured)
    parent = parent_evaluation(resolved, chosen)
    if chosen.parent and parent is None:
        raise TrainingError(
            f"{chosen.parent}, which {phase} starts from, is not evaluated: run "
            f"`phasewise run {resolved.recipe_name}/{chosen.parent} {resolved.options}`."
        )
    path = resolved.home.verdict(wanted.run_name, phase, "model")
    accepts = accepted_in(phase, wanted.accepts)
    asks = wanted.asks_people_in(chosen)
    verdict = model_gate(run, evaluation, parent, chosen.gates.model, path, accepts=accepts, asks_people=asks)
    raise_unless_let_pass(verdict, path, approving_command(resolved, chosen))
