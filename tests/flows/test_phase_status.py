from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status import phase_status
from phasewise.flows.status.phase_status import (
    PhaseRecord,
    _Findings,  # pyright: ignore[reportPrivateUsage]  # what a verdict must agree with, without training a phase
    parent_evaluation,
    read_record,
)
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.validations.expectations.suites import version_of
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import judge_gate, read_verdict, write_verdict
from phasewise.validations.waivers import AcceptedWarning
from tests.validations.made_answers import guessed_result
from tests.validations.report.samples import SAMPLE_SUITE, evidence, judged, known_test_file, register


class Limits(Frozen):
    """Those of the sample suite."""

    max_items: int = 0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A verdict that passes with one accepted warning."""
    register(monkeypatch)
    verdict = judged("bison data", evidence(like_tests=1), tmp_path / "evidence", known_test_file())
    verdict = verdict.but(suite_version=version_of(SAMPLE_SUITE))
    write_verdict(tmp_path / "data.json", verdict)
    return tmp_path / "data.json"


def held(path: Path, accepts: Sequence[AcceptedWarning]) -> tuple[bool, list[str]]:
    """Whether the verdict holds for a recipe that accepts these, and what is said where it does not."""
    found = _Findings(accepts)
    verdict = found.verdict("data", path, {"math": "ab" * 32}, Limits())
    return verdict is not None, [finding.why for finding in found.all if finding.why]


def test_a_verdict_holds_for_what_the_recipe_accepted_when_it_was_given(path: Path):
    elsewhere = known_test_file(table="order")
    assert held(path, [known_test_file()]) == (True, [])
    assert held(path, [known_test_file(), elsewhere]) == (True, []), "another suite's is no matter of this verdict"


def test_in_which_other_phases_a_warning_is_accepted_is_no_matter_of_this_one(path: Path):
    with_branch = known_test_file().model_copy(update={"phases": ("bison", "branch")})
    assert held(path, [with_branch]) == (True, [])


@pytest.mark.parametrize(
    "accepts", [(), (known_test_file("web"),), (known_test_file(), known_test_file("web")), (known_test_file(reason="Another"),)]
)
def test_another_list_has_it_judged_again(path: Path, accepts: tuple[AcceptedWarning, ...]):
    holds, words = held(path, accepts)
    assert not holds
    assert words == ["the verdict on its data is out of date: the recipe accepted other warnings then"]


def test_a_verdict_of_before_reads_and_is_judged_again(path: Path):
    raw = read_sealed(path)
    del raw["accepts"]
    for check in raw["checks"]:
        del check["accepted"]
        check["outcome"] = "failed" if check["outcome"] == "accepted" else check["outcome"]
    write_sealed(path, raw)
    assert read_verdict(path).counts.words == "passed with 1 warning: 4 of 5 checks"
    assert held(path, [known_test_file()]) == (False, ["the verdict on its data is out of date: the recipe accepted other warnings then"])
    assert held(path, []) == (True, [])


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
