"""Whether a benchmark's score can be that of a model at the floor: exact tests of its accuracy and of the likelihood of the right answers.

At the floor a model knows nothing that the benchmark asks for: it guesses, or gives one answer to everything. Its score has an error, so
a value above the baseline shows nothing by itself, and a value at the baseline does not show the floor: the model may have learned
something that its first choices don't say yet. `docs/decisions/0014-gates.md` has the reasons.
"""

# scipy's stubs leave its special functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtr, bdtrc, ndtr

from phasewise.trainer.base.errors import DataError

NUM_TESTS = 2
"""Accuracy and likelihood: either may show that a model is above the floor, so each has half of the error rate."""
TIE_NATS = 1e-4
"""What float32 can't tell apart in the log-likelihood of a word."""
MAX_EXACT_UNITS = 500
"""So many places are added up exactly; of more the sum is normal to more digits than are read."""
MAX_GROUP_ITEMS = 7
"""A group of so many items can be put together in 5,040 ways."""
BINOMIAL, PAIRED = "exact binomial", "exact paired"
ACCURACY, LIKELIHOOD = "accuracy", "likelihood"


class Floor(NamedTuple):
    """What tells a benchmark's score from that of a model at the floor. A p-value of NaN is that of responses that are no numbers.

    Attributes:
        right: items answered rightly.
        accuracy_test: `exact binomial` against a baseline that guesses; `exact paired` against one whose answer to each item is known.
        accuracy_p_value: how often a model that is as often right as the baseline does at least as well.
        below_p_value: how often such a model does at most as well.
        likelihood_p_value: how often a model at the floor puts the right answers at least as far before the others; 1 where there are no
            choices to compare.
        mean_margin_nats: log-likelihood of an item's right answer above the mean of its other answers, mean over the items; NaN where there
            are none.
    """

    items: int
    right: int
    accuracy_test: str
    accuracy_p_value: float
    below_p_value: float
    likelihood_p_value: float
    mean_margin_nats: float

    @property
    def p_value(self) -> float:
        """Of both tests together: at the floor it is at most x in at most a share x of all models (Bonferroni)."""
        both = NUM_TESTS * _smaller(self.accuracy_p_value, self.likelihood_p_value)
        return both if math.isnan(both) else min(1.0, both)

    @property
    def likelihoods(self) -> str:
        """What the likelihoods of the choices say, in words."""
        if math.isnan(self.mean_margin_nats):
            return "there are no choices whose likelihood could be compared"
        return f"right answers {self.mean_margin_nats:+.3f} nats likelier than the others (p = {self.likelihood_p_value:.2g})"

    @property
    def decided_by(self) -> str:
        """The test that tells more."""
        return LIKELIHOOD if self.likelihood_p_value < self.accuracy_p_value else ACCURACY


def measure_floor(result: Mapping[str, Any]) -> Floor:
    """Both tests of one benchmark's result.

    Args:
        result: as `tasks.evaluation.evaluate.BenchmarkResult`.

    Raises:
        DataError: its answers are missing, or don't agree with each other or with its value and baseline.
    """
    answers: list[Mapping[str, Any]] = result.get("answers") or []
    _require(result, len({answer["id"] for answer in answers}) == len(answers) == result["items"] > 0, "an answer to each of its items")
    right = [bool(answer["right"]) for answer in answers]
    value = result["value"]
    is_told = value is not None and abs(sum(right) / len(right) - value) < 1e-6
    _require(result, is_told or value is None or math.isnan(value), "answers that are right as often as its value says")
    above, below = _accuracy_p_values(result, answers, right)
    units = _units(result, answers)
    is_finite = all(np.isfinite(scores).all() for scores, _ in units)
    margins = [margin for scores, gold in units for margin in _margins(scores, gold)] if is_finite else []
    return Floor(
        items=len(answers),
        right=sum(right),
        accuracy_test=BINOMIAL if answers[0]["baseline_right"] is None else PAIRED,
        accuracy_p_value=above,
        below_p_value=below,
        likelihood_p_value=place_p_value([_ways(scores, gold) for scores, gold in units]) if is_finite else math.nan,
        mean_margin_nats=float(np.mean(margins)) if margins else math.nan,
    )


def binomial_p_values(right: int, items: int, baseline: float) -> tuple[float, float]:
    """How often a guesser that is right with probability `baseline` has at least, and at most, so many items right."""
    return float(bdtrc(right - 1, items, baseline)) if right else 1.0, float(bdtr(right, items, baseline))


