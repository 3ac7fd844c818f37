"""A checkpoint's answers beside its parent's, item by item: falls and rises of the accuracy, and of the likelihood of the right answers."""

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.proportions import CONFIDENCE, Pairs

Result = Mapping[str, Any]
Answers = Mapping[str, Mapping[str, Any]]


class LikelihoodChange(NamedTuple):
    """How the probability of the right choice, among the choices of its item, moved: mean over the items, its interval, a one-sided test.

    All are NaN where an item has no other choice, or a score is no number.
    """

    difference: float
    low: float
    high: float
    fall_p_value: float


NOT_MEASURED = LikelihoodChange(math.nan, math.nan, math.nan, math.nan)


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
    from scipy.stats import ttest_1samp  # half a second, which only a gate needs

    ours, theirs = paired_answers(result, parent)
    groups: defaultdict[Any, list[float]] = defaultdict(list)
    for item, answer in ours.items():
        group = ("alone", item) if answer["group"] is None else ("group", answer["group"])
        groups[group].append(choice_probability(answer) - choice_probability(theirs[item]))
    changes = np.array([float(np.mean(members)) for members in groups.values()])
    sizes = np.array([len(members) for members in groups.values()])
    if len(changes) < 2 or not np.isfinite(changes).all():
        return NOT_MEASURED
    if np.ptp(changes) == 0:
        return LikelihoodChange(changes[0], changes[0], changes[0], 0.0 if changes[0] < 0 else 1.0)
    # Groups of one size have equal weights; of others the mean over the items is that of weighted groups.
    weighted = changes * sizes / sizes.mean()
    test: Any = ttest_1samp(weighted, 0.0, alternative="less")
    interval: Any = ttest_1samp(weighted, 0.0).confidence_interval(CONFIDENCE)
    return LikelihoodChange(float(weighted.mean()), float(interval.low), float(interval.high), float(test.pvalue))


def choice_probability(answer: Mapping[str, Any]) -> float:
    """Of the right choice among all choices of the item; NaN where it has no other, or a score is no number."""
    scores = np.array(answer["log_likelihoods"], np.float64)
    if len(scores) < 2 or not np.isfinite(scores).all():
        return math.nan
    total: Any = logsumexp(scores)
    return float(np.exp(scores[answer["gold"]] - total))


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation of a benchmark over the last checkpoints of a phase, in that order: what the training itself is worth as noise.

    It is that of what is left of a straight line through them: scores that rise steadily are no noise. (Heineman et al., "Signal and
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
        DataError: an item is answered by one of them only.
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
