import asyncio
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from phasewise.flows.prefect.flow_decorator import answer_for, or_wait, waiting_state
from phasewise.flows.prefect.stale_runs import RERUN_MESSAGE, Rerun, earlier_of, stay_present
from phasewise.flows.prefect.submission import FIXED, check_fixed, run_name
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.retraining import GATES, ParentNotDone
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, VerdictError
from phasewise.trainer.base.identity import write_sealed
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.verdict import Verdict

SINCE = datetime(2026, 11, 25, tzinfo=UTC)


class States:
    def __init__(self, *messages: str) -> None:
        self.states = [SimpleNamespace(message=message) for message in messages]

    async def read_flow_run_states(self, _run: str) -> list[Any]:
        return self.states


def may_start(home: Home, run_id: str, *messages: str, pool: str = "local", age: timedelta = timedelta(0), subflow: bool = False) -> bool:
    run = SimpleNamespace(
        id=run_id, deployment_id="d", parent_task_run_id="t" if subflow else None, work_pool_name=pool,
        state=SimpleNamespace(timestamp=SINCE + timedelta(seconds=1) - age),
    )  # fmt: skip
    return asyncio.run(Rerun(home, SINCE, ("local",)).may_start(States(*messages), run))


def test_a_crashed_run_is_started_once_if_its_process_is_dead_and_its_pool_or_file_is_ours(home: Home):
    assert may_start(home, "never-seen")
    assert not may_start(home, "never-seen", pool="of-another-home")
    stay_present(home, "alive-here", "a run")
    assert not may_start(home, "alive-here")
    home.presence("dead").touch()
    assert may_start(home, "dead")
    assert may_start(home, "dead", pool="of-another-home"), "it held a file of this home"
    assert not may_start(home, "crashed-twice", "it ran", RERUN_MESSAGE)
    assert not may_start(home, "of-before", age=timedelta(hours=1))
    assert not may_start(home, "child", subflow=True)


STARLING = {"recipe": "marin-8b", "phase": "starling", "scale": "proxy"}
NAME = "marin-8b-starling"


@pytest.mark.parametrize("name", FIXED)
def test_a_run_is_of_the_recipe_phase_and_scale_that_its_deployment_fixes(name: str) -> None:
    check_fixed(NAME, STARLING, {**STARLING, "settings": ("starling.seed=1",), "retrain": True, "home": None})
    for other in ("another", None):
        with pytest.raises(ConfigError, match=f"marin-8b-starling is for {name} '{STARLING[name]}', and this run was given {other!r}"):
            check_fixed(NAME, STARLING, {**STARLING, name: other})
    asked: dict[str, Any] = {one: value for one, value in STARLING.items() if one != name}
    check_fixed(NAME, asked, {**STARLING, name: "another"})


@pytest.mark.parametrize(
    ("work", "given", "name"),
    [
        ("train_phase", STARLING, "marin-8b/starling · proxy"),
        ("validate_data", {**STARLING, "recipe": "marin-8b/dessert-v3"}, "validate marin-8b/starling · proxy"),
        ("train_recipe", {"recipe": "kept/recipes/mine.json", "scale": "own", "up_to": "x"}, "mine up to x · own"),
        ("preflight", {"recipe": "a/b/my.py:MINE", "scale": "full", "phase": None}, "preflight my:MINE · full"),
    ],
)
def test_a_run_is_named_by_its_work_recipe_phase_and_scale(work: str, given: dict[str, Any], name: str) -> None:
    assert run_name(work, given) == name


def judge(home: Home, phase: str, gate: str, *, passes: bool = True, ago: float = 0) -> None:
    reason = dict.fromkeys(("expectation", "found", "limit", "where"), "x") | {"what_to_do": "Repair it.", "severity": "critical"}
    reasons = () if passes else (Reason.model_validate(reason | {"what": "it is spoiled"}),)
    fields: dict[str, Any] = {"judged": {}, "thresholds": {}, "checks": (), "evidence": "x", "reasons": reasons}
    path = home.verdict("marin-8b-proxy", phase, gate)
    write_sealed(path, Verdict(subject="x", suite=gate, suite_version="1", passes=passes, **fields).model_dump(mode="json"))
    then = datetime.now(UTC).timestamp() - ago
    os.utime(path, (then, then))


