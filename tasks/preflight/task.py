"""Preflight as a Prefect task."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from phasewise.tasks.home import Home
from phasewise.tasks.preflight.preflight import preflight_setup
from phasewise.tasks.preflight.report import Report
from phasewise.tasks.preflight.setup import Setup


@task(task_run_name="preflight {setup.words}", cache_policy=NO_CACHE)
def preflight(setup: Setup, home: Home) -> Report:
    """Compile a setup's step for its slice and report what it needs; what was compiled before is read."""
    return preflight_setup(setup, home)
