"""Checks of this machine and the source files, before work starts. `flows.recipes.feasibility` checks the recipe."""

from collections.abc import Iterable

from phasewise.flows.plan import sources_of, stand_ins_of
from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.listing import expand
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.data.template import template_of
from phasewise.tasks.evaluation.settings import check_renderings, own_text_key, real_of
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training.select_launcher import chosen_kind
from phasewise.trainer.base.errors import ConfigError, DataError, RecipeError
from phasewise.trainer.base.wording import plural
from phasewise.trainer.config.execution import check_sinks


def check_declared(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Raise RecipeError for missing benchmark items or own text, and for missing or useless items of two renderings."""
    for phase in phases:
        check_benchmarks(recipe, phase)
        if phase.evaluation.held_out is not None:
            own_text_key(phase.evaluation.held_out)
        if phase.evaluation.renderings is not None:
            try:
                check_renderings(phase.evaluation.renderings)
            except DataError as error:
                raise RecipeError(f"the gate of phase {phase.name} of {recipe.run_name} cannot judge it: {error}") from None


def check_benchmarks(recipe: Recipe, phase: Phase) -> None:
    """Raise RecipeError if the folder of benchmarks is unset, or lacks items of the phase's gate."""
    if not (labels := real_of(phase.evaluation.benchmarks)):
        return
    from phasewise.tasks.evaluation.gate_benchmarks import gate_key  # a third of a second

    try:
        gate_key(labels, phase.evaluation.include)
    except ConfigError as error:
        instead = "" if recipe.uses_stand_ins else " Or use --scale proxy, with benchmarks from held-out text."
        raise RecipeError(f"the gate of phase {phase.name} of {recipe.run_name} cannot judge it: {error}{instead}") from None


def check_sources(recipe: Recipe, home: Home) -> None:
    """Check that sources can be read, and that chat templates render a made-up conversation."""
    sources = sources_of(recipe, home)
    for source in sources.values():
        if source.conversation:
            template_of(source.conversation).probe()
    to_collect = missing_stand_ins(stand_ins_of(recipe), home.sources)
    for name, source in sources.items():
        if name not in to_collect:
            expand(source)


def check_machines(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Check that meshes fit the devices, models and batches of their phases, and that this machine has the sinks of its own phases."""
    for phase in phases:
        if any(name == LOCAL_SLICE for _, name in phase.slice.within(phase.start_step, phase.stop_step)):
            try:
                check_sinks(phase.instrumentation)
            except ConfigError as error:
                raise ConfigError(f"phase {phase.name}: {error}") from None
        if (mesh := phase.execution.mesh) is None:
            continue
        from phasewise.tasks.training.execution import machine_here
        from phasewise.trainer.sharding import check_batch, check_mesh  # it imports JAX

        for _, name in phase.slice.within(phase.start_step, phase.stop_step):
            devices = machine_here().devices if name == LOCAL_SLICE else find_slice(name).devices
            if mesh.devices not in (devices, 1):
                raise RecipeError(
                    f"phase {phase.name} of {recipe.run_name}: execution.mesh: expected {plural(devices, 'device')}, as the slice {name} "
                    f"has, found {mesh.devices}. Change the mesh or the slice."
                )
        try:
            check_mesh(mesh, phase.model)
            for step, size in phase.batch.within(phase.start_step, phase.stop_step):
                check_batch(mesh, phase.execution.microbatch_sequences or size, f"the batch from step {step}")
        except ConfigError as error:
            raise RecipeError(f"phase {phase.name} of {recipe.run_name}: {error}") from None


def check_slices(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Check that phases can train from this machine."""
    if chosen_kind() != LOCAL_SLICE:
        return
    from phasewise.tasks.training.execution import machine_here

    for phase in phases:
        for _, name in phase.slice.within(phase.start_step, phase.stop_step):
            if name == LOCAL_SLICE:
                continue
            where = find_slice(name)
            is_here = where.count == 1 and where.chip.platform == "cpu"
            if where.count == 1 and not is_here:
                machine = machine_here()
                is_here = machine.platform == where.chip.platform and machine.kind.startswith(where.chip.device_kind)
                is_here = is_here and machine.devices >= where.devices
            if not is_here:
                instead = f'give it the slice "{LOCAL_SLICE}"' if recipe.scale == "own" else "use --scale proxy"
                raise RecipeError(
                    f"phase {phase.name} of {recipe.run_name} needs the slice {name}, and only this machine can train: {instead}."
                )
