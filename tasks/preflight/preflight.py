"""A setup on its slice, from its name to the report."""

from functools import partial

from phasewise.tasks.home import Home
from phasewise.tasks.preflight.candidates import settings_for
from phasewise.tasks.preflight.estimated import estimate_plan
from phasewise.tasks.preflight.launcher import examine
from phasewise.tasks.preflight.plan import batch_refusal, mesh_refusal
from phasewise.tasks.preflight.report import Report, refused_report, report_of
from phasewise.tasks.preflight.search import find_plan
from phasewise.tasks.preflight.setup import Setup
from phasewise.tasks.preflight.slices import find_slice


def preflight_setup(setup: Setup, home: Home, *, machine_code: bool = False, estimated: bool = False) -> Report:
    """Find the fastest plan that fits the setup on its slice, and project what it takes.

    Args:
        estimated: compile nothing. For a GPU nothing is compiled anyway.

    Raises:
        ConfigError: no slice is called so, or the model does not fit the mesh.
        TrainingError: the compiler failed.
    """
    where = find_slice(setup.slice)
    if not settings_for(setup.step, where):
        reason = batch_refusal(setup.step.batch_sequences, where)
        return refused_report(setup, where, reason or mesh_refusal(setup.step, where))
    if estimated or not where.is_compiled_for:
        return report_of(setup, where, estimate_plan(setup.step, where))
    return report_of(setup, where, find_plan(setup.step, where, partial(examine, home=home), machine_code=machine_code))
