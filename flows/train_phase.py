"""One phase: verdict on the data, training, verdict on the training, evaluation, verdict of the gate."""

import json
from typing import Any

from prefect.artifacts import create_table_artifact

from phasewise.flows.evaluate_checkpoint import evaluate_checkpoint
from phasewise.flows.plan import setups_of
from phasewise.flows.prefect.approvals import asking_people, take_answers
from phasewise.flows.prefect.flow_decorator import at_stage, door, or_wait, say_waiting, this_run, wake_others
from phasewise.flows.preflight import preflight
from phasewise.flows.prepare_data import prepare_data
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase, Pretrained
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.phase_status import approving_command, raise_unless_let_pass, read_record, read_records
from phasewise.flows.status.recipe_status import why_no_report
from phasewise.flows.status.retraining import check_ancestors_hold, check_ancestors_passed, check_replaced, check_verdicts, find_replaced
from phasewise.flows.status.summary import phase_summary, write_recipe_report
from phasewise.flows.validate_data import validate_data
from phasewise.tasks.evaluation.settings import needles_of, own_text_key
from phasewise.tasks.phase_state import State
from phasewise.tasks.progress import say
from phasewise.tasks.training.attempts import PlannedSegment
from phasewise.tasks.training.execution import CPU, execution_here, in_words, machine_here
from phasewise.tasks.training.pretrained import import_weights
from phasewise.tasks.training.run_identity import last_saved_step, note_changed_plan
from phasewise.tasks.training.task import train
from phasewise.tasks.validation.task import ask_about_training, health_gate
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, TrainingDiverged, VerdictError, WaitsForPerson
from phasewise.trainer.base.identity import code_digest, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import Execution, RunConfig
from phasewise.validations.limits import accepted_in


def runs_on_slices(resolved: Resolved, phase: Phase) -> tuple[PlannedSegment, ...]:
    """The run of a phase with the execution of each of its slices, in order. Logs the hardware, and changes of an earlier plan."""
    run, machine = with_own_text(resolved.run(phase), resolved, phase), machine_here()
    slices: list[tuple[int, str]] = []
    for step, name in phase.slice.within(phase.start_step, phase.stop_step):
        if not slices or slices[-1][1] != name:
            slices.append((step, name))
    plans = {name: plan_of(resolved, phase, name) or execution_here(run, machine) for name in dict.fromkeys(name for _, name in slices)}
    stated = {name: value for name, value in phase.execution if value is not None}
    plans = {name: plan.but(**stated) for name, plan in plans.items()}
    if in_json := phase.execution.model_dump(mode="json", exclude_none=True):
        say(f"{phase.name}: the recipe states {', '.join(f'{name} {json.dumps(value)}' for name, value in in_json.items())}")
    untils = [*(step for step, _ in slices[1:]), None]
    found = tuple(
        PlannedSegment(run=run.but(execution=plans[name], until_step=until), slice_name=name)
        for (_, name), until in zip(slices, untils, strict=True)
    )
    for one in found:
        until = "" if one.run.until_step is None else f", to step {one.run.until_step:,}"
        is_here = one.slice_name == LOCAL_SLICE or machine != CPU or one.slice_name.startswith("cpu-")
        say(f"{phase.name}: trains on {in_words(one.run, machine) if is_here else one.slice_name}{until}")
    saved = last_saved_step(run)
    note_changed_plan(next(one.run for one in found if saved is None or saved < one.run.last_step or one is found[-1]))
    return found


def with_own_text(run: RunConfig, resolved: Resolved, phase: Phase) -> RunConfig:
    """The run with the rows of `evaluation.held_out`, which are written once per text, tokenizer and row length."""
    url, evaluation, tokenizer = phase.evaluation.held_out, run.evaluation, resolved.plan.tokenizer
    if url is None or evaluation is None:
        return run
    code = code_digest("tasks/evaluation/corpus_fit.py")
    key = digest_of_json([own_text_key(url), digest_of_file(tokenizer), run.model.seq_len, evaluation.sequences, code])
    path = resolved.home.root / "texts" / f"{key[:16]}.npz"
    if not path.exists():
        from phasewise.tasks.data.tokenizer import load_tokenizer, special_tokens
        from phasewise.tasks.evaluation.corpus_fit import Corpus, write_rows

        read = load_tokenizer(tokenizer)
        begin = special_tokens(read, tokenizer).before
        write_rows(Corpus(as_path(url).expanduser()), read, begin, path, seq_len=run.model.seq_len, rows=evaluation.sequences)
    return run.but(evaluation=evaluation.but(own_text=str(path)))


