from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows import train_recipe
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status.phase_status import raise_unless_let_pass
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import TrainingDiverged, TrainingError, VerdictError
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.verdict import Verdict

NOWHERE = Path("nowhere.json")
MARIN_8B = load_recipe("marin-8b", "proxy")
NAMES = [phase.name for phase in MARIN_8B.phases]
Train = Callable[..., list[str]]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    def train_all(recipe: Recipe, *refused: str, error: type[Exception] = VerdictError) -> list[str]:
        tried: list[str] = []

        def train_phase(_recipe: str, phase: str, _scale: str, _home: str | None, *, retrain: bool, settings: tuple[str, ...]) -> None:
            assert settings == ()
            assert retrain == (phase == recipe.phases[0].name)
            tried.append(phase)
            if phase in refused:
                raise error(f"{phase} does not pass")

        monkeypatch.setattr(train_recipe, "train_phase", train_phase)
        refusals = train_recipe.train_phases(
            Resolved("marin-8b", recipe, None, Home(Path("nowhere")), KnownDigests()), recipe.phases, None, {recipe.phases[0].name}
        )
        assert {name: str(refusal) for name, refusal in refusals.items()} == {name: f"{name} does not pass" for name in refused}
        return tried

    return train_all


def with_branch() -> Recipe:
    raw = MARIN_8B.model_dump(mode="json")
    return Recipe.model_validate({**raw, "phases": [*raw["phases"], {**raw["phases"][1], "name": "branch"}]})


@pytest.mark.parametrize("refused", NAMES)
def test_a_refusal_stops_what_would_start_from_it(train: Train, refused: str):
    assert train(MARIN_8B) == NAMES
    assert train(MARIN_8B, refused) == NAMES[: NAMES.index(refused) + 1]


@pytest.mark.parametrize("error", [VerdictError, TrainingDiverged])
def test_a_refusal_stops_no_sibling(train: Train, error: type[Exception]):
    assert train(with_branch(), "ocelot", error=error) == ["kestrel", "ocelot", "branch"]
    assert train(with_branch(), "kestrel", error=error) == ["kestrel"]


def test_what_is_no_refusal_stops_everything(train: Train):
    with pytest.raises(TrainingError):
        train(MARIN_8B, "ocelot", error=TrainingError)


def test_a_refusal_gives_the_first_critical_reasons():
    fields: dict[str, Any] = dict.fromkeys(("expectation", "found", "limit", "where"), "x") | {"what_to_do": "Repair it."}
    severities = ("warning", *["critical"] * 5)
    reasons = tuple(
        Reason.model_validate({**fields, "severity": severity, "what": f"reason {number}"}) for number, severity in enumerate(severities)
    )
    blank: dict[str, Any] = {"judged": {}, "thresholds": {}, "checks": (), "evidence": "x"}
    judged = Verdict(subject="tiny data", suite="data", suite_version="1", passes=False, reasons=reasons, **blank)
    assert raise_unless_let_pass(judged.but(passes=True), NOWHERE, "`approve`") is None
    with pytest.raises(VerdictError) as refusal:
        raise_unless_let_pass(judged, NOWHERE, "`approve`")
    assert str(refusal.value) == (
        "tiny data failed: reason 1 (in x)\n  found: x; limit: x\n  to do: Repair it. And 4 more cases. In all, 0 of 0 checks passed. See x"
    )
