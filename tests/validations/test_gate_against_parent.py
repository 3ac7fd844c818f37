from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from pydantic import ValidationError

from phasewise.tasks.report.html import Card, index_page
from phasewise.trainer.base.errors import DataError
from phasewise.validations.failures import as_markdown
from phasewise.validations.limits import OWN_TEXT, GateLimits
from phasewise.validations.verdict import Verdict, judge_gate
from tests.validations.made_answers import scored_result
from tests.validations.test_gate import LIMITS as WITHOUT
from tests.validations.test_gate import PARENT

LIMITS = WITHOUT.but(false_refusal_rate=0.05, max_score_fall=0.01, max_score_rise=0.25)
STEADY, ANNEALED = ({"end": end, "peak": 1e-3, "optimizer": "adamw"} for end in (1e-3, 1e-5))
ITEMS = 200


def answered(*, lost: int = 0, gained: int = 0, shift: float = 0.0, benchmark: str = "continuation") -> dict[str, Any]:
    """Of 200 items the parent has the first 120 right; a right choice lies ahead by a draw, always the same, and `shift` nats more."""
    right = np.arange(ITEMS) < 120
    right[:lost] = False
    right[120 : 120 + gained] = True
    scores = np.random.default_rng(11).normal(0, 1, (ITEMS, 4)) + np.array([2.0 + shift, 0, 0, 0])
    return scored_result(scores, right=right, benchmark=benchmark)


def of(phase: str, *results: dict[str, Any], schedule: dict[str, Any] = STEADY) -> dict[str, Any]:
    return PARENT | {"phase": phase, "results": list(results), "schedule": schedule}


def judge(folder: Path, evaluation: dict[str, Any], *, parent: dict[str, Any] | None = None, limits: GateLimits = LIMITS) -> Verdict:
    return judge_gate("gate", evaluation, parent_evaluation=parent or of("kestrel", answered()), limits=limits, folder=folder)


@pytest.mark.parametrize(("lost", "gained", "expectation"), [
    (12, 8, None),  # as good as its parent, within chance
    (8, 12, None), (30, 5, "expect_no_fall_below_the_parent"),
    (0, 40, None),  # a rise of 0.2 is possible
    (0, 80, "expect_no_impossible_rise"),
    (0, 55, None),  # 0.275 on 200 items may truly be 0.25
])  # fmt: skip
def test_a_fall_and_an_impossible_rise_are_refused(tmp_path: Path, lost: int, gained: int, expectation: str | None):
    verdict = judge(tmp_path, of("ocelot", answered(lost=lost, gained=gained)))
    assert verdict.passes == (expectation is None)
    assert [reason.expectation for reason in verdict.reasons if reason.severity == "critical"] == [expectation] * (not verdict.passes)


def test_a_fall_is_named_with_its_interval_and_its_items_and_passes_if_the_recipe_allows_it(tmp_path: Path):
    evaluation = of("ocelot", answered(lost=30, gained=5))
    reason = judge(tmp_path, evaluation).reasons[0]
    assert reason.what == (
        "continuation acc fell from kestrel's 0.600 to 0.475, by -0.125 (-0.185 to -0.072) on the same 200 items: 30 lost, 5 gained"
    )
    assert reason.found.endswith("over 2 tests")
    assert judge(tmp_path, evaluation, limits=LIMITS.but(max_score_fall=0.1)).passes
    assert not judge(tmp_path, evaluation, limits=LIMITS.but(max_score_fall=0.05)).passes
    assert judge(tmp_path, evaluation, limits=WITHOUT).passes


def test_more_benchmarks_ask_for_more(tmp_path: Path):
    fallen, steady = answered(lost=14, gained=2), [answered(benchmark=f"other-{number}") for number in range(5)]
    level = LIMITS.but(max_score_fall=0.0, max_score_rise=None)
    assert not judge(tmp_path, of("ocelot", fallen), limits=level).passes
    beside = of("kestrel", answered(), *steady)
    assert judge(tmp_path, of("ocelot", fallen, *steady), parent=beside, limits=level.but(false_refusal_rate=0.01)).passes


def test_an_annealed_checkpoint_is_asked_for_falls_alone_and_after_an_annealed_parent_for_rises(tmp_path: Path):
    verdict = judge(tmp_path, of("cooldown", answered(gained=80), schedule=ANNEALED))
    assert verdict.passes
    assert "A rise over kestrel is not asked for" in verdict.notes[0]
    assert not judge(tmp_path, of("cooldown", answered(lost=30), schedule=ANNEALED)).passes
    parent = of("kestrel", answered(), schedule=ANNEALED)
    assert judge(tmp_path, of("ocelot", answered(lost=30)), parent=parent).passes
    assert not judge(tmp_path, of("ocelot", answered(gained=80)), parent=parent).passes


def test_right_answers_that_became_less_likely_warn(tmp_path: Path):
    verdict = judge(tmp_path, of("ocelot", answered(shift=-0.3)))
    assert verdict.passes
    [reason] = verdict.reasons
    assert (reason.expectation, reason.severity) == ("expect_right_answers_to_stay_likely", "warning")
    assert reason.what.startswith("the right answers of continuation acc have become less likely than they were to kestrel: -0.0")


