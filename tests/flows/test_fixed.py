"""What a deployment fixes. That a run is refused by it is tried on a real server, in `tests/deployments/test_operations.py`."""

from typing import Any

import pytest

from phasewise.flows.prefect.deployment_params import FIXED, check_fixed, is_ours
from phasewise.trainer.base.errors import ConfigError

STARLING = {"recipe": "marin-8b", "phase": "starling", "scale": "proxy"}
NAME = "marin-8b-starling"


def test_a_run_as_its_deployment_has_it_goes_on() -> None:
    check_fixed(NAME, STARLING, {**STARLING, "settings": ("starling.seed=1",), "retrain": True, "home": None})


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("other", ["another", None])
def test_another_recipe_phase_or_scale_is_refused(name: str, other: str | None) -> None:
    with pytest.raises(ConfigError, match=f"marin-8b-starling is for {name} '{STARLING[name]}', and this run was given {other!r}"):
        check_fixed(NAME, STARLING, {**STARLING, name: other})


@pytest.mark.parametrize("name", FIXED)
def test_what_the_form_asks_for_is_free(name: str) -> None:
    fixed: dict[str, Any] = {one: value for one, value in STARLING.items() if one != name}
    check_fixed(NAME, fixed, {**STARLING, name: "another"})


def test_a_deployment_without_our_tag_is_not_ours() -> None:
    assert is_ours(["marin-8b", "phasewise"])
    assert not is_ours(["marin-8b"])
