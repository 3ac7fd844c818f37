"""Compiles the step of each phase for its slices, on this machine, without a TPU."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from phasewise.flows.plan import setups_of
from phasewise.flows.prefect.flow_decorator import door
from phasewise.flows.recipes import split_target
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import PhasewiseError


class DoesNotFit(PhasewiseError):
    """A phase does not fit its slice."""


@door(name="preflight")
def preflight(recipe: str, phase: str | None = None, scale: Scale = "full", home: str | None = None, settings: Settings = ()) -> None:
    """Compile the step of every setup for its slice: memory, arithmetic, networks, projected time. Fails if a setup does not fit.

    Args:
        phase: Name of a phase. Default: all phases.
            At proxy scale, every phase runs on this machine, and nothing is compiled.
    """
    name = f"{split_target(recipe)[0]}/{phase}" if phase else recipe
    resolved, chosen = resolve(name, scale, home)
    wanted = resolved.recipe
    setups = setups_of([chosen] if chosen else wanted.phases)
    if not setups:
        say(f"{name}: on this machine, nothing to compile")
        return
    from phasewise.tasks.preflight.launcher import preflight_setup  # it imports JAX

    resolved.home.make_ready()
    preflight_task = task(task_run_name="preflight {setup.words}", cache_policy=NO_CACHE)(preflight_setup)
    reports = [preflight_task(setup, resolved.home) for setup in setups]
    rows = [{what: str(value) for what, value in report.items() if not isinstance(value, dict | list)} for report in reports]
    create_table_artifact(rows, key=f"{wanted.name}-preflight", description=f"Preflight of {name}")
    if refused := [f"{report['phase']} on {report['slice']}: {report['reason']}" for report in reports if not report["fits"]]:
        raise DoesNotFit("\n".join(refused))
    for report in reports:
        how = "is estimated to fit" if report["estimated"] else "fits"
        say(f"{report['phase']}: {how} {report['slice']}, {report['gib_per_chip']['peak']} GiB a chip, {report['plan']}")
