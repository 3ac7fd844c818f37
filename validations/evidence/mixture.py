"""Evidence about the mixture: what the schedule really draws, against what the recipe intends."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import pandas as pd

from trainer.config import MixtureShares, Steps

COLUMNS = (
    "start_step",
    "stop_step",
    "component",
    "intended_percent",
    "realised_percent",
    "error_points",
    "sequences",
    "is_drawn",
    "rows",
    "epochs",
    "epochs_since_step_0",
)


def mixture_evidence(
    *,
    start_step: int,
    stop_step: int,
    mixture: Steps[MixtureShares],
    realised: Callable[[int, int], dict[str, int]],
    rows: Mapping[str, int],
) -> pd.DataFrame:
    """One row for each stage (a run of steps with one mixture) and component that it intends or draws.

    `epochs` counts the stage alone, `epochs_since_step_0` everything that the lineage has drawn by the stage's end.

    Args:
        realised: (start step, stop step) → component → sequences drawn over these steps.
        rows: component → rows that one epoch of its cache has.
    """
    stages = mixture.within(start_step, stop_step)
    edges = [step for step, _ in stages] + [stop_step]
    measured = [
        row
        for (_, shares), (start, stop) in zip(stages, pairwise(edges), strict=True)
        for row in _measure_stage(start, stop, shares, realised, rows)
    ]
    return pd.DataFrame(measured, columns=list(COLUMNS))


def _measure_stage(
    start: int, stop: int, shares: MixtureShares, realised: Callable[[int, int], dict[str, int]], rows: Mapping[str, int]
) -> list[dict[str, object]]:
    drawn, drawn_since_0 = realised(start, stop), realised(0, stop)
    total = sum(drawn.values())
    names = [name for name in {**shares, **drawn} if shares.get(name, 0) > 0 or drawn.get(name, 0) > 0]
    measured: list[dict[str, object]] = []
    for name in names:
        sequences, intended, available = drawn.get(name, 0), shares.get(name, 0.0), rows.get(name, 0)
        realised_percent = 100 * sequences / total if total else 0.0
        measured.append(
            {
                "start_step": start,
                "stop_step": stop,
                "component": name,
                "intended_percent": float(intended),
                "realised_percent": realised_percent,
                "error_points": abs(realised_percent - intended),
                "sequences": sequences,
                "is_drawn": sequences > 0,
                "rows": available,
                "epochs": _epochs(sequences, available),
                "epochs_since_step_0": _epochs(drawn_since_0.get(name, 0), available),
            }
        )
    return measured


def _epochs(sequences: int, rows: int) -> float:
    if rows:
        return sequences / rows
    return float("inf") if sequences else 0.0
