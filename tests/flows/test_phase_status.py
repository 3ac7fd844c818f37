from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.resolved import Resolved
from phasewise.flows.status.phase_status import Findings, parent_evaluation
from phasewise.tasks.home import Home
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.validations.expectations.suites import version_of
from phasewise.validations.verdict import write_verdict
from phasewise.validations.waivers import NOBODY, AcceptedWarning
from tests.validations.report.samples import SAMPLE_SUITE, evidence, judged, known_test_file, register


class Limits(Frozen):
    max_items: int = 0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    register(monkeypatch)
    verdict = judged("bison data", evidence(like_tests=1), tmp_path / "evidence", known_test_file())
    verdict = verdict.but(suite_version=version_of(SAMPLE_SUITE))
    write_verdict(tmp_path / "data.json", verdict)
    return tmp_path / "data.json"


def held(path: Path, accepts: Sequence[AcceptedWarning], max_items: int = 0, cache: str = "ab" * 32) -> tuple[bool, list[str]]:
    found = Findings(accepts, NOBODY)
    verdict = found.verdict("data", path, {"math": cache}, Limits(max_items=max_items))
    return verdict is not None, [finding.why for finding in found.all if finding.why]


def test_a_verdict_holds_for_what_the_recipe_accepted_when_it_was_given(path: Path):
    elsewhere = known_test_file(table="order")
    assert held(path, [known_test_file()]) == (True, [])
    assert held(path, [known_test_file(), elsewhere]) == (True, []), "another suite's is no matter of this verdict"
    with_branch = known_test_file().model_copy(update={"phases": ("bison", "branch")})
    assert held(path, [with_branch]) == (True, []), "nor are other phases"
    assert not held(path, [known_test_file()], max_items=1)[0]
    assert not held(path, [known_test_file()], cache="cd" * 32)[0]


@pytest.mark.parametrize(
    "accepts", [(), (known_test_file("web"),), (known_test_file(), known_test_file("web")), (known_test_file(reason="Another"),)]
)
def test_another_list_has_it_judged_again(path: Path, accepts: tuple[AcceptedWarning, ...]):
    holds, words = held(path, accepts)
    assert not holds
    assert words == ["the verdict on its data is out of date: the recipe accepted other warnings then"]


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
