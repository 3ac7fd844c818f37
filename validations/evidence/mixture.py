"""Evidence on the mixture: realised against intended shares, and packing."""

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pandas as pd

from phasewise.trainer.config import Component, RunConfig
from phasewise.trainer.data.cache import TokenCache, build_maps
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts
from phasewise.trainer.data.packing import ComponentRows, RowRule

PACKING_COLUMNS = (
    "component", "packing", "loss_on", "documents", "rows", "places", "tokens", "padding_percent", "documents_cut", "documents_cut_percent",
    "tokens_cut", "tokens_cut_percent", "counted_tokens", "counted_percent", "rows_without_target",
)  # fmt: skip
COLUMNS = (
    "start_step", "stop_step", "component", "intended_percent", "block_percent", "realised_percent", "error_points", "error_percent",
    "block_error_percent", "block_sequences", "cut_sequences", "undeclared_cut_sequences", "sequences", "tokens", "is_drawn", "rows",
    "epochs", "epochs_since_step_0",
)  # fmt: skip


def packing_evidence(run: RunConfig) -> pd.DataFrame:
    """Build a row per component over all rows of its cache, from document lengths and answer spans, without reading tokens.

    * `places`: Token positions of the rows. Positions without `tokens` are padding.
    * `documents_cut`: Documents longer than a row, if rows hold whole documents. `tokens_cut`: tokens in no row.
    * `counted_tokens`: Predicted tokens. `counted_percent` is their share of `tokens`.
    """
    rule, maps = RowRule(run.packing, run.loss_on), build_maps()
    caches = {name: TokenCache.open(folder, maps) for name, folder in sorted(run.caches.items())}
    measured: list[dict[str, object]] = []
    for name, cache in caches.items():
        laid = ComponentRows(cache, rule, run.model.seq_len)
        manifest, places = cache.manifest, laid.num_rows * laid.seq_len
        kept = places if laid.plan is None else laid.plan.tokens_kept
        cut = 0 if laid.plan is None or laid.starts is None else int((np.diff(laid.starts) > laid.seq_len).sum())
        targets = laid.targets_of(np.arange(laid.num_rows))
        measured.append(
            {
                "component": name, "packing": laid.rule.packing, "loss_on": laid.rule.loss_on, "documents": manifest.documents,
                "rows": laid.num_rows, "places": places, "tokens": kept, "padding_percent": _percent(places - kept, places),
                "documents_cut": cut, "documents_cut_percent": _percent(cut, manifest.documents), "tokens_cut": manifest.tokens - kept,
                "tokens_cut_percent": _percent(manifest.tokens - kept, manifest.tokens), "counted_tokens": int(targets.sum()),
                "counted_percent": _percent(int(targets.sum()), kept), "rows_without_target": int((targets == 0).sum()),
            }
        )  # fmt: skip
    return pd.DataFrame(measured, columns=list(PACKING_COLUMNS))


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def mixture_evidence(
    schedule: MixtureSchedule,
    *,
    start_step: int,
    stop_step: int,
    rows: Mapping[Component, int],
    seq_len: int,
    epochs_before: Mapping[Component, float] = MappingProxyType({}),
) -> pd.DataFrame:
    """Build a row per stage (a run of steps with one mixture) and component.

    * `block_percent`, `block_sequences`: Share and number of the component's whole sequences in a block.
    * `error_points`: Realised minus intended share, in percentage points. `error_percent`: in percent of the intended share.
    * `cut_sequences`: Sequences in the block that the start of this stage cuts, 0 on the block grid. `undeclared_cut_sequences` is also 0
      if the recipe's order allows cut blocks.
    * `epochs` counts this stage, `epochs_since_step_0` the lineage up to the stage's end.

    Args:
        rows: component → rows of `seq_len` tokens in one epoch of its cache.
        epochs_before: component → epochs of the lineage before the schedule's order began.
    """
    stages = schedule.mixture.within(start_step, stop_step)
    edges = [step for step, _ in stages] + [stop_step]
    order = schedule.order
    measured: list[dict[str, object]] = []
    for (_, shares), (start, stop) in zip(stages, pairwise(edges), strict=True):
        cut, counts = schedule.cut_at(start), block_counts(shares, order)
        drawn, drawn_since_0 = schedule.realised(start, stop), schedule.realised(0, stop)
        total = sum(drawn.values())
        for name in {**shares, **drawn}:
            sequences, intended, available = drawn.get(name, 0), shares.get(name, 0.0), rows.get(name, 0)
            if not (sequences > 0 or intended > 0):
                continue
            realised_percent = 100 * sequences / total if total else 0.0
            block_percent = 100 * counts.get(name, 0) / order.block_sequences
            measured.append(
                {
                    "start_step": start, "stop_step": stop, "component": name, "intended_percent": float(intended),
                    "block_percent": block_percent, "realised_percent": realised_percent, "error_points": abs(realised_percent - intended),
                    "error_percent": 100 * abs(realised_percent - intended) / intended if intended else math.inf,
                    "block_error_percent": 100 * abs(block_percent - intended) / intended if intended else math.inf,
                    "block_sequences": counts.get(name, 0), "cut_sequences": cut,
                    "undeclared_cut_sequences": 0 if order.cut_blocks else cut, "sequences": sequences, "tokens": sequences * seq_len,
                    "is_drawn": sequences > 0, "rows": available, "epochs": _epochs(sequences, available),
                    "epochs_since_step_0": epochs_before.get(name, 0.0) + _epochs(drawn_since_0.get(name, 0), available),
                }
            )  # fmt: skip
    return pd.DataFrame(measured, columns=list(COLUMNS))


def _epochs(sequences: int, rows: int) -> float:
    if rows:
        return sequences / rows
    return math.inf if sequences else 0.0
