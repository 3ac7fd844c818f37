"""Exact tests whether a benchmark's score is above the floor, by accuracy and by the likelihood of the right answers.

A model at the floor knows nothing of the benchmark: it guesses, or always gives the same answer. A value above the baseline may be chance,
and a value at the baseline may hide knowledge that the first choices do not show yet. See `docs/decisions/0014-gates.md`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from phasewise.trainer.base.errors import DataError

NUM_TESTS = 2  # accuracy and likelihood: either test may pass a model, so each has half of the error rate
TIE_NATS = 1e-4  # differences in a word's log-likelihood that float32 cannot resolve
MAX_EXACT_UNITS = 500  # up to this number of units, the sum of ranks is exact. Above, a normal distribution is as good
MAX_GROUP_ITEMS = 7  # a group of seven items has 5,040 assignments of answers
BINOMIAL, PAIRED = "exact binomial", "exact paired"


class Floor(NamedTuple):
    """Tests of one benchmark against a model at the floor. A p-value is NaN if a response is NaN."""

    items: int
    right: int
    accuracy_test: str  # `exact binomial` against a guessing baseline, `exact paired` against a baseline with an answer per item
    accuracy_p_value: float  # chance that a model as accurate as the baseline does at least as well
    below_p_value: float  # chance that such a model does at most as well
    likelihood_p_value: float  # chance that a model at the floor ranks the right answers at least as high. 1 if items have no choices
    mean_margin_nats: float
    """Log-likelihood of the right answer minus the mean of the item's other answers, mean over the items. NaN without choices."""

    @property
    def p_value(self) -> float:
        """P-value of both tests together (Bonferroni). NaN if either is NaN."""
        tests = (self.accuracy_p_value, self.likelihood_p_value)
        return math.nan if any(map(math.isnan, tests)) else min(1.0, NUM_TESTS * min(tests))

    @property
    def likelihoods(self) -> str:
        """The likelihood test as words."""
        if math.isnan(self.mean_margin_nats):
            return "there are no choices whose likelihood could be compared"
        return f"right answers {self.mean_margin_nats:+.3f} nats likelier than the others (p = {self.likelihood_p_value:.2g})"

    @property
    def decided_by(self) -> str:
        """The test with the smaller p-value."""
        return "likelihood" if self.likelihood_p_value < self.accuracy_p_value else "accuracy"


