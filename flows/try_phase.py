"""An experiment on a phase: arms and a control that fork from a common checkpoint, and their differences."""

from typing import Annotated, Any

from prefect.artifacts import create_table_artifact
from pydantic import Field

from phasewise.flows.experiments.arms import Experiment, plan_experiment
from phasewise.flows.experiments.result import PAGE, figures_of, measure_experiment, words_of, write_experiment
from phasewise.flows.prefect.flow_decorator import door, say_waiting, this_run
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.status.phase_status import read_record
from phasewise.flows.status.recipe_status import is_done
from phasewise.flows.status.retraining import check_ancestors_passed
from phasewise.flows.train_phase import REFUSALS, train_phase
from phasewise.flows.train_recipe import train_recipe
from phasewise.tasks.phase_state import JUDGED
from phasewise.tasks.progress import say
from phasewise.tasks.site import site_address


@door(name="try")
def try_phase(
    recipe: str,
    phase: str,
    arms: tuple[str, ...] = (),
    seeds: Annotated[int, Field(ge=1, le=100)] = 3,
    control: str | None = None,
    scale: Scale = "proxy",
    home: str | None = None,
    settings: Settings = (),
) -> dict[str, Any]:
    """Train arms and control from a common checkpoint with several seeds, and compare them. Trained runs are reused.

    Args:
        phase: Name of the phase. The control is the phase as the recipe writes it.
        arms: The arms, each as NAME:FIELD=VALUE or NAME:PHASE, a phase with the same start. Entries with an equal name belong together.
        seeds: Trainings of each arm and of the control, each with a different data order.
        control: Phase of the control, if it is not the phase itself.
    """
    experiment = plan_experiment(f"{recipe}/{phase}", scale, home, arms, seeds, control)
    result = measure_experiment(experiment, train_arms(experiment))
    result = write_experiment(result, experiment.resolved.home, figures_of(result, experiment.resolved.home))
    run_name = experiment.resolved.recipe.run_name
    page = site_address("-", "experiment", run_name, experiment.name, PAGE) or result["report"]
    shown = ("arm", "measure", "adjusted_p_value", "smallest_detectable", "is_shown")
    rows = [{**{name: row[name] for name in shown}, "difference": words_of(row)} for row in result["differences"]]
    create_table_artifact(rows, key=f"{run_name}-{phase}-experiment", description=f"[{result['headline']}]({page})")
    say(f"{phase}: {result['headline']}", on_top=True)
    return result


def train_arms(experiment: Experiment) -> dict[str, str]:
    """Train the unfinished runs, and return folder → reason of refused runs. A refused run stops no further run.

    Raises:
        VerdictError: an ancestor of the phase has no passing verdict.
    """
    resolved, phase, runs = experiment.resolved, experiment.phase, [(arm, run) for arm in experiment.arms for run in arm.runs]
    for _, run in runs:
        run.resolved.check([run.phase])
    resolved.home.make_ready()
    refusals: dict[str, str] = {}
    with resolved.held(this_run(), on_wait=say_waiting):
        before = resolved.recipe.ancestors(phase)
        if before and not is_done(resolved, before):
            train_recipe(resolved.recipe_name, resolved.recipe.scale, str(resolved.home.root), phase.parent, (), resolved.settings)
            resolved.look_again()
        check_ancestors_passed(resolved, phase)
        for number, (arm, run) in enumerate(runs, start=1):
            one = run.resolved
            if one.is_prepared and read_record(one, run.phase).state in JUDGED:
                continue
            say(f"run {number} of {len(runs)}: {arm.name}, seed {run.seed}", on_top=True)
            try:
                train_phase(one.name, run.phase.name, one.recipe.scale, str(one.home.root), settings=one.settings)
            except REFUSALS as refusal:
                refusals[run.folder] = str(refusal)
                say(f"{arm.name}, seed {run.seed}: {str(refusal).splitlines()[0]}", on_top=True)
    return refusals
