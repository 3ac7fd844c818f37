"""A stage on its slice, from its name to the report."""

from functools import partial

from tasks.home import Home
from tasks.preflight.launcher import examine
from tasks.preflight.plan import batch_refusal
from tasks.preflight.report import Report, refused_report, report_of
from tasks.preflight.search import find_plan
from tasks.preflight.slices import find_slice
from tasks.preflight.stage import Stage


def preflight_stage(stage: Stage, home: Home, *, machine_code: bool = False) -> Report:
    """Find the first plan that fits the stage on its slice, and project what it takes.

    Raises:
        ConfigError: no slice is called so, or the model does not fit the mesh.
        TrainingError: the compiler failed.
    """
    where = find_slice(stage.slice)
    if reason := batch_refusal(stage.step.batch_sequences, where):
        return refused_report(stage, where, reason)
    return report_of(stage, where, find_plan(stage.step, where, partial(examine, home=home), machine_code=machine_code))
