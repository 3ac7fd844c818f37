"""Preflight as a Prefect task."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.home import Home
from tasks.preflight.preflight import preflight_stage
from tasks.preflight.report import Report
from tasks.preflight.stage import Stage


@task(task_run_name="preflight {stage.words}", cache_policy=NO_CACHE)
def preflight(stage: Stage, home: Home) -> Report:
    """Compile a stage's step for its slice and report what it needs; what was compiled before is read."""
    return preflight_stage(stage, home)
