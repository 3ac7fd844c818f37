"""Scores of a checkpoint against its parent's, item by item: whether they are comparable, falls, rises, and likelihoods of right answers.

Scores of different settings are not comparable, which fails the gate. If the parent never ran the benchmark, only the floor decides. The
rules are in `docs/reference/gates.md`, the reasons in decision 14.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.proportions import Pairs, difference_interval, fall_p_value, holm, mean_test, smallest_fall
from phasewise.validations.limits import GateLimits

COMPARABLE_COLUMNS = ("name", "against", "is_whole", "limited", "is_comparable", "differs", "asks_fall", "asks_rise", "why_not")
CHANGE_COLUMNS = (
    "name", "against", "items", "value", "parent", "difference", "low", "high", "lost", "gained", "spread", "limit", "tests", "p_value",
    "adjusted_p_value", "smallest_detectable",
)  # fmt: skip
LIKELIHOOD_COLUMNS = ("name", "against", "items", "difference", "low", "high", "tests", "p_value", "adjusted_p_value")
NOT_ASKED = "the recipe does not ask for it (false_refusal_rate)"
STEADY_SHARE, ANNEALED_SHARE = 0.5, 0.1
"""A phase is steady if it ends at this share of the peak learning rate or more, and annealed if it ends at the second share or less."""
ALIKE_FACTOR = 2.0  # two phases in mid-decay are at the same point if their rates differ by at most this factor
ROUNDING = 1e-9
SETTING_WORDS: Mapping[str, str] = {
    "version": "version of the benchmark",
    "shots": "examples in the prompt",
    "filter": "filter of the answers",
    "items": "number of items",
    "asked": "items that were asked",
    "items_digest": "items",
    "prompts_digest": "prompts",
    "precision": "precision",
}
"""Fields of an evaluation's `setting` in the order of the report. Further fields are compared as well."""
Evaluation = Mapping[str, Any]
Result = Mapping[str, Any]
Favours = Literal["neither", "checkpoint", "parent"]


class Comparison(NamedTuple):
    """How the gate compares a benchmark of a checkpoint with the parent's."""

    name: str
    against: str | None  # parent phase. None if the phase starts from scratch
    limited: str = ""  # why the score covers only some items of the benchmark, which fails the gate
    differs: str = ""  # why the two scores are not comparable, which fails the gate
    asks_fall: bool = False
    asks_rise: bool = False
    why_not: str = ""  # why the gate does not check a fall, or a rise, or both


def compare(name: str, result: Result, evaluation: Evaluation, parent: Evaluation | None) -> Comparison:
    """Plan the comparison of one benchmark metric (`name_of`). `parent` is None if the phase starts from scratch."""
    setting, limited = result.get("setting"), ""
    if setting is None:
        limited = "the evaluation does not say how it was put"
    elif not setting["asked"] == setting["items"] == result["items"]:
        asked = min(setting["asked"], result["items"])
        limited = f"only {asked:,} of its {setting['items']:,} items were asked, which are the first and no sample"
    if parent is None:
        return Comparison(name, None, limited, why_not="there is no phase before it")
    phase = str(parent.get("phase", "the parent"))
    theirs = next((one for one in parent["results"] if name_of(one) == name), None)
    if theirs is None:
        return Comparison(name, phase, limited, why_not=f"{phase} was never measured on it")
    without = [who for who, one in (("this phase", evaluation), (phase, parent)) if not one.get("schedule")]
    differences: list[str] = []
    parents = theirs.get("setting")
    if parents is None:
        differences.append("the parent's evaluation does not say how it was put")
    elif setting is not None:
        for field in [*SETTING_WORDS, *sorted({*setting, *parents} - {*SETTING_WORDS})]:
            mine, other, words = setting.get(field), parents.get(field), SETTING_WORDS.get(field, field)
            if mine != other and field.endswith("_digest"):
                differences.append(f"other {words} ({str(mine)[:8]}, the parent's {str(other)[:8]})")
            elif mine != other:
                differences.append(f"{words} {mine}, the parent's {other}")
    if without:
        differences.append(f"the evaluation of {' and '.join(without)} does not say at which learning rate the phase ended")
    if limited or differences:
        return Comparison(name, phase, limited, "; ".join(differences), why_not="the two were not measured alike")
    favoured = favoured_by_schedule(evaluation["schedule"], parent["schedule"])
    why_not = {
        "neither": "",
        "checkpoint": f"a rise over {phase} is not asked for: this phase ends nearer to the end of its decay, which raises scores",
        "parent": f"a fall below {phase} is not asked for: that phase ended nearer to the end of its decay, which raises scores",
    }[favoured]
    return Comparison(name, phase, asks_fall=favoured != "parent", asks_rise=favoured != "checkpoint", why_not=why_not)


