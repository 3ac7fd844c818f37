"""Evidence about the rows that documents become: how much of them is padding, what is cut, and which tokens count."""

import numpy as np
import pandas as pd

from phasewise.trainer.config import Component, RunConfig
from phasewise.trainer.data.cache import TokenCache, build_maps
from phasewise.trainer.data.packing import ComponentRows, RowRule

COLUMNS = (
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
    measured = [_measure(name, ComponentRows(cache, rule, run.model.seq_len)) for name, cache in caches.items()]
    return pd.DataFrame(measured, columns=list(COLUMNS))


def _measure(name: Component, laid: ComponentRows) -> dict[str, object]:
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
