"""Test items under two renderings, as a gate is given them and as it judges them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.validations.evidence.exposure import exposure_table
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
    note = verdict.notes[-1]
    assert note.startswith("60 test items beside 60 unseen ones, since kestrel: gap between the renderings +")


@pytest.mark.parametrize(
    ("parent", "why_not"),
    [
        (None, "there is no phase before it"),
        ({}, "kestrel was never measured on these items"),
        ({"renderings": read(seed=1, items_digest="another test")}, "kestrel was never measured on these items"),
        ({"renderings": read(seed=1, rule="other tags")}, "kestrel was never measured on these items"),
        ({"renderings": read(seed=1, reference_digest="others")}, "kestrel was never measured on these items"),
        ({"renderings": read(seed=1, items=59)}, "kestrel sees other items whole"),
    ],
)
def test_a_parent_that_read_other_items_is_not_compared_with(tmp_path: Path, parent: dict[str, Any] | None, why_not: str):
    evaluation = BETTER | {"renderings": read(seed=2, seen_nats=9.0)}
    before = None if parent is None else PARENT | parent
    table = exposure_table(evaluation, before)
    assert (set(table["against"]), set(table["since"]), set(table["why_not"])) == ({""}, {"now"}, {why_not})
    verdict = judge(tmp_path, evaluation, before)
    assert not verdict.passes
    assert verdict.notes[-1].endswith(f"The parent is not compared with: {why_not}.")


def test_a_gate_that_asks_and_has_nothing_to_read_fails(tmp_path: Path):
    verdict = judge(tmp_path, BETTER)
    assert [reason.what for reason in verdict.reasons if reason.severity == "critical"] == [
        "the evidence table exposure is empty, so nothing was judged"
    ]
