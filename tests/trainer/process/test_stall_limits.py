"""Every kind of work has a limit, and the environment changes those that it names."""

from typing import get_args

import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Execution
from phasewise.trainer.process.stall_limits import FIELD_OF, NAMED, Work, stall_limits


def test_every_work_has_the_limit_of_its_field():
    execution = Execution(stall_seconds=1, step_stall_seconds=2, save_stall_seconds=3, restore_stall_seconds=None)
    found = stall_limits(execution, {})
    assert set(found) == set(FIELD_OF) == set(get_args(Work))
    assert found == {work: getattr(execution, field) for work, field in FIELD_OF.items()}
    assert (found["compile"], found["data"], found["barrier"], found["save"], found["restore"]) == (1, 2, 2, 3, None)


def test_the_defaults_are_three_minutes_for_a_step_and_more_for_what_takes_more():
    found = stall_limits(Execution(), {})
    assert (found["step"], found["compile"], found["save"], found["restore"]) == (180, 1800, 900, 900)


def test_the_environment_replaces_what_it_names():
    found = stall_limits(Execution(), {"PHASEWISE_STALL_SECONDS": " step=0.5, save=off"})
    assert (found["step"], found["data"], found["save"], found["compile"]) == (0.5, 0.5, None, 1800)
    assert set(NAMED.values()) == set(FIELD_OF.values())


@pytest.mark.parametrize("text", ["60", "step=", "step=-1", "step=0", "step=inf", "steps=60", "save=never"])
def test_what_does_not_read_is_refused(text: str):
    with pytest.raises(ConfigError, match=f"PHASEWISE_STALL_SECONDS must be limits such as step=60,save=900 .* found '{text}'"):
        stall_limits(Execution(), {"PHASEWISE_STALL_SECONDS": text})
