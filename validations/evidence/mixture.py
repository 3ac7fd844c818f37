"""Evidence about the mixture: what the schedule really draws, against what the recipe intends."""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pandas as pd

from phasewise.trainer.config import Component, DataOrder, MixtureShares, RunConfig, Steps
from phasewise.trainer.data.cache import TokenCache, build_maps
from phasewise.trainer.data.mixture import block_counts
from phasewise.trainer.data.packing import ComponentRows, RowRule

PACKING_COLUMNS = (
    "component", "packing", "loss_on", "documents", "rows", "places", "tokens", "padding_percent", "documents_cut", "documents_cut_percent",
    "tokens_cut", "tokens_cut_percent", "counted_tokens", "counted_percent", "rows_without_target",
)  # fmt: skip


def packing_evidence(run: RunConfig) -> pd.DataFrame:
    """One row a component, of all rows that its cache gives. The columns, where their names do not say it:

    * `places`: tokens that its rows have room for; `tokens`: those that are in them; what is left is padding;
    * `documents_cut`: documents that are longer than a row, where rows have whole documents; `tokens_cut`: tokens that are in no row;
    * `counted_tokens`: tokens that are predicted, and `counted_percent` their share of `tokens`;
    * `rows_without_target`: rows in which nothing is predicted.

    No token is read: the lengths of the documents and the spans of the answers say it all.

    Raises:
        DataError: a cache cannot be read, or answers are to be predicted and it is of plain text.
    """
    rule, maps = RowRule(run.packing, run.loss_on), build_maps()
    caches = {name: TokenCache.open(folder, maps) for name, folder in sorted(run.caches.items())}
    measured = [_measure_packing(name, ComponentRows(cache, rule, run.model.seq_len)) for name, cache in caches.items()]
    return pd.DataFrame(measured, columns=list(PACKING_COLUMNS))


def _measure_packing(name: Component, laid: ComponentRows) -> dict[str, object]:
    manifest, plan = laid.cache.manifest, laid.plan
    places = laid.num_rows * laid.seq_len
    kept = places if plan is None else plan.tokens_kept
    cut = 0 if plan is None or laid.starts is None else int((np.diff(laid.starts) > laid.seq_len).sum())
    targets = laid.targets_of(np.arange(laid.num_rows))
    return {
        "component": name,
        "packing": laid.packing,
        "loss_on": laid.rule.loss_on,
        "documents": manifest.documents,
        "rows": laid.num_rows,
        "places": places,
        "tokens": kept,
        "padding_percent": _percent(places - kept, places),
        "documents_cut": cut,
        "documents_cut_percent": _percent(cut, manifest.documents),
        "tokens_cut": manifest.tokens - kept,
        "tokens_cut_percent": _percent(manifest.tokens - kept, manifest.tokens),
        "counted_tokens": int(targets.sum()),
        "counted_percent": _percent(int(targets.sum()), kept),
        "rows_without_target": int((targets == 0).sum()),
    }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


COLUMNS = (
    "start_step",
    "stop_step",
    "component",
    "intended_percent",
    "block_percent",
    "realised_percent",
    "error_points",
    "error_percent",
    "block_error_percent",
    "block_sequences",
    "cut_sequences",
    "undeclared_cut_sequences",
    "sequences",
    "tokens",
    "is_drawn",
    "rows",
    "epochs",
    "epochs_since_step_0",
)


class Schedule(Protocol):
    """What is measured: `trainer.data.mixture.MixtureSchedule` draws so."""

    mixture: Steps[MixtureShares]
    order: DataOrder

    def realised(self, start_step: int, stop_step: int) -> dict[Component, int]:
        """Sequences that each component gives over `[start_step, stop_step)`."""
        ...

    def cut_at(self, step: int) -> int:
        """Sequences in the block that a stage which starts at `step` cuts short."""
        ...


def mixture_evidence(
    schedule: Schedule,
    *,
    start_step: int,
    stop_step: int,
    rows: Mapping[Component, int],
    seq_len: int,
    epochs_before: Mapping[Component, float] = MappingProxyType({}),
) -> pd.DataFrame:
    """One row for each stage (a run of steps with one mixture) and component that it intends or draws.

    The columns, where their names do not say it:

    * `block_percent`: the share that the component's whole sequences make up in a block; `block_sequences`: how many these are;
    * `error_points`: realised against intended share, in percentage points; `error_percent`: the same in percent of the intended share;
      `block_error_percent`: a block's share against the intended one, in percent of that;
    * `cut_sequences`: sequences in the block that the start of this stage cuts short, 0 where it starts on the block grid;
      `undeclared_cut_sequences`: the same, but 0 also where the recipe's order says that blocks may be cut;
    * `epochs` counts the stage alone, `epochs_since_step_0` everything that the lineage has drawn by the stage's end.

    Args:
        rows: component → rows of `seq_len` tokens that one epoch of its cache has.
        epochs_before: component → how often the lineage had seen it when the schedule's order began.
    """
    stages = schedule.mixture.within(start_step, stop_step)
    edges = [step for step, _ in stages] + [stop_step]
    measured = [
        row
        for (_, shares), (start, stop) in zip(stages, pairwise(edges), strict=True)
        for row in _measure_stage(schedule, shares, (start, stop), rows, seq_len, epochs_before)
    ]
    return pd.DataFrame(measured, columns=list(COLUMNS))


def _measure_stage(
    schedule: Schedule,
    shares: MixtureShares,
    steps: tuple[int, int],
    rows: Mapping[Component, int],
    seq_len: int,
    epochs_before: Mapping[Component, float],
) -> list[dict[str, object]]:
    start, stop = steps
    block = schedule.order.block_sequences
    cut = schedule.cut_at(steps[0])
    drawn = schedule.realised(start, stop)
    drawn_since_0 = schedule.realised(0, stop)
    total = sum(drawn.values())
    counts = block_counts(shares, schedule.order)
    names = [name for name in {**shares, **drawn} if shares.get(name, 0) > 0 or drawn.get(name, 0) > 0]
    measured: list[dict[str, object]] = []
    for name in names:
        sequences = drawn.get(name, 0)
        intended = shares.get(name, 0.0)
        available = rows.get(name, 0)
        realised_percent = 100 * sequences / total if total else 0.0
        error_points = abs(realised_percent - intended)
        block_percent = 100 * counts.get(name, 0) / block
        measured.append(
            {
                "start_step": start,
                "stop_step": stop,
                "component": name,
                "intended_percent": float(intended),
                "block_percent": block_percent,
                "realised_percent": realised_percent,
                "error_points": error_points,
                "error_percent": _percent_off(realised_percent, intended),
                "block_error_percent": _percent_off(block_percent, intended),
                "block_sequences": counts.get(name, 0),
                "cut_sequences": cut,
                "undeclared_cut_sequences": 0 if schedule.order.cut_blocks else cut,
                "sequences": sequences,
                "tokens": sequences * seq_len,
                "is_drawn": sequences > 0,
                "rows": available,
                "epochs": _epochs(sequences, available),
                "epochs_since_step_0": epochs_before.get(name, 0.0) + _epochs(drawn_since_0.get(name, 0), available),
            }
        )
    return measured


def _percent_off(found: float, intended: float) -> float:
    return 100 * abs(found - intended) / intended if intended else float("inf")


def _epochs(sequences: int, rows: int) -> float:
    if rows:
        return sequences / rows
    return float("inf") if sequences else 0.0