def run_of(phase: str, *, waits_for: str = "kestrel", why: str = "there is no verdict on its data", **parameters: Any) -> Any:
    state = waiting_state(phase, ParentNotDone("x", waits_for, why), datetime.now(UTC))
    return SimpleNamespace(
        parameters={"recipe": "marin-8b", "phase": phase, "scale": "proxy", **parameters},
        state=SimpleNamespace(name=state.name, message=state.message, timestamp=datetime.now(UTC)),
    )


def test_a_run_says_what_it_waits_for_and_starts_when_all_that_it_rests_on_is_past_its_gates(home: Home) -> None:
    assert answer_for(home, run_of("ocelot")) is None
    judge(home, "kestrel", "data", ago=3600)
    assert answer_for(home, run_of("ocelot")) is None
    judge(home, "kestrel", "data")
    answer = answer_for(home, run_of("ocelot"))
    assert isinstance(answer, ParentNotDone)
    assert (answer.parent, answer.why) == ("kestrel", "there is no verdict on its training")
    assert answer_for(home, run_of("ocelot", why=answer.why)) is None
    for gate in GATES:
        judge(home, "kestrel", gate)
    assert answer_for(home, run_of("ocelot")) == "kestrel: done and past the gates. It starts."
    answer = answer_for(home, run_of("jellyfish"))
    assert isinstance(answer, ParentNotDone)
    assert answer.parent == "ocelot"


def test_what_passed_long_before_it_looked_wakes_nothing(home: Home) -> None:
    for gate in GATES:
        judge(home, "kestrel", gate, ago=60)
    assert answer_for(home, run_of("ocelot", why="its data changed")) is None
    judge(home, "kestrel", "model")
    assert isinstance(answer_for(home, run_of("ocelot", why="its data changed")), str)


def test_it_starts_to_be_refused_where_its_parent_is_and_not_in_another_home(home: Home) -> None:
    judge(home, "kestrel", "data", passes=False)
    assert answer_for(home, run_of("ocelot", home="/elsewhere")) is None
    assert "it is spoiled" in str(answer_for(home, run_of("ocelot", home=str(home.root))))


def test_outside_of_a_deployment_nobody_waits(home: Home) -> None:
    def missing(_resolved: Resolved, _phase: object) -> None:
        raise ParentNotDone("kestrel is not done", "kestrel", "why")

    resolved, phase = resolve_phase("marin-8b", "ocelot", "proxy", str(home.root))
    with pytest.raises(VerdictError, match="kestrel is not done"):
        or_wait(missing, resolved, phase)


def test_a_run_without_a_slot_says_what_it_waits_for_and_keeps_its_turn_where_it_may_start(home: Home) -> None:
    run = run_of("ocelot")
    run.state.name = "Late"
    answer = answer_for(home, run)
    assert isinstance(answer, ParentNotDone)
    for gate in GATES:
        judge(home, "kestrel", gate)
    assert answer_for(home, run) is None
    judge(home, "kestrel", "data", passes=False)
    assert answer_for(home, run) is None
    run.state.name = "Scheduled"
    assert answer_for(home, run) is None


def scheduled(schedule: str, minute: int, deployment: str = "a") -> Any:
    when = datetime(2026, 11, 23, 12, minute, tzinfo=UTC)
    return SimpleNamespace(deployment_id=deployment, created_by=SimpleNamespace(id=schedule), expected_start_time=when)


def test_of_each_schedule_the_last_run_is_left() -> None:
    ten = [scheduled("nightly", minute) for minute in range(10)]
    others = [scheduled("weekly", 3), scheduled("nightly", 4, "b")]
    assert earlier_of([*reversed(ten), *others]) == ten[:-1]
    assert earlier_of(others) == []
