"""How a phase is carried out: the plan that preflight found for each of its slices, or on `local` the devices that are here."""

from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase
from phasewise.flows.resolved import Resolved
from phasewise.flows.setups import setups_of
from phasewise.tasks.progress import say
from phasewise.tasks.training.attempts import PlannedSegment
from phasewise.tasks.training.execution import CPU, Machine, execution_here, in_words, machine_here
from phasewise.tasks.training.run_identity import last_saved_step, note_changed_plan
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Execution


def runs_on_slices(resolved: Resolved, phase: Phase) -> tuple[PlannedSegment, ...]:
    """The run of a phase with the execution of its slice; where the slice changes on the way, of each of them, in order. All are planned
    before any trains. It says what each computes on, and what of an earlier plan changed.

    Raises:
        ConfigError: no plan fits.
        TrainingError: as `Resolved.run`, or the compiler failed.
    """
    run, machine = resolved.run(phase), machine_here()
    slices = slices_of(phase)
    plans = {name: plan_of(resolved, phase, name) or execution_here(run, machine) for name in dict.fromkeys(name for _, name in slices)}
    untils = [*(step for step, _ in slices[1:]), None]
    found = tuple(
        PlannedSegment(run=run.but(execution=plans[name], until_step=until), slice_name=name)
        for (_, name), until in zip(slices, untils, strict=True)
    )
    for one in found:
        until = "" if one.run.until_step is None else f", to step {one.run.until_step:,}"
        say(f"{phase.name}: trains on {_words(one, machine)}{until}")
    saved = last_saved_step(run)
    note_changed_plan(next(one.run for one in found if saved is None or saved < one.run.last_step or one is found[-1]))
    return found


def slices_of(phase: Phase) -> list[tuple[int, str]]:
    """The step from which the phase is on a slice, and its name; neighbours that are the same are one."""
    found: list[tuple[int, str]] = []
    for step, name in phase.slice.within(phase.start_step, phase.stop_step):
        if not found or found[-1][1] != name:
            found.append((step, name))
    return found


def plan_of(resolved: Resolved, phase: Phase, slice_name: str) -> Execution | None:
    """The execution that preflight reports for the phase on one of its slices; None on this machine. What was compiled before is read.

    The plan is that of the largest batch there. Its parts of the batch must divide all others: from an older checkpoint the slice trains
    updates of before, too.

    Raises:
        ConfigError: no plan fits, or that of the largest batch fits no other one.
    """
    if slice_name == LOCAL_SLICE:
        return None
    from phasewise.tasks.preflight.preflight import preflight_setup  # it imports jax, which a phase on this machine is spared

    setups = [setup for setup in setups_of([phase]) if setup.slice == slice_name]
    report = preflight_setup(max(setups, key=lambda setup: setup.step.batch_sequences), resolved.home)
    if report["execution"] is None:
        raise ConfigError(f"phase {phase.name} does not fit {slice_name}: {report['reason']}")
    execution = Execution.model_validate(report["execution"])
    _check_batches(phase, execution, slice_name)
    say(f"{phase.name}: the plan for {slice_name}{' (estimated)' if report['estimated'] else ''}: {report['plan']}")
    return execution


def _check_batches(phase: Phase, execution: Execution, slice_name: str) -> None:
    mesh, part = execution.mesh, execution.microbatch_sequences
    rows = mesh.batch_parts
    for step, size in phase.batch.within(phase.start_step, phase.stop_step):
        if size % rows or (part is not None and size > part and size % part):
            raise ConfigError(
                f"the plan of phase {phase.name} for {slice_name} cuts batches over {rows} devices"
                f"{'' if part is None else f' in parts of {part} sequences'}, found {size} sequences from step {step}: take another slice."
            )


def _words(planned: PlannedSegment, machine: Machine) -> str:
    """A slice that is not this machine says its name; devices of this CPU are its own."""
    name = planned.slice_name
    if name == LOCAL_SLICE or machine != CPU or name.startswith("cpu-"):
        return in_words(planned.run, machine)
    return name
