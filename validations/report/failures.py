"""What a verdict reports, in the order in which a person needs it. Page, artifact and terminal all show these same failures."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from phasewise.validations.expectations.check import Severity
from phasewise.validations.expectations.reasons import Reason
from phasewise.validations.outcomes import AcceptedFinding, CheckOutcome
from phasewise.validations.verdict import Verdict

_TOTAL = re.compile(r"\d+ more like these were found, (\d+) in total")


@dataclass(frozen=True)
class Failure:
    """One check that did not pass.

    Attributes:
        asks: what the check expects, in a sentence; empty where the verdict does not say which check the reasons belong to.
        table: the evidence table that was judged; empty likewise.
        cases: what is wrong, the worst first. There is at least one.
        total: how many such cases there are; a verdict names only some of them.
    """

    severity: Severity
    is_broken: bool
    asks: str
    table: str
    cases: tuple[Reason, ...]
    total: int

    @property
    def worst(self) -> Reason:
        """The case that is named first."""
        return self.cases[0]


def accepted_of(verdict: Verdict) -> tuple[AcceptedFinding, ...]:
    """What the recipe accepts of what was found, in the order of the suite."""
    return tuple(finding for check in verdict.checks for finding in check.accepted)


def failures_of(verdict: Verdict) -> tuple[Failure, ...]:
    """The reasons of the verdict, a failure for each check: what stops before what warns, then in the order of the suite.

    A suite goes from causes to what they lead to: a stale cache is named before the test items that are still in it.
    """
    groups: dict[str, list[list[Reason]]] = defaultdict(list)
    for name, reasons in groupby(verdict.reasons, key=lambda reason: reason.expectation):
        groups[name] += _of_one_check(list(reasons))
    placed_failures = [
        (verdict.reasons.index(reasons[0]), _failure(reasons, check))
        for name, of_name in groups.items()
        for reasons, check in zip(of_name, _checks_of(verdict, name, len(of_name)), strict=True)
    ]
    in_order = sorted(placed_failures, key=lambda placed: (placed[1].severity != "critical", placed[0]))
    return tuple(failure for _, failure in in_order)


def _of_one_check(reasons: Sequence[Reason]) -> list[list[Reason]]:
    """Part the reasons of one kind of expectation where another check begins: where the advice changes."""
    groups: list[list[Reason]] = []
    for reason in reasons:
        if groups and (_TOTAL.match(reason.what) or _advice(reason) == _advice(groups[-1][0])):
            groups[-1].append(reason)
        else:
            groups.append([reason])
    return groups


def _advice(reason: Reason) -> tuple[str, str]:
    return reason.severity, reason.what_to_do


def _checks_of(verdict: Verdict, name: str, count: int) -> list[CheckOutcome | None]:
    """The checks of that name which did not pass, in the order of their reasons; unknown where there are not as many as named."""
    checks = [check for check in verdict.checks if check.name == name and check.kind not in ("passed", "accepted")]
    checks.sort(key=lambda check: check.severity != "critical" and check.outcome != "broken")
    return [*checks] if len(checks) == count else [None] * count


def _failure(reasons: Sequence[Reason], check: CheckOutcome | None) -> Failure:
    totals = [int(match[1]) for reason in reasons if (match := _TOTAL.match(reason.what))]
    cases = tuple(reason for reason in reasons if not _TOTAL.match(reason.what))
    return Failure(
        severity=reasons[0].severity,
        is_broken=check is not None and check.outcome == "broken",
        asks=check.asks if check else "",
        table=check.table if check else "",
        cases=cases or tuple(reasons),
        total=max([*totals, len(cases)]),
    )
