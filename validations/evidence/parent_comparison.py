"""A checkpoint's scores against its parent's, item by item: falls and rises of the accuracy, and of the likelihood of the right answers."""

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.comparable import Comparison, Evaluation, Result, compare, name_of
from phasewise.validations.evidence.proportions import Pairs, difference_interval, fall_p_value, holm, mean_test, smallest_fall
from phasewise.validations.limits import GateLimits

COMPARABLE_COLUMNS = ("name", "against", "is_whole", "limited", "is_comparable", "differs", "asks_fall", "asks_rise", "why_not")
CHANGE_COLUMNS = (
    "name", "against", "items", "value", "parent", "difference", "low", "high", "lost", "gained", "spread", "limit", "tests", "p_value",
    "adjusted_p_value", "smallest_detectable",
)  # fmt: skip
LIKELIHOOD_COLUMNS = ("name", "against", "items", "difference", "low", "high", "tests", "p_value", "adjusted_p_value")
NOT_ASKED = "the recipe does not ask for it (false_refusal_rate)"
Answers = Mapping[str, Mapping[str, Any]]


class LikelihoodChange(NamedTuple):
    """How the probability of the right choice, among the choices of its item, moved: mean over the items, its interval, a one-sided test.

    All are NaN if an item has no other choice, or a score is NaN.
    """

    difference: float
    low: float
    high: float
    fall_p_value: float


NOT_MEASURED = LikelihoodChange(math.nan, math.nan, math.nan, math.nan)


class _Paired(NamedTuple):
    """One benchmark of both models."""

    comparison: Comparison
    result: Result
    theirs: Result
    pairs: Pairs
    spread: float


