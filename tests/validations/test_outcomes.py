import itertools
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.validations.expectations.judging import Outcome
from phasewise.validations.expectations.suites import HEALTH_SUITE, SUITE_DATA
from phasewise.validations.verdict import KIND_WORDS, MEASURABLE, CheckCounts, CheckOutcome, count_checks, sum_counts, verdicts_in_words
from tests.validations.report.samples import evidence, judged, known_test_file


def outcome(severity: str, result: Outcome) -> CheckOutcome:
    said = {"name": "expect_x", "table": "t", "asks": "X.", "observed": "", "passes": result == "passed"}
    return CheckOutcome.model_validate({**said, "severity": severity, "outcome": result})


@pytest.mark.parametrize(("severity", "result", "kind"), [
    ("critical", "passed", "passed"), ("warning", "passed", "passed"), ("warning", "accepted", "accepted"), ("warning", "failed", "warned"),
    ("critical", "failed", "failed"), ("warning", "broken", "broken"), ("critical", "broken", "broken"),
])  # fmt: skip
def test_each_check_counts_once(severity: str, result: Outcome, kind: str):
    counts = count_checks([outcome(severity, result), outcome("critical", "passed")])
    assert counts == CheckCounts.model_validate({"passed": 1, kind: 1 + (kind == "passed")})
    assert counts.total == 2
    assert outcome(severity, result).but(asks=MEASURABLE).kind == ("unmeasured" if kind == "warned" else kind)
    assert counts.passes == (kind not in ("failed", "broken"))


@pytest.mark.parametrize(("counts", "said"), [
    (CheckCounts(passed=18), "passed: 18 of 18 checks"),
    (CheckCounts(passed=17, accepted=1), "passed: 17 of 18 checks, 1 warning accepted by the recipe"),
    (CheckCounts(passed=17, warned=1), "passed with 1 warning: 17 of 18 checks"),
    (CheckCounts(passed=15, warned=2, accepted=1), "passed with 2 warnings: 15 of 18 checks, 1 warning accepted by the recipe"),
    (CheckCounts(passed=10, unmeasured=1), "passed: 10 of 11 checks, 1 not measurable"),
    (CheckCounts(passed=1, failed=2, broken=1, warned=3, accepted=2),
     "failed: 1 of 9 checks passed, 2 failed, 1 could not be made, 3 warnings, 2 warnings accepted by the recipe"),
    (CheckCounts(), "failed: 0 of 0 checks passed"),
])  # fmt: skip
def test_counts_are_reported_with_every_number(counts: CheckCounts, said: str):
    assert counts.words == said


def test_the_check_of_measurability_is_in_the_suite():
    assert sum(row.get("asks") == MEASURABLE for row in SUITE_DATA[HEALTH_SUITE]) == 1


def test_no_two_counts_are_reported_alike():
    every = [CheckCounts(**dict(zip(KIND_WORDS, numbers, strict=True))) for numbers in itertools.product((0, 1, 2), repeat=len(KIND_WORDS))]
    assert len({counts.words for counts in every}) == len({counts.shares for counts in every}) == len(every)


def test_verdicts_are_reported_together():
    failed, warned, passed = CheckCounts(failed=1), CheckCounts(passed=1, warned=1), CheckCounts(passed=1, accepted=1)
    assert verdicts_in_words([]) == "0 of 0 verdicts passed"
    assert verdicts_in_words([passed, passed]) == "2 of 2 verdicts passed"
    assert verdicts_in_words([failed, warned, warned, passed]) == "3 of 4 verdicts passed, 2 of them with warnings, 1 failed"
    assert sum_counts([failed, warned, passed]) == CheckCounts(passed=2, warned=1, accepted=1, failed=1)


def test_a_verdict_that_says_something_else_than_its_checks_is_refused(tmp_path: Path):
    every: tuple[dict[str, Any], ...] = ({}, {"like_tests": 3}, {"stale": 1})
    for found in every:
        verdict = judged("bison data", evidence(**found), tmp_path, known_test_file())
        with pytest.raises(ValidationError, match=r"passes: expected (True|False) from its checks"):
            verdict.but(passes=not verdict.passes)
