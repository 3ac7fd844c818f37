"""How a phase is carried out: the plan that preflight found for its slice, or on `local` the devices that are here."""

from flows.recipes.phase import Phase
from flows.resolved import Resolved
from flows.setups import setups_of
from tasks.progress import say
from tasks.training.machine import CPU, Machine, execution_here, in_words, machine_here
from tasks.training.replanned import note_changed_plan
from trainer.base.errors import ConfigError
from trainer.config import Execution, RunConfig


def run_on_slice(resolved: Resolved, phase: Phase) -> RunConfig:
    """The run of a phase with the execution of its slice. It says what it computes on, and what of an earlier plan changed.

    Raises:
        ConfigError: the phase has several slices, or no plan fits.
        TrainingError: as `Resolved.run`, or the compiler failed.
    """
    run, machine = resolved.run(phase), machine_here()
    planned = plan_of(resolved, phase)
    run = run.but(execution=planned or execution_here(run, machine))
    say(f"{phase.name}: trains on {_words(run, phase, machine)}")
    note_changed_plan(run)
    return run


def plan_of(resolved: Resolved, phase: Phase) -> Execution | None:
    """The execution that preflight reports for the phase; None on this machine. What was compiled before is read.

    The plan is that of the largest batch. Its parts of the batch must divide the others.

    Raises:
        ConfigError: the phase has several slices, or no plan fits, or that of the largest batch fits no other one.
    """
    setups = setups_of([phase])
    if not setups:
        return None
    slices = list(dict.fromkeys(setup.slice for setup in setups))
    if len(slices) > 1 or any(name != slices[0] for _, name in phase.slice.within(phase.start_step, phase.stop_step)):
        raise ConfigError(
            f"phase {phase.name} must have one slice to be trained, found {', '.join(slices)} one after the other: name one by --slice."
        )
    from tasks.preflight.preflight import preflight_setup  # it imports jax, which a phase on this machine is spared

    report = preflight_setup(max(setups, key=lambda setup: setup.step.batch_sequences), resolved.home)
    if report["execution"] is None:
        raise ConfigError(f"phase {phase.name} does not fit {slices[0]}: {report['reason']}")
    execution = Execution.model_validate(report["execution"])
    _check_batches(phase, execution, slices[0])
    say(f"{phase.name}: the plan for {slices[0]}{' (estimated)' if report['estimated'] else ''}: {report['plan']}")
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


def _words(run: RunConfig, phase: Phase, machine: Machine) -> str:
    """A slice that is not this machine says its name; devices of this CPU are its own."""
    name = phase.slice.at(phase.start_step)
    if name == "local" or machine != CPU or name.startswith("cpu-"):
        return in_words(run, machine)
    return name
