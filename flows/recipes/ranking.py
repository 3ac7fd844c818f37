"""Mean rank and mean reciprocal rank of models over benchmarks, as the Marin 32B retrospective computes them from its table."""

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple


class Ranked(NamedTuple):
    """`mean_rank` is better the lower it is, `mean_reciprocal_rank` the higher."""

    mean_rank: float
    mean_reciprocal_rank: float


def ranks_of(scores: Mapping[str, Mapping[str, float]]) -> dict[str, Ranked]:
    """Model → its ranks over all benchmarks, where 1 is the highest score and equal scores share the smallest rank ("min").

    Raises:
        ValueError: the models were not all measured on the same benchmarks.
    """
    benchmarks = list(next(iter(scores.values()), {}))
    for model, found in scores.items():
        if set(found) != set(benchmarks):
            raise ValueError(f"every model must have the same benchmarks, found {sorted(found)} of {model} and {sorted(benchmarks)}")
    ranks = {
        model: [1 + sum(other[name] > found[name] for other in scores.values()) for name in benchmarks] for model, found in scores.items()
    }
    return {model: Ranked(fmean(places), fmean(1 / place for place in places)) for model, places in ranks.items()}