def against_parent(evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> dict[str, pd.DataFrame]:
    """Every benchmark of the checkpoint against its parent's: `comparable` has a row a benchmark, `falls`, `rises` and `likelihoods` a row
    a question.

    All tests for falls and rises share one error rate (Holm); `smallest_detectable` is at the rate divided by their number, which is where
    Holm's procedure begins. The tests of likelihoods share the rate among themselves: they warn and refuse nothing.

    Raises:
        DataError: both were measured alike, and not on the same items; or a learning rate is invalid.
    """
    asks_rise = limits.max_score_rise is not None
    compared: list[Comparison] = []
    paired: list[_Paired] = []
    for result in evaluation["results"]:
        found = compare(name_of(result), result, evaluation, parent)
        if limits.false_refusal_rate is None:
            found = found._replace(differs="", asks_fall=False, asks_rise=False, why_not=NOT_ASKED)
        compared.append(found)
        if (found.asks_fall or found.asks_rise) and parent:
            theirs = next(one for one in parent["results"] if name_of(one) == found.name)
            paired.append(_Paired(found, result, theirs, pair_items(result, theirs), _spread(result, theirs)))
    fallen = [one for one in paired if one.comparison.asks_fall]
    risen = [one for one in paired if one.comparison.asks_rise and asks_rise]
    tests = len(fallen) + len(risen)
    falls = [_change(one, one.pairs, limits.max_score_fall, limits, tests) for one in fallen]
    rises = [_change(one, one.pairs.turned, limits.max_score_rise, limits, tests) for one in risen]
    _share_error_rate([*falls, *rises])
    comparable = [
        {
            "name": one.name,
            "against": one.parent,
            "is_whole": not one.limited,
            "limited": one.limited,
            "is_comparable": not one.differs,
            "differs": one.differs,
            "asks_fall": one.asks_fall,
            "asks_rise": one.asks_rise and asks_rise,
            "why_not": one.why_not,
        }
        for one in compared
    ]
    return {
        "comparable": pd.DataFrame(comparable, columns=list(COMPARABLE_COLUMNS)),
        "falls": pd.DataFrame(falls, columns=list(CHANGE_COLUMNS)),
        "rises": pd.DataFrame(rises, columns=list(CHANGE_COLUMNS)),
        "likelihoods": _likelihoods(fallen),
    }


def _spread(result: Result, theirs: Result) -> float:
    """Of the difference, from one checkpoint to the next; 0 if neither phase was measured at several.

    If only one of them was, the other is taken to have the same spread.
    """
    known = [spread_of(one["checkpoint_values"]) for one in (result, theirs) if one.get("checkpoint_values")]
    return math.sqrt(2 / len(known)) * math.hypot(*known) if known else 0.0


def _change(one: _Paired, pairs: Pairs, limit: float | None, limits: GateLimits, tests: int) -> dict[str, Any]:
    """A row; `pairs` are turned for a rise, so that it is tested as a fall is."""
    assert limit is not None
    assert limits.false_refusal_rate is not None
    low, high = difference_interval(one.pairs, one.spread)
    return {
        "name": one.comparison.name,
        "against": one.comparison.parent,
        "items": pairs.items,
        "value": float(one.result["value"]),
        "parent": float(one.theirs["value"]),
        "difference": one.pairs.difference,
        "low": low,
        "high": high,
        "lost": one.pairs.lost,
        "gained": one.pairs.gained,
        "spread": one.spread,
        "limit": limit,
        "tests": tests,
        "p_value": fall_p_value(pairs, max_fall=limit, spread=one.spread),
        "smallest_detectable": smallest_fall(pairs, level=limits.false_refusal_rate / tests, max_fall=limit, spread=one.spread),
    }


def _likelihoods(fallen: Sequence[_Paired]) -> pd.DataFrame:
    """The benchmarks that have choices to compare."""
    changes = [(one, likelihood_change(one.result, one.theirs)) for one in fallen]
    measured = [(one, change) for one, change in changes if change is not NOT_MEASURED]
    rows: list[dict[str, Any]] = [
        {
            "name": one.comparison.name,
            "against": one.comparison.parent,
            "items": one.pairs.items,
            "difference": change.difference,
            "low": change.low,
            "high": change.high,
            "tests": len(measured),
            "p_value": change.fall_p_value,
        }
        for one, change in measured
    ]
    _share_error_rate(rows)
    return pd.DataFrame(rows, columns=list(LIKELIHOOD_COLUMNS))


def _share_error_rate(rows: Sequence[dict[str, Any]]) -> None:
    for row, adjusted in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["adjusted_p_value"] = adjusted


def pair_items(result: Result, parent: Result) -> Pairs:
    """How often only one of the two has an item right.

    Raises:
        DataError: they did not answer the same items.
    """
    ours, theirs = paired_answers(result, parent)
    right = [(bool(ours[item]["right"]), bool(theirs[item]["right"])) for item in ours]
    return Pairs(len(right), sum(one and not other for one, other in right), sum(other and not one for one, other in right))


def likelihood_change(result: Result, parent: Result) -> LikelihoodChange:
    """The paired t-test of the probability of the right choice (Student, Biometrika 6 (1908), 1).

    Probabilities and not margins in nats: a margin can be a hundred nats, and one such item would decide (decision 14). Items of a group
    share their choices and do not count as independent: the mean of a group is one observation.

    Raises:
        DataError: they did not answer the same items.
    """
    ours, theirs = paired_answers(result, parent)
    groups: defaultdict[Any, list[float]] = defaultdict(list)
    for item, answer in ours.items():
        group = ("alone", item) if answer["group"] is None else ("group", answer["group"])
        groups[group].append(choice_probability(answer) - choice_probability(theirs[item]))
    changes = np.array([float(np.mean(members)) for members in groups.values()])
    sizes = np.array([len(members) for members in groups.values()])
    # Groups of one size have equal weights; of others the mean over the items is that of weighted groups.
    weighted = changes if len(changes) and np.ptp(changes) == 0 else changes * sizes / sizes.mean()
    low, high, p_value = mean_test(weighted, alternative="less")
    return NOT_MEASURED if math.isnan(p_value) else LikelihoodChange(float(weighted.mean()), low, high, p_value)


def choice_probability(answer: Mapping[str, Any]) -> float:
    """Of the right choice among all choices of the item; NaN if it has no other, or a score is not finite."""
    scores = np.array(answer["log_likelihoods"], np.float64)
    if len(scores) < 2 or not np.isfinite(scores).all():
        return math.nan
    total: Any = logsumexp(scores)
    return float(np.exp(scores[answer["gold"]] - total))


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation of a benchmark over the last checkpoints of a phase, in that order: the noise of the training itself.

    It is that of the residuals of a straight line through them: scores that rise steadily are no noise. (Heineman et al., "Signal and
    Noise", 2025, take the deviation of the last checkpoints as it is.)

    Raises:
        DataError: there are fewer than three.
    """
    from scipy.stats import linregress  # half a second, which only a gate needs

    if len(values) < 3:
        raise DataError(f"the spread of a phase's checkpoints needs at least three of them, found {len(values)}.")
    steps = np.arange(len(values))
    found: Any = linregress(steps, values)
    rest = [value - found.intercept - found.slope * step for step, value in zip(steps, values, strict=True)]
    return math.sqrt(sum(one**2 for one in rest) / (len(values) - 2))


def paired_answers(result: Result, parent: Result) -> tuple[Answers, Answers]:
    """Both models' answers by item.

    Raises:
        DataError: only one of them answered an item.
    """
    ours, theirs = ({answer["id"]: answer for answer in one["answers"]} for one in (result, parent))
    alone = sorted(set(ours) ^ set(theirs))
    if alone or not ours:
        example = f", such as {alone[0]}" if alone else ""
        raise DataError(
            f"benchmark {result['benchmark']} is compared item by item, and must have the same items in both evaluations; found "
            f"{len(ours)} and {len(theirs)} items, {len(alone)} of them in one alone{example}. Evaluate both phases again on the benchmark "
            "as it is now."
        )
    return ours, theirs
