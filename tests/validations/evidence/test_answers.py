import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.gate import answers_table
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import judge_gate
from tests.validations.test_gate import BETTER, LIMITS, PARENT

ASKED = LIMITS.but(min_answer_gain_nats=0.0, answer_error_rate=0.01)


def answers(gain: float, *, against: str | None = "starling", falls: str = "") -> dict[str, Any]:
    """Forty conversations of two components, likelier by about this much a token than to the parent; one component's may fall instead."""
    rng = np.random.default_rng(0)
    items: list[dict[str, Any]] = []
    for number in range(40):
        tokens, component = int(rng.integers(5, 50)), ("math", "talk")[number % 2]
        theirs = tokens * rng.uniform(2.0, 3.0)
        gained = (-0.5 if component == falls else gain) + rng.normal(0, 0.1)
        pair = {"nats": theirs - tokens * gained, "parent_nats": theirs if against else None}
        items.append({"component": component, "id": str(number), "tokens": tokens, **pair})
    return {"against": against, "items": items}


def judged(measured: dict[str, Any] | None, limits: GateLimits, folder: Path) -> Any:
    evaluation = BETTER | ({"answers": measured} if measured else {})
    return judge_gate("a phase", evaluation, parent_evaluation=PARENT, limits=limits, folder=folder)


def test_each_conversation_counts_the_same():
    rows = answers_table({"answers": answers(0.3)}, ASKED).to_dict("records")
    assert [(row["component"], row["conversations"]) for row in rows] == [("all components", 40), ("math", 20), ("talk", 20)]
    gains = [(item["parent_nats"] - item["nats"]) / item["tokens"] for item in answers(0.3)["items"]]
    assert rows[0]["gain_nats"] == pytest.approx(np.mean(gains))
    deviation = np.std(gains, ddof=1) / math.sqrt(40)
    assert rows[0]["high"] - rows[0]["low"] == pytest.approx(2 * 2.0227 * deviation, rel=1e-3)  # Student's t with 39 degrees
    assert rows[0]["parent_nats_per_token"] - rows[0]["nats_per_token"] == pytest.approx(rows[0]["gain_nats"])
    assert rows[0]["rise_p_value"] < 1e-9
    assert [row["judged_p_value"] for row in rows[1:]] == [0.0, 0.0]


def test_only_answers_that_are_likelier_by_more_than_the_limit_pass(tmp_path: Path):
    measured = answers(0.3)
    assert judged(measured, ASKED, tmp_path).passes
    [reason] = judged(measured, ASKED.but(min_answer_gain_nats=0.4), tmp_path).reasons
    assert (reason.expectation, reason.severity) == ("expect_answers_to_become_likelier", "critical")
    assert "that they are likelier by no more than 0.4" in reason.found
    measured["items"][3]["nats"] = math.nan
    for refused in (answers(0.0), answers(-0.2), measured):
        assert not judged(refused, ASKED, tmp_path).passes
    verdict = judged(None, ASKED, tmp_path)
    assert not verdict.passes
    assert "the evidence table answers is empty" in verdict.reasons[0].what


def test_a_component_that_falls_warns(tmp_path: Path):
    verdict = judged(answers(2.0, falls="math"), ASKED, tmp_path)
    assert verdict.passes
    assert [(reason.severity, reason.where) for reason in verdict.reasons] == [("warning", "math")]
    assert sum("a token" in note for note in verdict.notes) == 1, "of all components together"


def test_nothing_is_asked_where_the_recipe_says_nothing_or_there_is_no_parent(tmp_path: Path):
    assert judged(answers(-1.0), LIMITS, tmp_path).passes
    alone = judged(answers(0.0, against=None), ASKED, tmp_path)
    assert alone.passes
    assert any("there is no phase before it to compare with" in note for note in alone.notes)


def test_conversations_that_are_not_those_of_both_and_half_a_limit_are_refused():
    items = answers(1.0)["items"]
    for broken in ([*items, items[0]], [items[0] | {"parent_nats": None}, *items[1:]]):
        with pytest.raises(DataError, match="are compared conversation by conversation"):
            answers_table({"answers": {"against": "starling", "items": broken}}, ASKED)
    with pytest.raises(ValueError, match="must be given together or not at all"):
        LIMITS.but(min_answer_gain_nats=0.0)