def measure_floor(result: Mapping[str, Any]) -> Floor:
    """Run both tests on a `BenchmarkResult`. Raises DataError for missing answers, or if answers contradict value or baseline."""
    answers: list[Mapping[str, Any]] = result.get("answers") or []
    _require(result, len({answer["id"] for answer in answers}) == len(answers) == result["items"] > 0, "an answer to each of its items")
    right, value = [bool(answer["right"]) for answer in answers], result["value"]
    agrees = value is None or math.isnan(value) or abs(sum(right) / len(right) - value) < 1e-6
    _require(result, agrees, "answers that are right as often as its value says")
    baseline, told = float(result["baseline"]), [answer["baseline_right"] for answer in answers]
    if all(one is None for one in told):
        _require(result, 0 <= baseline < 1, "a baseline that guesses, at least 0 and less than 1")
        test, (above, below) = BINOMIAL, binomial_p_values(sum(right), len(right), baseline)
    else:
        is_whole = None not in told and abs(sum(told) / len(told) - baseline) < 1e-6
        _require(result, is_whole, "a baseline that is right on as many of its items as its value says")
        # Items that one of the two has right (McNemar, one-sided)
        model_alone = sum(ours and not theirs for ours, theirs in zip(right, told, strict=True))
        baseline_alone = sum(theirs and not ours for ours, theirs in zip(right, told, strict=True))
        test, (above, below) = PAIRED, binomial_p_values(model_alone, model_alone + baseline_alone, 0.5)
    # Scores [items, choices] and the right column of each row, per group of items or single item
    groups: defaultdict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for answer in answers if any(answer["log_likelihoods"] for answer in answers) else ():
        groups[("alone", answer["id"]) if answer["group"] is None else ("group", answer["group"])].append(answer)
    units: list[tuple[np.ndarray, list[int]]] = []
    for (kind, _), members in groups.items():
        gold = [int(member["gold"]) for member in members]
        sizes = {len(member["log_likelihoods"]) for member in members}
        _require(result, len(sizes) == 1 and 0 <= min(gold) <= max(gold) < min(sizes), "a log-likelihood of each choice of each item")
        is_square = sorted(gold) == list(range(min(sizes))) and len(gold) <= MAX_GROUP_ITEMS
        _require(result, kind == "alone" or is_square, f"groups of at most {MAX_GROUP_ITEMS} items, whose choices are their own answers")
        units.append((np.array([member["log_likelihoods"] for member in members], np.float64), gold))
    is_finite = all(np.isfinite(scores).all() for scores, _ in units)
    margins: list[float] = []
    ways: list[np.ndarray] = []  # scores of all assignments of answers to openings, the true assignment first
    for scores, gold in units if is_finite else ():
        if len(gold) == 1:
            ways.append(np.concatenate([scores[0, gold], np.delete(scores[0], gold)]))
        else:
            rows = np.arange(len(gold))
            ways.append(scores[:, gold][rows, np.array([*permutations(rows)])].sum(axis=1))
        margins += [float(row[at] - np.delete(row, at).mean()) if len(row) > 1 else 0.0 for row, at in zip(scores, gold, strict=True)]
    return Floor(
        items=len(answers),
        right=sum(right),
        accuracy_test=test,
        accuracy_p_value=above,
        below_p_value=below,
        likelihood_p_value=place_p_value(ways) if is_finite else math.nan,
        mean_margin_nats=float(np.mean(margins)) if margins else math.nan,
    )


def binomial_p_values(right: int, items: int, baseline: float) -> tuple[float, float]:
    """Return the chances that a guesser with accuracy `baseline` has at least, and at most, this number of items right."""
    from scipy.special import bdtr, bdtrc  # slow to import

    return float(bdtrc(right - 1, items, baseline)) if right else 1.0, float(bdtr(right, items, baseline))


def place_p_value(units: Sequence[np.ndarray]) -> float:
    """Return the chance that random ranks add up to at least the ranks of the true assignments.

    A unit holds the scores of all assignments of answers to openings, the true assignment first. If the model does not know the true
    assignment, each rank is equally likely. Ranks are added instead of scores, so that no single item can decide. The distribution of the
    sum is exact up to `MAX_EXACT_UNITS` units. Above, it is normal with the same mean and variance, less half a step.

    `units`: log-likelihoods in nats. Scores that differ by less than `TIE_NATS` share a rank.
    """
    if not units:
        return 1.0
    step = math.lcm(*(2 * len(ways) for ways in units))
    distribution = np.ones(1)
    observed = 0
    mean = variance = 0.0
    for ways in units:
        rounded = np.round(ways / TIE_NATS)
        in_order = np.sort(rounded)
        places = (in_order.searchsorted(rounded, "left") + in_order.searchsorted(rounded, "right")) * (step // (2 * len(ways)))
        observed += int(places[0])
        if len(units) > MAX_EXACT_UNITS:
            mean += float(places.mean())
            variance += float(places.var())
        else:
            distribution = np.convolve(distribution, np.bincount(places) / len(ways))
    if len(units) > MAX_EXACT_UNITS:
        from scipy.special import ndtr  # slow to import

        half_a_step = math.gcd(*(step // len(ways) for ways in units)) / 2
        return float(ndtr(-(observed - half_a_step - mean) / math.sqrt(variance))) if variance else 1.0
    return min(1.0, float(distribution[observed:].sum()))


def _require(result: Mapping[str, Any], holds: bool, what: str) -> None:
    if not holds:
        found = len(result.get("answers") or [])
        raise DataError(
            f"benchmark {result['benchmark']} must have {what}, found {found} answers to {result['items']} items, value {result['value']} "
            f"and baseline {result['baseline']} in the evaluation. Delete evaluation.json beside the checkpoints and evaluate again."
        )
