"""What a phase is predicted to take, before it begins: by what was measured on this machine, or by preflight on another slice."""

from collections.abc import Iterable, Sequence
from typing import Any

from flows.execution import slices_of
from flows.plan import build_run
from flows.recipes.phase import LOCAL_SLICE, FromScratch, Phase
from flows.recipes.recipe import Recipe
from flows.setups import setups_of
from tasks.home import Home
from tasks.prediction.calibrate import calibrate
from tasks.prediction.costs import Costs, step_keys
from tasks.prediction.evidence import keep_calibration, known_costs
from tasks.prediction.predict import Prediction, predict, predict_slice, price_per_hour
from tasks.preflight.slices import find_slice
from tasks.progress import say
from tasks.training.choice import HERE, chosen_kind
from tasks.training.machine import execution_here, machine_here
from trainer.config import RunConfig


def predict_phase(phase: Phase, run: RunConfig, home: Home) -> Prediction:
    """What the run of a phase will take. What was measured here counts more than a roofline, also for a slice that this machine is.

    Raises:
        ConfigError: the price that the environment names is none.
        TrainingError: jax does not start, or preflight's compiler failed.
    """
    if is_here(phase) or (chosen_kind() == HERE and len(slices_of(phase)) == 1):
        prediction = _of_this_machine(phase, run, known_costs(home))
        if is_here(phase) or prediction.seconds is not None:
            return prediction
    if any(name != LOCAL_SLICE and find_slice(name).chip.platform == "cpu" for _, name in slices_of(phase)):
        why = "no update like its own was measured on this machine, and what preflight computes says nothing of a CPU's time"
        return Prediction(run_digest=run.digest, steps=run.stop_step - run.start_step, source=why)
    from tasks.preflight.preflight import preflight_setup  # it imports jax

    reports: list[dict[str, Any]] = [preflight_setup(setup, home) for setup in setups_of([phase])]
    return predict_slice(run, reports, price_per_hour())


def predict_local(recipe: Recipe, phases: Iterable[Phase], home: Home, *, calibrates: bool) -> dict[str, Prediction]:
    """Of every phase that would train on this machine. No data need be there.

    Args:
        calibrates: what no prediction can be made of is measured first, some ten seconds each.

    Raises:
        ConfigError: as `predict_phase`, or another process is at work in this home: it would be measured, too.
        TrainingError: as `predict_phase`, or a calibration failed.
    """
    here = {phase.name: phase for phase in phases if is_here(phase)}
    runs = {name: run_without_data(recipe, phase, home) for name, phase in here.items()}
    if calibrates:
        with home.held("`phasewise preflight --calibrate`"):
            for name, run in runs.items():
                _calibrate(name, run, home)
    known = known_costs(home)
    return {name: _of_this_machine(phase, runs[name], known) for name, phase in here.items()}


def is_here(phase: Phase) -> bool:
    """Whether the phase trains on this machine from its beginning to its end."""
    return all(name == LOCAL_SLICE for _, name in slices_of(phase))


def run_without_data(recipe: Recipe, phase: Phase, home: Home) -> RunConfig:
    """The phase as the trainer would want it, with caches that need not be there, and the devices of this machine."""
    names = {component: home.tokens(component, "train", "-") for component in recipe.components}
    run = build_run(recipe, phase, home, names, held_out=names, needs_parent=False)
    return run.but(execution=execution_here(run, machine_here()))


def _of_this_machine(phase: Phase, run: RunConfig, known: Sequence[Costs]) -> Prediction:
    return predict(run, known, is_from_scratch=isinstance(phase.start, FromScratch), usd_per_hour=price_per_hour())


def _calibrate(name: str, run: RunConfig, home: Home) -> None:
    measured = {key for costs in known_costs(home) for key in costs.steps}
    for size, key in step_keys(run).items():
        if key not in measured:
            say(f"{name}: calibrating this machine with {size} sequences an update, about ten seconds")
            keep_calibration(home, calibrate(run, size, home))
