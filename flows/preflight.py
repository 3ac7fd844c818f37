"""Does a phase fit the slices that it names? Its step is compiled for them, here, without a TPU."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from phasewise.flows.prefect.flow_decorator import door
from phasewise.flows.recipes import split_target
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.flows.setups import setups_of
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import PhasewiseError


class DoesNotFit(PhasewiseError):
    """A phase does not fit its slice."""


@door(name="preflight", flow_run_name="preflight {recipe} ({scale})")
def preflight(recipe: str, phase: str | None = None, scale: Scale = "full", home: str | None = None, settings: Settings = ()) -> None:
    """Compile the step of every setup for its slice: memory, arithmetic, networks, projected time. Fails where a setup does not fit.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        phase: Name of one of its phases; all of them if not given.
        scale: `proxy`, `full`, or `own` for a recipe that is run as it is written.
            At proxy scale every phase is on this machine, and there is nothing to compile.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
    """
    name = f"{split_target(recipe)[0]}/{phase}" if phase else recipe
    resolved, chosen = resolve(name, scale, home)
    wanted = resolved.recipe
    setups = setups_of([chosen] if chosen else wanted.phases)
    if not setups:
        say(f"{name}: on this machine; there is nothing to compile")
        return
    from phasewise.tasks.preflight.launcher import preflight_setup  # it imports jax, which a phase on this machine is spared

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
