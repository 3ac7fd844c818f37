"""The law of mixtures: the loss of each target as a function of the shares, the best mixture by it, and its gain with an interval.

Ye et al., "Data Mixing Laws", 2024: `loss = c + exp(a + t · r)` for shares `r`. The shares sum to 1, so `a` is part of `t`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phasewise.trainer.base.errors import DataError

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportArgumentType=false

MAX_EXPONENT = 30.0
STARTS, RESAMPLES, COVERAGE = 4, 100, 0.8
STRENGTHS = (0.5, 8.0)
"""Least and largest sum of the Dirichlet's parameters, per component. Small sums give mixtures far from the natural one."""


@dataclass(frozen=True)
class MixingLaw:
    """`constants` (targets) and `rates` (targets, components)."""

    constants: np.ndarray
    rates: np.ndarray

    def losses(self, shares: np.ndarray) -> np.ndarray:
        """Return the loss of each target for shares of shape (…, components)."""
        return self.constants + np.exp(np.minimum(shares @ self.rates.T, MAX_EXPONENT))


class Gain(NamedTuple):
    """The predicted fall of the objective, in nats per token, with the ends of an 80 % interval for one training of each mixture.

    `rank_correlation`: Spearman's, between the measured objective of each proxy and the mean prediction of laws fitted without the proxy.
    """

    mean: float
    low: float
    high: float
    rank_correlation: float


def draw_mixtures(natural: np.ndarray, block: int, number: int, seed: int) -> np.ndarray:
    """Draw mixtures around the natural shares, as counts in a block (RegMix: Liu et al., 2024, §3).

    The parameters of the Dirichlet are the natural shares times a strength, which is log-uniform. A component may have no sequence. The
    first mixtures of a larger number are the same.
    """
    rng, found = np.random.default_rng(seed), np.empty((number, len(natural)), np.int64)
    for row in range(number):
        strength = len(natural) * np.exp(rng.uniform(*np.log(STRENGTHS)))
        exact = block * rng.dirichlet(np.maximum(strength * natural, 1e-3))
        found[row] = np.floor(exact)
        found[row, np.argsort(found[row] - exact, kind="stable")[: block - found[row].sum()]] += 1
    return found


def fit_law(shares: np.ndarray, losses: np.ndarray, *, seed: int = 0, near: MixingLaw | None = None) -> MixingLaw:
    """Fit the law of each target by least squares, from several random starts, or only from a law that is `near`.

    Args:
        shares: of each run (runs, components).
        losses: of each run (runs, targets).

    Raises DataError if the runs are fewer than the parameters.
    """
    from scipy.optimize import least_squares  # the import takes half a second

    runs, components = shares.shape
    if runs < components + 2:
        raise DataError(f"a law of {components} components: expected at least {components + 2} runs, found {runs}. Train more proxies.")
    rng, constants, rates = np.random.default_rng(seed), list[float](), list[np.ndarray]()
    for target in range(losses.shape[1]):
        measured, found = losses[:, target], list[Any]()
        spread = max(float(np.ptp(measured)), 1e-6)

        def errors(law: np.ndarray, measured: np.ndarray = measured) -> np.ndarray:
            return law[0] + np.exp(np.minimum(shares @ law[1:], MAX_EXPONENT)) - measured

        def slopes(law: np.ndarray) -> np.ndarray:
            return np.column_stack([np.ones(runs), shares * np.exp(np.minimum(shares @ law[1:], MAX_EXPONENT))[:, None]])

        for _ in range(1 if near else STARTS):
            constant = measured.min() - spread * rng.uniform(0.05, 1.0)
            start = np.concatenate([[constant], np.linalg.lstsq(shares, np.log(measured - constant), rcond=None)[0]])
            if near:
                start = np.concatenate([near.constants[target : target + 1], near.rates[target]])
            found.append(least_squares(errors, start, slopes, method="lm", max_nfev=50 if near else 500))
        best = min(found, key=lambda one: one.cost).x
        constants.append(float(best[0]))
        rates.append(best[1:])
    return MixingLaw(np.array(constants), np.array(rates))


def best_counts(law: MixingLaw, weights: np.ndarray, natural: np.ndarray, least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return the counts in a block with the least predicted objective, by moves of sequences between two components.

    The objective is convex in the shares, and these moves reach every direction within the bounds, so steps that halve down to one
    sequence end at the optimum of the grid up to one sequence.

    Args:
        weights: of each target in the objective.
        natural: counts at the start of the search, whose sum is the block.
        least, most: bounds of each count.

    Raises DataError if the bounds admit no mixture.
    """
    block, counts = int(natural.sum()), np.clip(natural, least, most)
    if least.sum() > block or most.sum() < block or (least > most).any():
        raise DataError(
            f"the mixture: expected bounds that admit {block} sequences in a block, found {least.sum()} to {most.sum()}. Allow more epochs."
        )
    while (rest := block - int(counts.sum())) != 0:
        room = most - counts if rest > 0 else counts - least
        chosen = int(np.argmax(room))
        counts[chosen] += np.sign(rest) * min(abs(rest), max(1, int(room[chosen]) // 2))

    def objective(candidates: np.ndarray) -> np.ndarray:
        return law.losses(candidates / block) @ weights

    step, eye = 1 << max(0, block.bit_length() - 2), np.eye(len(natural), dtype=np.int64)
    moves = (eye[:, None] - eye[None]).reshape(-1, len(natural))
    value = objective(counts)
    while step:
        candidates = counts + step * moves
        allowed = candidates[((candidates >= least) & (candidates <= most)).all(axis=1)]
        values = objective(allowed)
        if values.min() < value - 1e-12:
            counts, value = allowed[np.argmin(values)], values.min()
        else:
            step //= 2
    return counts


def predicted_gain(
    shares: np.ndarray, losses: np.ndarray, law: MixingLaw, weights: np.ndarray, pair: Sequence[np.ndarray], *, seed: int = 0
) -> Gain:
    """Predict the objective of the first mixture of a pair minus that of the second.

    The interval has the error of the law, from laws of resampled proxies, and the deviation of single trainings from the law.
    """
    from scipy.stats import spearmanr  # the import takes half a second

    rng, (runs, components) = np.random.default_rng(seed), shares.shape
    measured = losses @ weights
    free = max(1, runs - components - 1)
    noise = float(np.sqrt(((law.losses(shares) @ weights - measured) ** 2).sum() / free))
    gains, sums, times = list[float](), np.zeros(runs), np.zeros(runs)
    for _ in range(RESAMPLES):
        rows = rng.integers(0, runs, runs)
        again = fit_law(shares[rows], losses[rows], near=law)
        before, after = again.losses(np.stack(pair)) @ weights
        gains.append(float(before - after + noise * np.sqrt(2) * rng.standard_normal()))
        left_out = np.setdiff1d(np.arange(runs), rows)
        sums[left_out] += again.losses(shares[left_out]) @ weights
        times[left_out] += 1
    before, after = law.losses(np.stack(pair)) @ weights
    low, high = np.quantile(gains, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    ranked = times > 0
    correlation: Any = spearmanr(sums[ranked] / times[ranked], measured[ranked])
    return Gain(float(before - after), float(low), float(high), float(correlation.statistic))
