"""Which verdicts of a home hold: those that were given with the warnings that the recipe accepts now."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from phasewise.flows.status.phase_status import _Findings  # pyright: ignore[reportPrivateUsage]  # what a verdict must agree with, without training a phase
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.validations.expectations.suites import version_of
from phasewise.validations.verdict import read_verdict, write_verdict
from phasewise.validations.waivers import AcceptedWarning
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
    """A recipe with a branch names the branch there, too: the verdicts of the main line hold."""
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
