"""A setup on its slice, from its name to the report."""

from functools import partial

from tasks.home import Home
from tasks.preflight.candidates import settings_for
from tasks.preflight.launcher import examine
from tasks.preflight.plan import batch_refusal
from tasks.preflight.report import Report, refused_report, report_of
from tasks.preflight.search import find_plan
from tasks.preflight.setup import Setup
from tasks.preflight.slices import find_slice

WITH_EXPERTS = (
    "preflight does not yet count what experts compute, keep and exchange: its plan and its projected time would be those of another "
    "model. Nothing was compiled"
)


def preflight_setup(setup: Setup, home: Home, *, machine_code: bool = False) -> Report:
    """Find the fastest plan that fits the setup on its slice, and project what it takes.

    Raises:
        ConfigError: no slice is called so, or the model does not fit the mesh.
        TrainingError: the compiler failed.
    """
    where = find_slice(setup.slice)
    if setup.step.model.experts is not None:
        return refused_report(setup, where, WITH_EXPERTS)
    reason = batch_refusal(setup.step.batch_sequences, where)
    if reason and not settings_for(setup.step, where):
        return refused_report(setup, where, reason)
    return report_of(setup, where, find_plan(setup.step, where, partial(examine, home=home), machine_code=machine_code))
