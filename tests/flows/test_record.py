from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status import phase_status
from phasewise.flows.status.phase_status import PhaseRecord, parent_evaluation, read_record
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import judge_gate, write_verdict
from tests.validations.made_answers import guessed_result

Read = Callable[..., PhaseRecord]
EVALUATION: dict[str, Any] = {
    "checkpoint": "runs/kestrel/40",
    "results": [guessed_result(right=80, first=140)],
    "bits_per_byte": {"law": 1.5},
    "macro_bits_per_byte": 1.5,
    "measured_on": {"law": "text"},
    "benchmarks": ["continuation"],
    "benchmarks_digest": "items",
    "finite": True,
}
LIMITS: dict[str, Any] = {"max_increase_bits_per_byte": 5.0, "must_beat_baseline": True, "floor_error_rate": 0.01}


def with_limits(**limits: Any) -> Recipe:
    recipe = tiny_recipe().model_dump()
    recipe["phases"][0]["gates"]["model"] = LIMITS | limits
    return Recipe.model_validate(recipe)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The record of Kestrel, trained and evaluated, whose gate was judged by `LIMITS`."""
    home = Home.open(str(tmp_path))
    plan = SimpleNamespace(folders=lambda split: {}, benchmarks=tmp_path / "benchmarks")
    run = SimpleNamespace(verdict=tmp_path / "none", output=tmp_path, caches={})
    monkeypatch.setattr(phase_status, "_are_built", lambda *_: True)
    monkeypatch.setattr(phase_status, "_decided_by", lambda *_: {})
    monkeypatch.setattr(phase_status, "is_begun", lambda *_: True)
    monkeypatch.setattr(phase_status, "evaluation_key", lambda *_: "key")
    monkeypatch.setattr(phase_status, "finished_result", lambda *_: {"params_digest": "weights"})
    (tmp_path / "metrics.jsonl").write_text("")
    recipe = with_limits()
    limits = GateLimits.model_validate(LIMITS)
    verdict = judge_gate("kestrel", EVALUATION, parent_evaluation=None, limits=limits, folder=tmp_path / "evidence")
    write_verdict(home.verdict(recipe.run_name, "kestrel", "model"), verdict)

    def read_with(evaluation: dict[str, Any] | None = EVALUATION, **limits: Any) -> PhaseRecord:
        monkeypatch.setattr(phase_status, "finished_evaluation", lambda *_: evaluation)
        wanted = with_limits(**limits)
        resolved = SimpleNamespace(recipe=wanted, home=home, plan=plan, run=lambda phase: run, digests=KnownDigests())
        return read_record(cast(Resolved, resolved), wanted.phases[0])

    return read_with


def test_the_gate_of_this_evaluation_by_these_limits_counts(read: Read) -> None:
    found = read().model_verdict
    assert found is not None
    assert found.passes


def test_a_parents_evaluation_counts_for_the_weights_that_it_has_now(tmp_path: Path) -> None:
    home, recipe = Home.open(str(tmp_path)), load_record("marin-8b", "proxy")
    child = next(phase for phase in recipe.phases if phase.parent)
    folder = home.run(recipe.run_name, str(child.parent))
    resolved = cast(Resolved, SimpleNamespace(recipe=recipe, home=home))
    assert parent_evaluation(resolved, recipe.phases[0]) is None
    assert parent_evaluation(resolved, child) is None
    write_sealed(folder / "evaluation.json", {"params_digest": "weights"})
    for now, found in (("weights", {"params_digest": "weights"}), ("trained again", None)):
        write_json(folder / "result.json", {"params_digest": now})
        assert parent_evaluation(resolved, child) == found


def test_the_gate_of_another_evaluation_does_not(read: Read) -> None:
    assert read(EVALUATION | {"macro_bits_per_byte": 1.4}).model_verdict is None
    assert read(None).model_verdict is None


@pytest.mark.parametrize("limits", [{"floor_error_rate": 0.02}, {"must_beat_baseline": False}, {"max_increase_bits_per_byte": 4.0}])
def test_a_gate_by_other_limits_does_not(read: Read, limits: dict[str, Any]) -> None:
    assert read(**limits).model_verdict is None
