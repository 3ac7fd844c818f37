from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.exposure import Readings, exchange_p_value, exposure_evidence, exposure_table
from phasewise.validations.verdict import Verdict, judge_gate
from tests.validations.test_gate import BETTER, LIMITS, PARENT

DIGESTS = {"rule": "tags", "items_digest": "the test", "reference_digest": "made for it"}
ASKED = LIMITS.but(exposure_error_rate=0.01)


def read(*, seed: int, seen_nats: float = 0.0, items: int = 60, **others: Any) -> dict[str, Any]:
    """What a model has read; test items under the first rendering are so many nats likelier to it than unseen ones."""
    rng = np.random.default_rng(seed)

    def nats(of_first: float) -> dict[str, Any]:
        hard = rng.normal(-60.0, 8.0, items)
        return {"first": list(hard + rng.normal(of_first, 2.0, items)), "second": list(hard + rng.normal(0.0, 2.0, items)), "too_long": 0}

    return {"items": nats(seen_nats), "reference": nats(0.0), **DIGESTS, **others}


def judge(tmp_path: Path, evaluation: Mapping[str, Any], parent: Mapping[str, Any] | None = None) -> Verdict:
    return judge_gate("model", evaluation, parent_evaluation=parent, limits=ASKED, folder=tmp_path / "evidence")


def test_a_model_that_read_the_test_is_refused_and_one_that_did_not_passes(tmp_path: Path):
    before = PARENT | {"renderings": read(seed=1)}
    unseen, seen = (BETTER | {"renderings": read(seed=2, seen_nats=nats)} for nats in (0.0, 9.0))
    assert judge(tmp_path, unseen, before).passes
    verdict = judge(tmp_path, seen, before)
    critical = [reason for reason in verdict.reasons if reason.severity == "critical"]
    assert {reason.expectation for reason in critical} == {"expect_test_items_to_be_unseen"}
    assert sorted(reason.where for reason in critical) == ["gap between the renderings", "likelihood of the first rendering"]
    assert "60 test items lies +9" in critical[0].what or "60 test items lies +8" in critical[0].what
    assert "since kestrel: the model has seen them" in critical[0].what
    assert verdict.notes[-1].startswith("60 test items beside 60 unseen ones, since kestrel: gap between the renderings +")


@pytest.mark.parametrize(("parent", "why_not"), [
    (None, "there is no phase before it"), ({}, "kestrel was never measured on these items"),
    ({"renderings": read(seed=1, items_digest="another test")}, "kestrel was never measured on these items"),
    ({"renderings": read(seed=1, rule="other tags")}, "kestrel was never measured on these items"),
    ({"renderings": read(seed=1, reference_digest="others")}, "kestrel was never measured on these items"),
    ({"renderings": read(seed=1, items=59)}, "kestrel sees other items whole"),
])  # fmt: skip
def test_a_parent_that_read_other_items_is_not_compared_with(tmp_path: Path, parent: dict[str, Any] | None, why_not: str):
    evaluation = BETTER | {"renderings": read(seed=2, seen_nats=9.0)}
    before = None if parent is None else PARENT | parent
    table = exposure_table(evaluation, before)
    assert (set(table["against"]), set(table["since"]), set(table["why_not"])) == ({""}, {"now"}, {why_not})
    verdict = judge(tmp_path, evaluation, before)
    assert not verdict.passes
    assert verdict.notes[-1].endswith(f"The parent is not compared with: {why_not}.")


def test_a_gate_that_asks_and_has_nothing_to_read_fails(tmp_path: Path):
    critical = [reason.what for reason in judge(tmp_path, BETTER).reasons if reason.severity == "critical"]
    assert critical == ["the evidence table exposure is empty, so nothing was judged"]


ITEMS = 40


def readings(seed: int, *, first: float = 0.0, second: float = 0.0, items: int = ITEMS) -> Readings:
    """Hard and easy items: what they have in common is far larger than what a leak brings, and heavy-tailed."""
    rng = np.random.default_rng(seed)
    hard = -30 - 5 * np.abs(rng.standard_t(3, items))
    return Readings(hard + rng.normal(first, 1, items), hard - 10 + rng.normal(second, 1, items))


def p_values(*args: Readings, **parents: Readings) -> list[float]:
    return exposure_evidence(*args, **parents)["adjusted_p_value"].tolist()


@pytest.mark.parametrize(("first", "second", "found"), [
    (0.0, 0.0, [False, False, False]),
    (4.0, 0.0, [True, True, False]),  # one rendering was seen: it is likelier, and the gap moved
    (0.0, 4.0, [True, False, True]),  # the other was
    (4.0, 4.0, [False, True, True]),  # both were: the likelihoods alone say so
    (-4.0, 0.0, [True, False, False]),  # one became a surprise, as Bison's calculator tags did
])  # fmt: skip
def test_against_the_parent_a_leak_moves_what_it_must(first: float, second: float, found: list[bool]):
    items, reference = readings(1), readings(2)
    rng = np.random.default_rng(3)
    one, two = rng.normal(1, 0.5, ITEMS), rng.normal(1, 0.5, ITEMS)
    now_items = Readings(items.first + first + two, items.second + second + one)
    now_reference = Readings(reference.first + one, reference.second + two)
    found_now = p_values(now_items, now_reference, parent_items=items, parent_reference=reference)
    assert [p <= 0.01 for p in found_now] == found


def test_without_a_parent_the_items_are_compared_as_they_are_and_unseen_ones_alarm_no_oftener_than_the_level():
    assert min(p_values(readings(1), readings(2))) > 0.05
    assert p_values(readings(1, first=8.0), readings(2))[0] <= 0.001
    alarms = sum(min(p_values(readings(2 * seed), readings(2 * seed + 1))) <= 0.1 for seed in range(100, 160))
    assert alarms <= 0.1 * 60 + 2 * (60 * 0.09) ** 0.5


def test_the_same_groups_give_the_same_p_value_and_it_is_never_zero():
    seen, unseen = np.arange(20.0) + 100, np.arange(20.0)
    assert exchange_p_value(seen, unseen, "greater") == exchange_p_value(seen, unseen, "greater") == 1e-4
    assert exchange_p_value(unseen, seen, "greater") > 0.99


def test_what_cannot_be_compared_is_refused():
    refused = {(10, 11): "of the same items", (5, 5): "at least 8 of them"}
    for (first, second), message in refused.items():
        with pytest.raises(DataError, match=message):
            Readings(np.zeros(first), np.zeros(second))
    with pytest.raises(DataError, match="must be a finite number"):
        Readings(np.full(10, np.nan), np.zeros(10))
    with pytest.raises(DataError, match="must read the same items, found 40 and 41"):
        exposure_evidence(readings(1), readings(2), parent_items=readings(1, items=41), parent_reference=readings(2))
    with pytest.raises(DataError, match="both the items and the reference"):
        exposure_evidence(readings(1), readings(2), parent_items=readings(1))