def test_what_was_put_otherwise_fails_by_name_and_other_items_are_refused(tmp_path: Path):
    other = answered()
    other["setting"] |= {"shots": 5}
    [reason] = judge(tmp_path, of("ocelot", other)).reasons
    assert reason.what == "continuation acc cannot be compared with kestrel's: examples in the prompt 5, the parent's 0"
    assert judge(tmp_path, of("ocelot", other), limits=WITHOUT).passes
    other = answered()
    other["answers"][3]["id"] = "another"
    with pytest.raises(DataError, match="compared item by item, and must have the same items"):
        judge(tmp_path, of("ocelot", other))


@pytest.mark.parametrize("limits", [LIMITS, WITHOUT])
def test_the_first_items_alone_fail_with_a_parent_and_without(tmp_path: Path, limits: GateLimits):
    limited = answered()
    limited["setting"] |= {"items": 1000}
    for parent in (None, of("kestrel", limited)):
        [reason] = judge_gate("gate", of("ocelot", limited), parent_evaluation=parent, limits=limits, folder=tmp_path).reasons
        assert reason.expectation == "expect_the_whole_benchmark"
        assert "only 200 of its 1,000 items were asked" in reason.what


def test_a_benchmark_that_the_parent_never_saw_is_left_to_the_floor_and_the_verdict_says_so(tmp_path: Path):
    verdict = judge(tmp_path, of("ocelot", answered(), answered(benchmark="order")))
    assert verdict.passes
    said = "order acc: 0.600, not compared with a parent: kestrel was never measured on it. The floor alone decides"
    assert verdict.notes[1].startswith(said)
    tables = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("comparable", "falls", "rises")}
    assert list(tables["falls"]["name"]) == list(tables["rises"]["name"]) == ["continuation acc"]
    assert list(tables["comparable"]["asks_fall"]) == [True, False]
    at_the_floor = scored_result(np.random.default_rng(2).normal(0, 1, (ITEMS, 4)), benchmark="order")
    assert not judge(tmp_path, of("ocelot", answered(), at_the_floor)).passes


def test_every_gate_says_what_it_could_see(tmp_path: Path):
    verdict = judge(tmp_path, of("ocelot", answered(lost=12, gained=8)))
    [fall] = pd.read_parquet(tmp_path / "falls.parquet").to_dict("records")
    assert f"A fall of {fall['smallest_detectable']:.3f} is seen in 8 of 10 cases (up to 0.01 is allowed)" in verdict.notes[0]
    assert 0.05 < fall["smallest_detectable"] < 0.15
    assert len(verdict.notes) == 1
    assert "## What the gate could see" in as_markdown(verdict)
    page = index_page([Card("gate", verdict, (), {}, "")])
    assert escape(verdict.notes[0]) in page[page.index("What the gate could see") :]
    [note] = judge_gate("gate", of("kestrel", answered()), parent_evaluation=None, limits=LIMITS, folder=tmp_path).notes
    assert "there is no phase before it. The floor alone decides: accuracy shows 0." in note


def test_a_spread_between_checkpoints_makes_a_fall_chance(tmp_path: Path):
    fallen = answered(lost=24, gained=5)
    assert not judge(tmp_path, of("ocelot", fallen)).passes
    verdict = judge(tmp_path, of("ocelot", fallen | {"checkpoint_values": [0.65, 0.55, 0.62, 0.52]}))
    assert verdict.passes
    assert "From one checkpoint to the next" in verdict.notes[0]


@pytest.mark.parametrize("fields", [
    {"false_refusal_rate": 0.05}, {"max_score_fall": 0.01}, {"max_score_rise": 0.25}, {"false_refusal_rate": 0.0, "max_score_fall": 0.01},
    {"false_refusal_rate": 0.05, "max_score_fall": -0.01}, {"false_refusal_rate": 0.05, "max_score_fall": 0.01, "max_score_rise": 0.0},
])  # fmt: skip
def test_limits_that_say_half_of_it_are_refused(fields: dict[str, float]):
    with pytest.raises(ValidationError):
        GateLimits.model_validate(WITHOUT.model_dump() | fields)


def test_each_file_of_an_own_held_out_text_is_compared_with_the_parent(tmp_path: Path):
    def with_text(phase: str, value: float, digest: str = "same") -> dict[str, Any]:
        return of(phase, answered()) | {OWN_TEXT: {"notes.txt": {"bits_per_byte": value, "digest": digest}}}

    limits = LIMITS.but(max_increase_bits_per_byte=0.1)
    parent = with_text("parent", 1.0)
    assert judge(tmp_path, with_text("phase", 1.05), parent=parent, limits=limits).passes
    [reason] = [one for one in judge(tmp_path, with_text("phase", 1.2), parent=parent, limits=limits).reasons if one.severity == "critical"]
    assert reason.what.startswith("own held-out text notes.txt went from the parent's 1.0000 to 1.2000, by +0.2000")
    assert judge_gate("gate", with_text("phase", 1.2), parent_evaluation=None, limits=limits, folder=tmp_path).passes
    with pytest.raises(DataError, match=r"own held-out text: expected equal text of phase and parent, found notes.txt and none"):
        judge(tmp_path, with_text("phase", 1.0), parent=of("parent", answered()))
    with pytest.raises(DataError, match="expected equal text of phase and parent"):
        judge(tmp_path, with_text("phase", 1.0, "other"), parent=parent)