def plan_of(resolved: Resolved, phase: Phase, slice_name: str) -> Execution | None:
    """The execution of a phase on a slice, from preflight. None on this machine. Compiled plans are reused.

    The plan of the largest batch is used. Its micro-batches must divide all batches of the phase, because a slice that starts from an older
    checkpoint trains earlier updates as well.
    """
    if slice_name == LOCAL_SLICE:
        return None
    from phasewise.tasks.preflight.launcher import preflight_setup  # it imports JAX

    setups = [setup for setup in setups_of([phase]) if setup.slice == slice_name]
    report = preflight_setup(max(setups, key=lambda setup: setup.step.batch_sequences), resolved.home)
    if report["execution"] is None:
        raise ConfigError(f"phase {phase.name} does not fit {slice_name}: {report['reason']}")
    execution = Execution.model_validate(report["execution"])
    mesh, part = execution.mesh, execution.microbatch_sequences
    rows = mesh.batch_parts
    for step, size in phase.batch.within(phase.start_step, phase.stop_step):
        if size % rows or (part is not None and size > part and size % part):
            raise ConfigError(
                f"the plan of phase {phase.name} for {slice_name} cuts batches over {rows} devices"
                f"{'' if part is None else f' in parts of {part} sequences'}, found {size} sequences from step {step}: take another slice."
            )
    say(f"{phase.name}: the plan for {slice_name}{' (estimated)' if report['estimated'] else ''}: {report['plan']}")
    return execution


REFUSALS = (VerdictError, TrainingDiverged)  # errors that stop a phase and its descendants, and no other phase


@door(name="train-phase")
@asking_people
def train_phase(
    recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, retrain: bool = False, settings: Settings = ()
) -> None:
    """Train a phase after its parent. Finished work is reused.

    Args:
        retrain: Train a phase again after a change of its data or settings. Less than ten minutes of training at proxy scale need no
            permission.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    resolved.check([chosen])
    resolved.home.make_ready()
    or_wait(check_verdicts, resolved, chosen)
    take_answers(resolved, [chosen])
    with resolved.held(this_run(), on_wait=say_waiting), resolved.working(chosen, this_run(), on_wait=say_waiting):
        or_wait(check_ancestors_passed, resolved, chosen)
        at_stage(resolved, chosen, State.PREPARING)
        if setups_of([chosen]):
            preflight(resolved.name, phase, scale, home, resolved.settings)
        if not resolved.is_prepared:
            prepare_data(resolved.name, scale, home, resolved.settings)
        if read_record(resolved, chosen).state == State.DONE:
            say(f"{phase}: done already", on_top=True)
            if why_no_report(resolved, read_records(resolved)):  # for example after a decision
                write_recipe_report(resolved)
            return
        or_wait(check_ancestors_hold, resolved, chosen)
        if not retrain:
            replaced = find_replaced(resolved, [chosen])
            check_replaced(resolved, replaced, ())
            for one in replaced:
                say(f"trained again: {one}")
        refusal: PhasewiseError | None = None
        try:
            train_judged(resolved, chosen)
        except REFUSALS as error:
            refusal = error
        write_recipe_report(resolved)
        wake_others(resolved.home)
        if refusal:
            raise refusal


def train_judged(resolved: Resolved, phase: Phase) -> None:
    """Judge the data, train, judge the training, and judge the model, up to the first failing verdict.

    Raises ConfigError if a text is too short for its needles. Raises VerdictError if a verdict fails. Raises WaitsForPerson if a verdict or
    the training asks a person. Raises TrainingDiverged if the loss is NaN. The verdict on the training has the step.
    """
    recipe = resolved.recipe
    home = str(resolved.home.root)
    accepts, asks = accepted_in(phase.name, recipe.accepts), recipe.asks_people_in(phase)
    if needles := needles_of(phase.evaluation.benchmarks):
        from phasewise.tasks.data.tokenizer import load_tokenizer
        from phasewise.tasks.evaluation.gate_benchmarks import check_room

        check_room(phase.name, needles, load_tokenizer(resolved.plan.tokenizer))
    if isinstance(phase.start, Pretrained):
        import_weights(phase.start, phase.model, phase.name, resolved.home, recipe.run_name)
    validate_data(resolved.name, phase.name, recipe.scale, home, resolved.settings)
    planned = runs_on_slices(resolved, phase)
    run = planned[-1].run
    at_stage(resolved, phase, State.TRAINING)
    try:
        forecast = None
        if phase.forecast:
            from phasewise.flows.forecast import forecast_of  # it imports NumPy

            forecast = forecast_of(run, resolved.home)
        result = train(run, planned, forecast)
    except WaitsForPerson as waiting:
        question = ask_about_training(waiting.verdict)
        raise_unless_let_pass(question, waiting.verdict, approving_command(resolved, phase))
        raise
    except TrainingDiverged:
        at_stage(resolved, phase, State.CHECKING_TRAINING)
        health_gate(run, phase.gates.health, resolved.home, accepts=accepts, asks_people=asks)
        raise
    at_stage(resolved, phase, State.CHECKING_TRAINING)
    say(f"{phase.name}: trained to step {result['stop_step']:,}, final loss {result['final_loss']:.3f}", on_top=True)
    verdict = health_gate(run, phase.gates.health, resolved.home, accepts=accepts, asks_people=asks)
    path = resolved.home.verdict(recipe.run_name, phase.name, "health")
    raise_unless_let_pass(verdict, path, approving_command(resolved, phase))
    evaluate_checkpoint(resolved.name, phase.name, recipe.scale, home, resolved.settings)
    summary: dict[str, Any] = phase_summary(read_record(resolved, phase))
    table = [{"what": what, "value": str(value)} for what, value in summary.items()]
    create_table_artifact(table, key=f"{recipe.run_name}-{phase.name}-summary", description=f"{recipe.run_name} {phase.name}")
