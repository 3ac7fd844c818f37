"""Which crashed runs are started again: those whose process is known to be dead, also where it died before it could say that it lives."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phasewise.flows.prefect.stale_runs import RERUN_MESSAGE, Rerun, stay_present
from phasewise.tasks.home import Home

SINCE = datetime(2026, 11, 25, tzinfo=UTC)


class Server:
    """What is asked of Prefect's: the states that a run had."""

    def __init__(self, *messages: str) -> None:
        self.states = [SimpleNamespace(message=message) for message in messages]

    async def read_flow_run_states(self, _run: str) -> list[Any]:
        return self.states


def may_start(home: Home, run_id: str, *messages: str, pool: str = "local", age: timedelta = timedelta(0), subflow: bool = False) -> bool:
    run = SimpleNamespace(
        id=run_id, deployment_id="d", parent_task_run_id="t" if subflow else None, work_pool_name=pool,
        state=SimpleNamespace(timestamp=SINCE + timedelta(seconds=1) - age),
    )  # fmt: skip
    return asyncio.run(Rerun(home, SINCE, ("local",)).may_start(Server(*messages), run))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_run_that_died_before_it_held_its_file_is_started_where_the_pool_is_ours(home: Home):
    assert may_start(home, "never-seen")
    assert not may_start(home, "never-seen", pool="of-another-home")


def test_what_lives_is_not_started_again_and_what_is_dead_is(home: Home):
    stay_present(home, "alive-here", "a run")
    assert not may_start(home, "alive-here")
    home.presence("dead").touch()
    assert may_start(home, "dead")
    assert may_start(home, "dead", pool="of-another-home"), "it held a file of this home"


def test_a_run_is_started_once_and_none_of_before_and_no_subflow(home: Home):
    assert not may_start(home, "crashed-twice", "it ran", RERUN_MESSAGE)
    assert not may_start(home, "of-before", age=timedelta(hours=1))
    assert not may_start(home, "child", subflow=True)
