import ast
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.resolved import Resolved
from phasewise.flows.show.describe import state_here
from phasewise.flows.status import retraining, summary
from phasewise.flows.status.phase_status import Findings, PhaseRecord, parent_evaluation
from phasewise.flows.status.recipe_status import REPORTING, headline, status_of
from phasewise.flows.status.retraining import check_ancestors_passed
from phasewise.flows.status.summary import macro_mean, measured_of, shared_components
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.tasks.report.contents import MeasuredReport
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import HOUSE, NAME, files_of, write_sealed
from phasewise.trainer.base.storage import read_json
from phasewise.validations.evidence.gate import gate_tables
from phasewise.validations.evidence.parent_comparison import NOT_ASKED
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.limits import NOBODY, AcceptedWarning, ApprovableCheck, AsksPeople, GateLimits
from phasewise.validations.verdict import Verdict, write_tables, write_verdict
from tests.flows.commands import Run
from tests.validations.made_answers import guessed_result
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


MARIN_32B = load_recipe("marin-32b", "proxy")
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
            limits = getattr(MARIN_32B.phase(phase).gates, gate).model_dump(mode="json")
            path = home.verdict(MARIN_32B.run_name, phase, gate)
            write_verdict(path, verdict(gate, fails=(phase, gate) == ("qk-norm", "model"), limits=limits))
    return home


def decide(phasewise: Run, home: Home, *options: object, expect: int = 0, reason: str = "it is chance") -> str:
    done = phasewise("approve marin-32b/qk-norm --reason", reason, "--home", home.root, *options)
    assert done.exit_code == expect, done.output
    return done.output


def rests_on_it(home: Home) -> str:
    """Why Mantis may not be built; empty where it may. (What it rests on was never trained here: that is asked later.)"""
    try:
        resolved = Resolved("marin-32b", MARIN_32B, None, home, KnownDigests())
        check_ancestors_passed(resolved, MARIN_32B.phase("mantis"))
    except VerdictError as refusal:
        return str(refusal)
    return ""


def shown(home: Home) -> dict[str, Any]:
    return state_here(MARIN_32B, MARIN_32B.phase("qk-norm"), home)


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
    kept = read_json(decision_path(home.verdict(MARIN_32B.run_name, "qk-norm", "model")))
    assert [(one["who"], one["approves"]) for one in (*kept["before"], kept["latest"])] == [("Ada", True), ("Grace", False)]


def test_the_record_says_who_decided_and_waits_again_once_the_verdict_changes(phasewise: Run, home: Home):
    path = home.verdict(MARIN_32B.run_name, "qk-norm", "model")
    limits = MARIN_32B.phase("qk-norm").gates.model

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
    write_verdict(home.verdict(MARIN_32B.run_name, "qk-norm", "model"), verdict("model", fails=True, asks=AsksPeople()))
    said = decide(phasewise, home, expect=1)
    assert "model fails by a check that people can't waive" in said
    said = decide(phasewise, home, "--gate", "model", expect=1)
    assert "fails by a check that people can't waive: next_word is at its baseline." in said
    assert not list(home.root.rglob("*.decision.json"))


MAKERS = ("flows/status/summary.py",)
READS_ALONE = {
    "flows/recipes/phase.py", "flows/recipes/recipe.py", "flows/status/phase_status.py", "flows/resolved.py",
    "tasks/evaluation/ngram_baselines.py", "tasks/phase_state.py", "trainer/base/decision.py", "trainer/base/run_folder.py",
    "trainer/base/storage.py",
    "trainer/config/__init__.py", "trainer/data/mixture.py", "trainer/metrics.py", "trainer/schedule.py",
    "trainer/model/params.py", "validations/limits.py",
    "validations/expectations/judging.py", "validations/verdict.py",
}  # fmt: skip
"""What these import to read the home, or for its types. What these read is in the report's key itself."""


