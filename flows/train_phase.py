"""One phase: judge its data, train it, judge how it trained, evaluate it, pass its gate."""

from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact

from flows.evaluate_checkpoint import evaluate_checkpoint
from flows.plan import build_run, check_as_written, check_mixtures, check_slices, data_plan
from flows.preflight import preflight
from flows.prepare_data import prepare_data
from flows.recipes import load_recipe, name_with
from flows.recipes.recipe import Scale
from flows.record import read_record
from flows.summary import phase_summary
from flows.validate_data import raise_unless_passed, validate_data
from tasks.home import Home
from tasks.progress import say
from tasks.training.task import train
from tasks.validation.task import judge_health


@flow(name="train_phase", flow_run_name="train {recipe}/{phase} ({scale})")
def train_phase(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None) -> None:
    """Train a phase whose parent is trained. What is done already is not done again.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file.
        phase: Name of one of its phases.
        scale: `proxy` or `full`.
        home: Folder of everything; PHASEWISE_HOME if not given.
    """
    name = name_with(recipe, phase, scale)
    wanted, place = load_recipe(name, scale), Home.open(home, local_for="training")
    chosen = wanted.phase(phase)
    check_slices(wanted, [chosen])
    check_as_written(name, [chosen])
    check_mixtures(wanted, [chosen])
    preflight(name, phase, scale, home)
    prepare_data(name, scale, home)
    plan = data_plan(wanted, place)
    if read_record(wanted, chosen, place, plan).state == "done":
        say(f"{phase}: done already")
        return
    run = build_run(wanted, chosen, place, plan.folders("train"), held_out=plan.folders("held_out"))
    validate_data(name, phase, scale, home)
    result = train(run)
    say(f"{phase}: trained to step {result['stop_step']}, final loss {result['final_loss']:.3f}")
    raise_unless_passed(judge_health(run, chosen.gates.health, place))
    evaluate_checkpoint(name, phase, scale, home)
    summary: dict[str, Any] = phase_summary(read_record(wanted, chosen, place, plan))
    table = [{"what": name, "value": str(value)} for name, value in summary.items()]
    create_table_artifact(table, key=f"{wanted.name}-{phase}-summary", description=f"{wanted.run_name} {phase}")
