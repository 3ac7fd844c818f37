"""The smallest difference that a test would show: what a gate can see, and what it cannot."""

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import bdtrc

from phasewise.validations.evidence.proportions import Pairs, fall_p_values

POWER = 0.8
"""A difference is called detectable where the test shows it in so many of a hundred draws of the items, divided by a hundred."""
PLANNED_POWER = 0.82
"""What a fall is stated for: how often two models disagree is only estimated from this pair, which costs up to two of a hundred draws."""
MANY_ITEMS = 3000
"""Above so many items those numbers of disagreements are left out that come about in fewer than one in 10¹² draws."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


@lru_cache(maxsize=20_000)
def smallest_fall(pairs: Pairs, *, level: float, max_fall: float = 0.0, spread: float = 0.0) -> float:
    """The smallest true fall that `fall_p_values` shows at this level with a power of 80 %, on so many items; NaN where there is none.

    The power is that of McNemar's test given how often two such models disagree (Connor, Biometrics 43 (1987), 207), summed over all
    outcomes and not approximated. How often they disagree is taken from this very pair: a fall of δ turns ψ₀ = 2√(gained · lost) / items
    into √(ψ₀² + δ²), as a shift of all disagreements by the same log-odds does. Half an item is added to each count, so that no
    disagreement seen is not none at all.

    Args:
        level: of the one test, after what is shared among the tests of a gate.
        max_fall, spread: as in `fall_p_values`.

    Returns:
        A share of the items, `max_fall` included.
    """
    from scipy.optimize import brentq  # half a second, which only a gate needs

    # The product of the two counts is the same when a pair falls: what it was before the fall cannot be known.
    base = 2 * math.sqrt((pairs.gained + 0.5) * (pairs.lost + 0.5)) / (pairs.items + 1)
    critical = _critical_losses(pairs.items, level, max_fall, spread)

    def lacking(fall: float) -> float:
        return _power(fall, base, critical, spread) - PLANNED_POWER

    if lacking(1.0) < 0:
        return math.nan
    fall: Any = brentq(lacking, max_fall, 1.0, xtol=1e-6) if lacking(max_fall) < 0 else max_fall
    return float(fall)


@lru_cache(maxsize=20_000)
def smallest_margin(items: int, baseline: float, *, level: float) -> float:
    """The smallest margin above a guesser's baseline that the exact binomial test shows with a power of 80 %; NaN where there is none."""
    from scipy.optimize import brentq  # half a second, which only a gate needs

    counts = np.arange(items + 1)
    shows = np.flatnonzero(np.where(counts > 0, bdtrc(np.maximum(counts - 1, 0), items, baseline), 1.0) <= level)
    if not len(shows):
        return math.nan
    least = int(shows[0])
    share: Any = brentq(lambda share: float(bdtrc(least - 1, items, share)) - POWER, baseline, 1.0, xtol=1e-6)
    return float(share) - baseline


@lru_cache(maxsize=1_000)
def _critical_losses(items: int, level: float, max_fall: float, spread: float) -> np.ndarray:
    """Number of disagreements → the fewest losses among them that are shown; one more than there are where none are."""
    disagreements = np.arange(items + 1)
    low, high = np.zeros(items + 1, np.int64), disagreements + 1
    while (low < high).any():
        middle = (low + high) // 2
        lost = np.minimum(middle, disagreements)
        shown = fall_p_values(lost, disagreements - lost, items=items, max_fall=max_fall, spread=spread) <= level
        shown |= middle > disagreements
        low, high = np.where(shown, low, middle + 1), np.where(shown, middle, high)
    return low


def _power(fall: float, base: float, critical: np.ndarray, spread: float) -> float:
    """How often a true fall is shown; with a spread, over what it may be in another checkpoint."""
    if not spread:
        return _power_of_items(fall, base, critical)
    falls = np.clip(fall + spread * _NODES, -1.0, 1.0)
    powers = [_power_of_items(float(one), base, critical) for one in falls]
    return float(np.dot(_WEIGHTS, powers) / _WEIGHTS.sum())


def _power_of_items(fall: float, base: float, critical: np.ndarray) -> float:
    from scipy.stats import binom  # half a second, which only a gate needs

    items = len(critical) - 1
    disagreeing = min(1.0, math.hypot(base, fall))
    likely = np.arange(items + 1)
    if items > MANY_ITEMS:
        low, high = binom.ppf([1e-12, 1 - 1e-12], items, disagreeing).astype(int)
        likely = np.arange(max(low, 0), min(high, items) + 1)
    share_lost = min(1.0, (1 + fall / disagreeing) / 2)
    return float(np.dot(binom.pmf(likely, items, disagreeing), binom.sf(critical[likely] - 1, likely, share_lost)))