def imported(path: str) -> set[str]:
    tree = ast.parse((HOUSE / path).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {name.partition(".")[2].replace(".", "/") for name in names if name.partition(".")[0] == NAME}
    return {f"{name}.py" if (HOUSE / f"{name}.py").exists() else f"{name}/__init__.py" for name in ours}


def test_whatever_says_something_in_a_report_is_in_its_version():
    known = {path.relative_to(HOUSE).as_posix() for path in files_of(*REPORTING)}
    assert set(MAKERS) <= known
    assert {name for maker in MAKERS for name in imported(maker)} - known - READS_ALONE == set()


RECIPE = load_recipe("trinity-nano", "proxy")
ROW = {"loss": 2.0, "learning_rate": 1e-3, "max_violation": 0.5, "dead_experts": 1.0, "router_entropy": 0.9}


def test_the_report_has_what_the_routers_of_each_trained_phase_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary, "read_baselines", lambda *_: {})
    rows = [{"step": 1, **ROW}, {"step": 2, **ROW, "expert_load/1/0": 0.75, "expert_load/1/1": 0.25}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: Any = SimpleNamespace(output=str(tmp_path), last_step=1, batch=RECIPE.phases[0].batch)
    done: dict[str, Any] = {"final_loss": 1.0}
    first, second = RECIPE.phases[:2]
    records = [PhaseRecord(first, run, None, None, done, None, None), PhaseRecord(second, None, None, None, None, None, None)]
    fields = {"recipe": RECIPE, "recipe_name": RECIPE.name, "options": "", "plan": SimpleNamespace(components={}, benchmark_components=())}
    resolved = cast(Resolved, SimpleNamespace(home=Home.open(str(tmp_path / "home")), **fields))
    trained, planned = summary.build_report(resolved, records).phases
    assert trained.routing is not None
    assert trained.routing.max_violation == ((1, 0.5), (2, 0.5))
    assert trained.routing.loads == ((1.5, 0.5),)
    assert trained.routing.limit == first.gates.health.max_violation == pytest.approx(2.1)
    assert planned.routing is None
    assert [(start, sum(shares.values())) for start, shares in trained.mixture] == [(0, pytest.approx(100))]


def records(**states: str) -> list[PhaseRecord]:
    return [cast(PhaseRecord, SimpleNamespace(phase=SimpleNamespace(name=name), state=state)) for name, state in states.items()]


@pytest.mark.parametrize(
    ("states", "status", "sentence"),
    [
        ({"one": "done"}, "passed", "The phase trained on judged data and passed its gate."),
        ({"one": "done", "two": "done", "three": "done"}, "passed", "All 3 phases trained on judged data and passed their gates."),
        ({"one": "done", "two": "not started", "three": "not started"}, "unfinished", "1 of 3 phases are done; next is two."),
        ({"one": "done", "two": "refused", "three": "not started"}, "stopped", "1 of 3 phases passed; refused: two."),
        ({"one": "waiting for a person", "two": "not started"}, "stopped", "0 of 2 phases passed; waiting for a person: one."),
    ],
)
def test_a_phase_that_is_still_to_come_stops_nothing(states: dict[str, str], status: str, sentence: str):
    assert (status_of(records(**states)), headline(records(**states))) == (status, sentence)


def evaluation(ema: float | None = 1.5, **bits: float) -> dict[str, Any]:
    return {"bits_per_byte": bits, "macro_bits_per_byte": sum(bits.values()) / len(bits), "ema_macro_bits_per_byte": ema}


KESTREL, OCELOT = evaluation(web=2.0, code=1.0), evaluation(web=1.8, code=1.0)
TALKS = evaluation(web=1.8, code=1.0, talks=4.4)


@pytest.mark.parametrize("phases", [[], [None], [KESTREL], [KESTREL, None, OCELOT]])
def test_phases_that_are_measured_alike_have_the_mean_that_was_kept(phases: list[dict[str, Any] | None]):
    shared = shared_components(phases)
    assert shared == ()
    for phase in phases:
        kept = (phase["macro_bits_per_byte"], 1.5) if phase else (None, None)
        assert macro_mean(phase, shared) == kept


def test_a_phase_with_text_of_its_own_is_not_worse_for_it():
    shared = shared_components([KESTREL, OCELOT, None, TALKS])
    assert shared == ("code", "web")
    means = [macro_mean(phase, shared) for phase in (KESTREL, OCELOT, TALKS)]
    assert [mean[0] for mean in means] == [1.5, 1.4, 1.4]
    assert [mean[1] for mean in means] == [1.5, 1.5, None]  # of averaged weights only the mean over all is kept
    other = evaluation(talks=4.0)
    shared = shared_components([KESTREL, other])
    assert (shared, macro_mean(other, shared)[0]) == ((), 4.0)


FIRST, SECOND = load_recipe("marin-8b", "proxy").phases[:2]
JUDGED: Any = object()
BENCHMARK = "continuation acc"


def evaluation_of(right: int, bits: dict[str, float], **fields: Any) -> dict[str, Any]:
    return {
        "phase": "kestrel", "benchmarks": ["continuation"], "results": [guessed_result(right=right, first=140)], "bits_per_byte": bits,
        "macro_bits_per_byte": sum(bits.values()) / len(bits), "measured_on": dict.fromkeys(bits, "same"),
        "schedule": {"end": 1e-3, "peak": 1e-3, "optimizer": "adamw"}, "finite": True, **fields,
    }  # fmt: skip


LIMITS = GateLimits(
    max_increase_bits_per_byte=0.1, must_beat_baseline=True, floor_error_rate=0.01,
    false_refusal_rate=0.05, max_score_fall=0.01, max_score_rise=0.25,
)  # fmt: skip
CHILD = evaluation_of(90, {"law": 1.5, "code": 2.5})
PARENT = evaluation_of(60, {"law": 2.0, "code": 2.4})


def rows(folder: Path, *, evaluation: dict[str, Any] = CHILD, judged: Any = JUDGED, phase: Any = SECOND) -> dict[str, MeasuredReport]:
    record = PhaseRecord(phase, None, None, None, None, evaluation, judged)
    return {one.what: one for one in measured_of(record, folder)}


def write(folder: Path, parent: dict[str, Any] | None = PARENT, limits: GateLimits = LIMITS) -> Path:
    write_tables(folder, gate_tables(CHILD, parent, limits))
    return folder


def test_values_are_beside_the_parent_s_and_the_floor(tmp_path: Path) -> None:
    found = rows(write(tmp_path))
    benchmark, macro = found[BENCHMARK], found["macro bits per byte"]
    assert (benchmark.value, benchmark.parent, benchmark.floor) == (0.45, 0.3, 0.25)
    assert benchmark.difference == pytest.approx(0.15)
    assert benchmark.stderr is not None
    assert benchmark.interval is not None
    low, high = benchmark.interval
    assert low < 0.15 < high
    assert benchmark.smallest_effect is not None
    assert benchmark.not_compared == ""
    assert (macro.value, macro.parent, macro.higher_is_better) == (2.0, 2.2, False)
    assert macro.difference == pytest.approx(-0.2)


def test_what_was_not_compared_says_why_and_components_without_a_parent_s_are_counted(tmp_path: Path) -> None:
    [result] = PARENT["results"]
    otherwise = {**PARENT, "results": [{**result, "setting": {**result["setting"], "shots": 5}}]}
    found = rows(write(tmp_path, otherwise))[BENCHMARK]
    assert (found.parent, found.difference) == (None, None)
    assert found.not_compared == "examples in the prompt 0, the parent's 5"
    limits = LIMITS.but(false_refusal_rate=None, max_score_fall=None, max_score_rise=None)
    found = rows(write(tmp_path / "none", limits=limits))[BENCHMARK]
    assert (found.parent, found.not_compared) == (None, NOT_ASKED)
    parent = {**PARENT, "measured_on": {"law": "same", "code": "another text"}}
    [macro] = [one for name, one in rows(write(tmp_path, parent)).items() if name.startswith("macro")]
    assert (macro.what, macro.value, macro.parent) == ("macro bits per byte, of the 1 component that its parent was measured on", 1.5, 2.0)


def test_a_first_phase_and_one_without_a_verdict_have_values_alone(tmp_path: Path) -> None:
    write(tmp_path)
    for found in (rows(tmp_path, phase=FIRST), rows(tmp_path, judged=None), rows(tmp_path / "gone")):
        one = found[BENCHMARK]
        assert (one.value, one.floor, one.parent, one.difference, found["macro bits per byte"].parent) == (0.45, 0.25, None, None, None)
    other = rows(tmp_path, evaluation=evaluation_of(100, {"law": 1.5, "code": 2.6}))  # the table is not believed
    assert {one.what: (one.value, one.parent) for one in other.values()} == {BENCHMARK: (0.5, None), "macro bits per byte": (2.05, None)}
    assert measured_of(PhaseRecord(SECOND, None, None, None, None, None, None), tmp_path) == ()