def name_of(result: Result) -> str:
    """Return benchmark and metric, which name a row of the evidence."""
    return f"{result['benchmark']} {result['metric']}"


def favoured_by_schedule(point: Mapping[str, Any], parent: Mapping[str, Any]) -> Favours:
    """Return which of the two models is further down its learning rate decay, if the difference raises scores.

    Rates are relative to the peak. Under the same kind of optimizer, the peak is the higher peak of the two phases, so that a phase at an
    annealed rate is annealed even if its own rate never falls.

    Args:
        point, parent: `end`, the learning rate at the phase's end, `peak`, the highest rate of the phase, and `optimizer`, its kind.

    Raises:
        DataError: a rate is invalid.
    """
    for one in (point, parent):
        if not 0 <= one["end"] <= one["peak"] * (1 + ROUNDING) or not one["peak"] > 0:
            raise DataError(
                f"an evaluation must say a learning rate between 0 and the phase's peak, found {one['end']} at a peak of {one['peak']}. "
                "Delete evaluation.json beside the checkpoints and evaluate again."
            )
    higher = max(point["peak"], parent["peak"])
    same_kind = point["optimizer"] == parent["optimizer"]
    share, theirs = (one["end"] / (higher if same_kind else one["peak"]) for one in (point, parent))
    # 2 for annealed, 1 for mid-decay, 0 for steady
    ours, parents = (2 if one <= ANNEALED_SHARE * (1 + ROUNDING) else int(one < STEADY_SHARE * (1 - ROUNDING)) for one in (share, theirs))
    if ours == parents and (ours != 1 or max(share, theirs) <= ALIKE_FACTOR * min(share, theirs)):
        return "neither"
    return "checkpoint" if share < theirs else "parent"


class _Paired(NamedTuple):
    """A benchmark of both models. Ungraded items of the checkpoint count against passing, as wrong in `fallen` and as right in `risen`."""

    comparison: Comparison
    result: Result
    theirs: Result
    fallen: Pairs
    risen: Pairs
    spread: float


