from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.decision import Decision, Decisions, Ruling, decision_path, ruling_at, ruling_of, seen_of
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import write_sealed

FALL = {"table": "falls", "name": "expect_no_fall", "severity": "critical", "outcome": "failed"}
LOSS = {"table": "bits", "name": "expect_loss", "severity": "critical", "outcome": "passed"}
WARNING = {"table": "likelihoods", "name": "expect_likely", "severity": "warning", "outcome": "failed"}
LISTED = {"table": "falls", "check": "expect_no_fall", "phases": None}


def verdict(*checks: dict[str, str], approvable: tuple[dict[str, Any], ...] = (LISTED,), on_warnings: bool = False) -> dict[str, Any]:
    passes = not any(one["outcome"] == "broken" or (one["outcome"] == "failed" and one["severity"] == "critical") for one in checks)
    return {
        "subject": "x", "passes": passes, "judged": {"evaluation": "a" * 64}, "thresholds": {"max_score_fall": 0.1},
        "reasons": [{"what": "it fell"}], "checks": list(checks),
        "asks_people": {"approvable": list(approvable), "on_warnings": on_warnings}, "evidence": "/here",
    }  # fmt: skip


def decided(of: dict[str, Any], *, approves: bool = True) -> Decisions:
    when = "2026-11-23T10:00:00+00:00"
    return Decisions(latest=Decision(approves=approves, reason="it is chance", who="Ada", when=when, seen=seen_of(of)))


def test_what_nobody_is_asked_about_is_as_its_checks_say_and_a_listed_failure_waits_until_somebody_decides():
    assert ruling_of(verdict(LOSS), None) == ruling_of(verdict(LOSS, WARNING), None) == Ruling("passes")
    assert ruling_of(verdict(FALL, approvable=()), None) == Ruling("fails")
    found = verdict(FALL, LOSS)
    assert ruling_of(found, None) == Ruling("waits")
    approved = ruling_of(found, decided(found))
    assert (approved.state, approved.lets_go_on) == ("approved", True)
    assert approved.decision is not None
    assert approved.decision.words == "approved by Ada on 2026-11-23: it is chance"
    rejected = ruling_of(found, decided(found, approves=False))
    assert (rejected.state, rejected.lets_go_on) == ("rejected", False)


def test_one_failure_that_nobody_may_let_pass_stops_the_phase_whatever_was_decided():
    for other in (
        {**LOSS, "outcome": "failed"}, {**FALL, "table": "rises"}, {**FALL, "name": "expect_no_rise"}, {**FALL, "outcome": "broken"},
        {**WARNING, "outcome": "broken"},
    ):  # fmt: skip
        found = verdict(FALL, other)
        assert ruling_of(found, None).state == "fails"
        assert ruling_of(found, decided(found)) == Ruling("fails")


def test_warnings_wait_only_where_the_recipe_asks():
    asked = verdict(LOSS, WARNING, on_warnings=True)
    assert ruling_of(asked, None) == Ruling("waits")
    assert ruling_of(asked, decided(asked)).state == "approved"
    assert ruling_of(asked, decided(asked, approves=False)).state == "rejected"
    assert ruling_of(verdict(LOSS, {**WARNING, "outcome": "accepted"}, on_warnings=True), None) == Ruling("passes")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("judged", {"evaluation": "b" * 64}), ("judged", {"evaluation": "a" * 64, "parent's evaluation": "a" * 64}),
        ("thresholds", {"max_score_fall": 0.2}), ("reasons", [{"what": "it fell farther"}]), ("checks", [FALL, LOSS, WARNING]),
        ("asks_people", {"approvable": [LISTED], "on_warnings": True}), ("subject", "y"), ("notes", ["new"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("approves", [True, False])
def test_a_decision_is_void_once_anything_that_was_seen_changes(field: str, value: Any, approves: bool):
    seen = verdict(FALL, LOSS)
    now = {**seen, field: value}
    ruling = ruling_of(now, decided(seen, approves=approves))
    assert (ruling.state, ruling.decision) == ("waits", None)
    assert ruling.void.endswith(f"That was decided of another verdict: {field} changed since")
    assert seen_of(now) != seen_of(seen)


def test_where_a_home_lies_is_nothing_that_was_seen():
    seen = {**verdict(FALL), "judged": {"/here/runs/metrics.jsonl": "a" * 64, "b": "c" * 64}}
    moved = {**seen, "judged": {"gs://bucket/runs/metrics.jsonl": "a" * 64, "b": "c" * 64}, "evidence": "/there"}
    assert seen_of(moved) == seen_of(seen)
    assert seen_of({**seen, "judged": {"/here/runs/metrics.jsonl": "c" * 64, "b": "a" * 64}}) != seen_of(seen)


def test_a_decision_that_does_not_read_stops_everything(tmp_path: Path):
    write_sealed(tmp_path / "model.json", verdict(FALL))
    for content in ("{", "[]", '{"latest": {"approves": true}}', '{"approves": true}'):
        decision_path(tmp_path / "model.json").write_text(content)
        with pytest.raises(VerdictError, match=r"model.decision.json does not read as a decision"):
            ruling_at(tmp_path / "model.json")
