import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.resolved import Resolved
from phasewise.flows.show.describe import state_here
from phasewise.flows.status import retraining
from phasewise.flows.status.phase_status import Findings, parent_evaluation
from phasewise.flows.status.retraining import check_ancestors_passed
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.limits import NOBODY, AcceptedWarning, ApprovableCheck, AsksPeople
from phasewise.validations.verdict import Verdict, write_verdict
from tests.flows.commands import Run
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
        write_sealed(folder / "result.json", {"params_digest": now})
        assert parent_evaluation(resolved, child) == found


RECIPE = load_recipe("marin-32b", "proxy")
FLOOR = {"table": "benchmarks", "name": "expect_score_to_be_above_the_floor", "asks": "Is it?", "observed": "1 of 1 rows fail"}
ASKS = AsksPeople(approvable=(ApprovableCheck(table="benchmarks", check="expect_score_to_be_above_the_floor"),))
REASON = {"severity": "critical", "what": "next_word is at its baseline", "found": "p = 0.5", "limit": "0.01", "where": "next_word"}


def verdict(gate: str, *, fails: bool = False, asks: AsksPeople = ASKS, limits: dict[str, Any] | None = None) -> Verdict:
    check = FLOOR | {"severity": "critical", "passes": not fails, "outcome": "failed" if fails else "passed"}
    reason = REASON | {"expectation": FLOOR["name"], "what_to_do": "Train on."}
    suite = "gate" if gate == "model" else gate
    fields = {"suite": suite, "suite_version": version_of(SUITES[suite]), "judged": {"evaluation": "a" * 64}, "thresholds": limits or {}}
    fields |= {"subject": f"x {gate}", "passes": not fails, "asks_people": asks, "reasons": [reason] if fails else [], "checks": [check]}
    return Verdict.model_validate({**fields, "evidence": "x"})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """All that Mantis rests on passed, but for the model of qk-norm, which waits for a person."""
    monkeypatch.setattr(retraining, "check_ancestors_hold", lambda *_: None)
    monkeypatch.setattr(retraining, "resolve_phase", lambda *_: (None, None))
    home = Home.open(str(tmp_path / "home"))
    for phase in ("phase-1", "qk-norm"):
        for gate in ("data", "health", "model"):
            limits = getattr(RECIPE.phase(phase).gates, gate).model_dump(mode="json")
            path = home.verdict(RECIPE.run_name, phase, gate)
            write_verdict(path, verdict(gate, fails=(phase, gate) == ("qk-norm", "model"), limits=limits))
    return home


def decide(phasewise: Run, home: Home, *options: object, expect: int = 0, reason: str = "it is chance") -> str:
    done = phasewise("approve marin-32b/qk-norm --reason", reason, "--home", home.root, *options)
    assert done.exit_code == expect, done.output
    return done.output


def rests_on_it(home: Home) -> str:
    """Why Mantis may not be built; empty where it may. (What it rests on was never trained here: that is asked later.)"""
    try:
        resolved = Resolved("marin-32b", RECIPE, None, home, KnownDigests())
        check_ancestors_passed(resolved, RECIPE.phase("mantis"))
    except VerdictError as refusal:
        return str(refusal)
    return ""


def shown(home: Home) -> dict[str, Any]:
    return state_here(RECIPE, RECIPE.phase("qk-norm"), home)


def test_a_decision_opens_and_shuts_the_way_for_all_that_rest_on_the_phase(phasewise: Run, home: Home):
    assert "the verdict on its model waits for a person: next_word is at its baseline." in rests_on_it(home)
    assert shown(home) == {"state": "waiting for a person", "why": "next_word is at its baseline"}
    said = decide(phasewise, home, "--who", "Ada")
    assert "marin-32b/proxy/qk-norm model: approved by Ada: it is chance\n" in said
    assert "To continue: phasewise run marin-32b/qk-norm --scale proxy --home " in said
    assert rests_on_it(home) == ""
    assert shown(home)["state"] == "done"
    answer = json.loads(decide(phasewise, home, "--reject", "--who", "Grace", "--gate", "model", "--json", reason="it is not"))
    expected = {"phase": "qk-norm", "gate": "model", "approves": False, "who": "Grace", "resumed": []}
    assert {name: answer[name] for name in expected} == expected
    assert "the verdict on its model was rejected by Grace on " in rests_on_it(home)
    assert shown(home)["why"].endswith(": it is not")
    kept = read_json(decision_path(home.verdict(RECIPE.run_name, "qk-norm", "model")))
    assert [(one["who"], one["approves"]) for one in (*kept["before"], kept["latest"])] == [("Ada", True), ("Grace", False)]


def test_the_record_says_who_decided_and_waits_again_once_the_verdict_changes(phasewise: Run, home: Home):
    path = home.verdict(RECIPE.run_name, "qk-norm", "model")
    limits = RECIPE.phase("qk-norm").gates.model

    def found(asks: AsksPeople = ASKS) -> tuple[list[str], str, str]:
        findings = Findings((), asks)
        findings.verdict("model", path, {"evaluation": "a" * 64}, limits)
        (one,) = findings.all
        return [ruling.state for ruling in findings.rulings], one.why, one.decided

    assert found() == (["waits"], "the verdict on its model waits for a person: next_word is at its baseline", "")
    decide(phasewise, home, "--who", "Ada")
    states, why, decided = found()
    assert (states, why) == (["approved"], "")
    assert decided.startswith("approved by Ada on ")
    assert found(AsksPeople())[:2] == ([], "the verdict on its model is out of date: the recipe asked people about other checks then")
    changed = read_json(path)
    changed["reasons"][0]["found"] = "p = 0.9"
    write_sealed(path, changed)
    states, why, _ = found()
    assert states == ["waits"]
    assert "reasons changed since" in why


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("marin-32b/phase-1", 1, "no verdict of marin-32b/phase-1 waits for a person: its verdicts pass, or are missing."),
        ("marin-32b/phase-1 --gate model", 1, "passes: there is nothing to decide."),
        ("marin-32b/mantis --gate model", 1, "there is no verdict at "),
        ("marin-32b", 2, "approve needs a phase"),
        ("marin-32b/nothing", 2, "nothing"),
        ("marin-32b/qk-norm --reason=", 2, "expected a sentence"),
    ],
)
def test_where_nobody_is_asked_nothing_is_decided(phasewise: Run, home: Home, arguments: str, code: int, message: str):
    done = phasewise(f"approve --reason fine {arguments}", "--home", home.root)
    assert (done.exit_code, message in done.output) == (code, True), done.output
    assert not list(home.root.rglob("*.decision.json"))


def test_what_nobody_may_let_pass_cannot_be_approved(phasewise: Run, home: Home):
    write_verdict(home.verdict(RECIPE.run_name, "qk-norm", "model"), verdict("model", fails=True, asks=AsksPeople()))
    said = decide(phasewise, home, expect=1)
    assert "model fails by a check that people can't waive" in said
    said = decide(phasewise, home, "--gate", "model", expect=1)
    assert "fails by a check that people can't waive: next_word is at its baseline." in said
    assert not list(home.root.rglob("*.decision.json"))