def against_parent(evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> dict[str, pd.DataFrame]:
    """Compare every benchmark with the parent's: `comparable` has a row per benchmark, `falls`, `rises` and `likelihoods` a row per test.

    All tests for falls and rises share one error rate (Holm). `smallest_detectable` is at the rate divided by their number, the first step
    of Holm's procedure. The tests of likelihoods, which only warn, share the rate among themselves.
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
            # If only one phase was measured at several checkpoints, the other is taken to have the same spread.
            known = [spread_of(one["checkpoint_values"]) for one in (result, theirs) if one.get("checkpoint_values")]
            spread = math.sqrt(2 / len(known)) * math.hypot(*known) if known else 0.0
            paired.append(_Paired(found, result, theirs, pair_items(result, theirs), pair_items(result, theirs, ungraded="rise"), spread))
    fallen = [one for one in paired if one.comparison.asks_fall]
    risen = [one for one in paired if one.comparison.asks_rise and asks_rise]
    tests = len(fallen) + len(risen)
    falls = [_change_row(one, one.fallen, limits.max_score_fall, limits, tests) for one in fallen]
    rises = [_change_row(one, one.risen.turned, limits.max_score_rise, limits, tests) for one in risen]
    changes = [(one, likelihood_change(one.result, one.theirs)) for one in fallen]
    measured = [(one, change) for one, change in changes if not math.isnan(change.fall_p_value)]  # of the benchmarks with choices
    likelihoods: list[dict[str, Any]] = [
        {
            "name": one.comparison.name,
            "against": one.comparison.against,
            "items": one.fallen.items,
            "difference": change.difference,
            "low": change.low,
            "high": change.high,
            "tests": len(measured),
            "p_value": change.fall_p_value,
        }
        for one, change in measured
    ]
    for tested in ([*falls, *rises], likelihoods):
        for row, adjusted in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
            row["adjusted_p_value"] = adjusted
    comparable = [
        one._asdict() | {"is_whole": not one.limited, "is_comparable": not one.differs, "asks_rise": one.asks_rise and asks_rise}
        for one in compared
    ]
    return {
        "comparable": pd.DataFrame(comparable, columns=list(COMPARABLE_COLUMNS)),
        "falls": pd.DataFrame(falls, columns=list(CHANGE_COLUMNS)),
        "rises": pd.DataFrame(rises, columns=list(CHANGE_COLUMNS)),
        "likelihoods": pd.DataFrame(likelihoods, columns=list(LIKELIHOOD_COLUMNS)),
    }


def _change_row(one: _Paired, pairs: Pairs, limit: float | None, limits: GateLimits, tests: int) -> dict[str, Any]:
    """Build a row. The pairs of a rise are swapped, so that the test for a fall applies."""
    assert limit is not None
    assert limits.false_refusal_rate is not None
    low, high = paired_interval(one.result, one.theirs, one.spread)
    return {
        "name": one.comparison.name,
        "against": one.comparison.against,
        "items": pairs.items,
        "value": float(one.result["value"]),
        "parent": float(one.theirs["value"]),
        "difference": one.fallen.difference,
        "low": low,
        "high": high,
        "lost": one.fallen.lost,
        "gained": one.fallen.gained,
        "spread": one.spread,
        "limit": limit,
        "tests": tests,
        "p_value": fall_p_value(pairs, max_fall=limit, spread=one.spread),
        "smallest_detectable": smallest_fall(pairs, level=limits.false_refusal_rate / tests, max_fall=limit, spread=one.spread),
    }


def paired_interval(result: Result, parent: Result, spread: float = 0.0) -> tuple[float, float]:
    """Return the 95 % interval of the difference, from the ungraded items at their worst for the checkpoint to their best."""
    low, _ = difference_interval(pair_items(result, parent, ungraded="worst"), spread)
    _, high = difference_interval(pair_items(result, parent, ungraded="best"), spread)
    return low, high


def pair_items(result: Result, parent: Result, *, ungraded: Literal["wrong", "worst", "best", "rise"] = "wrong") -> Pairs:
    """Count the items that only one of the two models has right. The items must be the same.

    `ungraded`: `worst` takes ungraded items of the parent as right, and `best` those of the checkpoint. `rise` takes ungraded items of the
    checkpoint as right if the parent's are graded.
    """
    ours, theirs = _paired_answers(result, parent)
    right: list[tuple[bool, bool]] = []
    for item, answer in ours.items():
        lacks, parent_lacks = bool(answer.get("ungraded")), bool(theirs[item].get("ungraded"))
        may_be_right = lacks and (ungraded == "best" or (ungraded == "rise" and not parent_lacks))
        right.append((bool(answer["right"]) or may_be_right, bool(theirs[item]["right"]) or (ungraded == "worst" and parent_lacks)))
    return Pairs(len(right), sum(one and not other for one, other in right), sum(other and not one for one, other in right))


class LikelihoodChange(NamedTuple):
    """Change of the right choice's probability among its item's choices: mean, 95 % interval, one-sided test. NaN without choices."""

    difference: float
    low: float
    high: float
    fall_p_value: float


def likelihood_change(result: Result, parent: Result) -> LikelihoodChange:
    """Test the change of the right choice's probability by a paired t-test (Student, Biometrika 6 (1908), 1).

    Probabilities instead of margins: a margin can be a hundred nats, and one such item would decide (decision 14). Items of a group share
    their choices and are not independent: the mean of a group is one observation.
    """
    ours, theirs = _paired_answers(result, parent)
    groups: defaultdict[Any, list[float]] = defaultdict(list)
    for item, answer in ours.items():
        group = ("alone", item) if answer["group"] is None else ("group", answer["group"])
        groups[group].append(choice_probability(answer) - choice_probability(theirs[item]))
    changes = np.array([float(np.mean(members)) for members in groups.values()])
    sizes = np.array([len(members) for members in groups.values()])
    # With equal group sizes the weights are equal, else the mean over the items is the mean of weighted groups.
    weighted = changes if len(changes) and np.ptp(changes) == 0 else changes * sizes / sizes.mean()
    low, high, p_value = mean_test(weighted, alternative="less")
    difference = math.nan if math.isnan(p_value) else float(weighted.mean())
    return LikelihoodChange(difference, low, high, p_value)


def choice_probability(answer: Mapping[str, Any]) -> float:
    """Return the right choice's probability among the item's choices, NaN if a score is not finite or the item has one choice."""
    scores = np.array(answer["log_likelihoods"], np.float64)
    if len(scores) < 2 or not np.isfinite(scores).all():
        return math.nan
    total: Any = logsumexp(scores)
    return float(np.exp(scores[answer["gold"]] - total))


def spread_of(values: Sequence[float]) -> float:
    """Return the noise of training: the standard deviation of a score over the last checkpoints of a phase, around a straight line.

    Heineman et al., "Signal and Noise", 2025, take the deviation without the line, but a steady rise is not noise.
    """
    from scipy.stats import linregress  # the import takes half a second

    if len(values) < 3:
        raise DataError(f"the spread of a phase's checkpoints needs at least three of them, found {len(values)}.")
    steps = np.arange(len(values))
    found: Any = linregress(steps, values)
    rest = [value - found.intercept - found.slope * step for step, value in zip(steps, values, strict=True)]
    return math.sqrt(sum(one**2 for one in rest) / (len(values) - 2))


def _paired_answers(result: Result, parent: Result) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Mapping[str, Any]]]:
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