def paired_p_values(right: Sequence[bool], baseline_right: Sequence[bool]) -> tuple[float, float]:
    """The same against a baseline on the same items. Only items tell that one of the two has right: at the floor each is a coin's toss.

    McNemar's test, exact and one-sided.
    """
    model_alone = sum(ours and not theirs for ours, theirs in zip(right, baseline_right, strict=True))
    baseline_alone = sum(theirs and not ours for ours, theirs in zip(right, baseline_right, strict=True))
    return binomial_p_values(model_alone, model_alone + baseline_alone, 0.5)


def place_p_value(units: Sequence[np.ndarray]) -> float:
    """How often places drawn at random add up to at least those of the true ways.

    A unit is the model's scores of all the ways in which openings and answers can go together, the true way first. Where the model does not
    know it, the true way is as likely at any place among them; places and not scores are added up, so that no single item can decide,
    however wild its score. The distribution of the sum is computed and not drawn; that of more than `MAX_EXACT_UNITS` is taken as normal,
    with its own mean and variance and less half a step.

    Args:
        units: log-likelihoods in nats, one array a unit; those that differ by less than `TIE_NATS` share a place.
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
        half_a_step = math.gcd(*(step // len(ways) for ways in units)) / 2
        return float(ndtr(-(observed - half_a_step - mean) / math.sqrt(variance))) if variance else 1.0
    return min(1.0, float(distribution[observed:].sum()))


def _accuracy_p_values(result: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], right: Sequence[bool]) -> tuple[float, float]:
    baseline = float(result["baseline"])
    told = [answer["baseline_right"] for answer in answers]
    if all(one is None for one in told):
        _require(result, 0 <= baseline < 1, "a baseline that guesses, at least 0 and less than 1")
        return binomial_p_values(sum(right), len(right), baseline)
    is_whole = None not in told and abs(sum(told) / len(told) - baseline) < 1e-6
    _require(result, is_whole, "a baseline that is right on as many of its items as its value says")
    return paired_p_values(right, told)


def _units(result: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> list[tuple[np.ndarray, list[int]]]:
    """Scores [items, choices] and the right column of each row: of an item that is alone, or of the items of a group.

    Of a benchmark with nothing to choose from there are none.
    """
    groups: defaultdict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    if not any(answer["log_likelihoods"] for answer in answers):
        return []
    for answer in answers:
        groups[("alone", answer["id"]) if answer["group"] is None else ("group", answer["group"])].append(answer)
    units: list[tuple[np.ndarray, list[int]]] = []
    for (kind, _), members in groups.items():
        gold = [int(member["gold"]) for member in members]
        sizes = {len(member["log_likelihoods"]) for member in members}
        _require(result, len(sizes) == 1 and 0 <= min(gold) <= max(gold) < min(sizes), "a log-likelihood of each choice of each item")
        is_square = sorted(gold) == list(range(min(sizes))) and len(gold) <= MAX_GROUP_ITEMS
        _require(result, kind == "alone" or is_square, f"groups of at most {MAX_GROUP_ITEMS} items, whose choices are their own answers")
        units.append((np.array([member["log_likelihoods"] for member in members], np.float64), gold))
    return units


def _ways(scores: np.ndarray, gold: Sequence[int]) -> np.ndarray:
    """What all ways to put openings and answers together score, the true way first. One item alone may have any of its choices."""
    if len(gold) == 1:
        return np.concatenate([scores[0, gold], np.delete(scores[0], gold)])
    rows = np.arange(len(gold))
    return scores[:, gold][rows, np.array([*permutations(rows)])].sum(axis=1)


def _margins(scores: np.ndarray, gold: Sequence[int]) -> list[float]:
    """For each item: its right choice above the mean of the others."""
    return [float(row[at] - np.delete(row, at).mean()) if len(row) > 1 else 0.0 for row, at in zip(scores, gold, strict=True)]


def _smaller(one: float, other: float) -> float:
    """NaN where either is: a broken test may not hide behind the other."""
    return math.nan if math.isnan(one) or math.isnan(other) else min(one, other)


def _require(result: Mapping[str, Any], holds: bool, what: str) -> None:
    if not holds:
        found = len(result.get("answers") or [])
        raise DataError(
            f"benchmark {result['benchmark']} must have {what}, found {found} answers to {result['items']} items, value {result['value']} "
            f"and baseline {result['baseline']} in the evaluation. Delete evaluation.json beside the checkpoints and evaluate again."
        )
