"""Evidence on a checkpoint's scores against its parent's: what can be compared, and what fell or rose by more than chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from phasewise.validations.evidence.comparable import Comparison, Evaluation, compare, name_of
from phasewise.validations.evidence.detectable import smallest_fall
from phasewise.validations.evidence.paired import NOT_MEASURED, likelihood_change, pair_items, spread_of
from phasewise.validations.evidence.proportions import Pairs, difference_interval, fall_p_value, holm
from phasewise.validations.limits import GateLimits

COMPARABLE_COLUMNS = ("name", "against", "is_whole", "limited", "is_comparable", "differs", "asks_fall", "asks_rise", "why_not")
CHANGE_COLUMNS = (
    "name", "against", "items", "value", "parent", "difference", "low", "high", "lost", "gained", "spread", "limit", "tests", "p_value",
    "adjusted_p_value", "smallest_detectable",
)  # fmt: skip
LIKELIHOOD_COLUMNS = ("name", "against", "items", "difference", "low", "high", "tests", "p_value", "adjusted_p_value")
NOT_ASKED = "the recipe does not ask for it (false_refusal_rate)"


@dataclass(frozen=True)
class AgainstParent:
    """Four tables: a row a benchmark of what can be compared; a row a question of what was asked about falls, rises and likelihoods."""

    comparable: pd.DataFrame
    falls: pd.DataFrame
    rises: pd.DataFrame
    likelihoods: pd.DataFrame


@dataclass(frozen=True)
class _Paired:
    """One benchmark of both."""

    comparison: Comparison
    result: Mapping[str, Any]
    theirs: Mapping[str, Any]
    pairs: Pairs
    spread: float


def against_parent(evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> AgainstParent:
    """Every benchmark of the checkpoint beside its parent's.

    All tests for falls and rises share one error rate (Holm); `smallest_detectable` is at the rate divided by their number, which is where
    Holm's procedure begins. The tests of likelihoods share the rate among themselves: they warn and refuse nothing.

    Raises:
        DataError: both were measured alike, and not on the same items; or a learning rate is none.
    """
    compared = [_compare(result, evaluation, parent, limits) for result in evaluation["results"]]
    pairs = [_pair(one, result, parent) for one, result in zip(compared, evaluation["results"], strict=True) if one.asks and parent]
    asks_rise = limits.max_score_rise is not None
    fallen = [one for one in pairs if one.comparison.asks_fall]
    risen = [one for one in pairs if one.comparison.asks_rise and asks_rise]
    tests = len(fallen) + len(risen)
    falls = [_change(one, one.pairs, limits.max_score_fall, limits, tests) for one in fallen]
    rises = [_change(one, one.pairs.turned, limits.max_score_rise, limits, tests) for one in risen]
    _share_error_rate([*falls, *rises])
    return AgainstParent(
        comparable=_comparable_table(compared, asks_rise=asks_rise),
        falls=_table(falls, CHANGE_COLUMNS),
        rises=_table(rises, CHANGE_COLUMNS),
        likelihoods=_likelihoods(fallen),
    )


def _compare(result: Mapping[str, Any], evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> Comparison:
    found = compare(name_of(result), result, evaluation, parent)
    if limits.false_refusal_rate is None:
        return found._replace(differs="", asks_fall=False, asks_rise=False, why_not=NOT_ASKED)
    return found


def _pair(comparison: Comparison, result: Mapping[str, Any], parent: Evaluation) -> _Paired:
    theirs = next(one for one in parent["results"] if name_of(one) == comparison.name)
    return _Paired(comparison, result, theirs, pair_items(result, theirs), _spread(result, theirs))


def _spread(result: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Of the difference, from one checkpoint to the next; 0 where neither phase was measured at several.

    Where one of them was, the other is taken to be as restless.
    """
    known = [spread_of(one["checkpoint_values"]) for one in (result, theirs) if one.get("checkpoint_values")]
    return math.sqrt(2 / len(known)) * math.hypot(*known) if known else 0.0


def _change(one: _Paired, pairs: Pairs, limit: float | None, limits: GateLimits, tests: int) -> dict[str, Any]:
    """A row; `pairs` are turned where a rise is asked for, so that it is tested as a fall is."""
    assert limit is not None
    assert limits.false_refusal_rate is not None
    low, high = difference_interval(one.pairs, one.spread)
    level = limits.false_refusal_rate / tests
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
        "smallest_detectable": smallest_fall(pairs, level=level, max_fall=limit, spread=one.spread),
    }


def _likelihoods(fallen: Sequence[_Paired]) -> pd.DataFrame:
    """Those that have choices to compare, and that moved at all."""
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
    return _table(rows, LIKELIHOOD_COLUMNS)


def _share_error_rate(rows: Sequence[dict[str, Any]]) -> None:
    for row, adjusted in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["adjusted_p_value"] = adjusted


def _comparable_table(compared: Sequence[Comparison], *, asks_rise: bool) -> pd.DataFrame:
    rows = [
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
    return _table(rows, COMPARABLE_COLUMNS)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))
