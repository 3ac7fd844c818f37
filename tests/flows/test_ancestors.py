"""What a phase rests on, and what is asked of it before anything is prepared."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status.retraining import check_ancestors_passed, phases_to_train
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import write_sealed

RECIPE = load_recipe("marin-32b", "proxy")
MANTIS = RECIPE.phase("mantis")
REASON = {
    "expectation": "x", "severity": "critical", "what": "next_word is at its baseline", "found": "x", "limit": "x", "where": "x",
    "what_to_do": "x",
}  # fmt: skip


def judge(home: Home, phase: str, gate: str, *, passes: bool = True, reasons: tuple[dict[str, str], ...] = ()) -> None:
    """A verdict file, for what was there once."""
    verdict: dict[str, Any] = {
        "subject": "x", "suite": gate, "suite_version": "1", "passes": passes, "judged": {}, "thresholds": {}, "reasons": reasons,
        "checks": (), "evidence": "x",
    }  # fmt: skip
    write_sealed(home.verdict("marin-32b-proxy", phase, gate), verdict)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Everything that Mantis rests on was judged once, and passed."""
    home = Home.open(str(tmp_path))
    for phase in ("phase-1", "qk-norm"):
        for gate in ("data", "health", "model"):
            judge(home, phase, gate)
    return home


def refusal(home: Home, recipe: Recipe = RECIPE) -> str:
    with pytest.raises(VerdictError) as refused:
        check_ancestors_passed(Resolved("marin-32b", recipe, None, home, KnownDigests()), recipe.phase("mantis"))
    assert sorted(path.name for path in home.root.iterdir()) == ["verdicts"]  # nothing was prepared
    return str(refused.value)


def test_a_phase_rests_on_its_lineage():
    assert [phase.name for phase in RECIPE.ancestors(MANTIS)] == ["phase-1", "qk-norm"]
    assert RECIPE.ancestors(RECIPE.phase("phase-1")) == ()
    assert [phase.name for phase in phases_to_train(RECIPE, MANTIS)] == ["phase-1", "qk-norm", "mantis"]
    assert phases_to_train(RECIPE, None) == RECIPE.phases


def grafted() -> Recipe:
    """Mantis takes a part of its state from Bison, which is not in its lineage."""
    raw = RECIPE.model_dump(mode="json")
    (mantis,) = [phase for phase in raw["phases"] if phase["name"] == "mantis"]
    (bison,) = [phase for phase in raw["phases"] if phase["name"] == "bison"]
    mantis["start"]["graft"] = [{"part": "rolling", "phase": "bison", "step": bison["stop_step"]}]
    mantis["start"]["declares"].append("optimizer_state")
    return Recipe.model_validate(raw)


def test_a_graft_is_rested_on_too(home: Home):
    recipe = grafted()
    assert [phase.name for phase in recipe.ancestors(recipe.phase("mantis"))] == ["phase-1", "qk-norm", "bison"]
    assert refusal(home, recipe).startswith("marin-32b-proxy/mantis rests on bison, which is not done: there is no verdict on its data.")


@pytest.mark.parametrize(("gate", "what"), [("data", "data"), ("health", "training"), ("model", "model")])
@pytest.mark.parametrize("phase", ["phase-1", "qk-norm"])
def test_every_verdict_of_the_lineage_is_asked(home: Home, phase: str, gate: str, what: str):
    judge(home, phase, gate, passes=False, reasons=(REASON,))
    found = refusal(home)
    assert found == (
        f"marin-32b-proxy/mantis rests on {phase}, which is not done: the verdict on its {what} fails: next_word is at its baseline.\n"
        f"  to do: `phasewise run marin-32b/{phase} --scale proxy --home {home.root}` does what is missing of it and judges it again."
    )
    home.verdict("marin-32b-proxy", phase, gate).unlink()
    assert f"there is no verdict on its {what}." in refusal(home)


def test_a_phase_from_scratch_rests_on_nothing(home: Home):
    assert check_ancestors_passed(Resolved("marin-32b", RECIPE, None, home, KnownDigests()), RECIPE.phase("phase-1")) is None
