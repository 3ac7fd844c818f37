"""Evidence about leakage: which test items are in the token caches that the trainer will read.

The caches are turned back into text and scanned, not the sources: what was filtered from a source may still be in a cache.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from phasewise.validations.evidence.caches import name_some
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.rules import build_rules
from phasewise.validations.evidence.leakage.scan import Hit, Scan
from phasewise.validations.limits import LeakageLimits

TABLE_COLUMNS = (
    "component",
    "benchmark",
    "items",
    "items_hit",
    "hit_percent",
    "documents_hit",
    "tokens_hit",
    "files",
    "documents_scanned",
    "items_out_of_reach",
    "scan_key",
    "expected_scan_key",
)
LEAKED_ITEM_COLUMNS = (
    "component", "benchmark", "item", "part", "score", "documents", "files", "document", "excerpt", "start", "end",
)  # fmt: skip


TOLD_OF_HIT = ("document", "benchmark", "item", "part", "score", "start", "end", "excerpt")


def leakage_evidence(
    scans: Mapping[str, Scan],
    index: LeakageIndex,
    limits: LeakageLimits,
    *,
    scan_keys: Mapping[str, str],
    expected_scan_keys: Mapping[str, str],
) -> pd.DataFrame:
    """One row for each component × benchmark, with its hits or with none.

    `tokens_hit` are the tokens of the documents that were hit; `items_out_of_reach` can't be distinguished from ordinary text.

    Args:
        scans: component → its scan. A component without one has rows in which nothing was scanned.
        scan_keys: component → what decided its scan: bytes, items, rule and code.
        expected_scan_keys: component → the same, of the cache that will be read; for every component.
    """
    unreachable: dict[str, int] = {}
    for item in np.flatnonzero(build_rules(index, limits).out_of_reach & index.is_counted).tolist():
        benchmark = index.names[item][0]
        unreachable[benchmark] = unreachable.get(benchmark, 0) + 1
    rows = [
        {
            "component": component,
            **_measure(scans.get(component), benchmark, items),
            "items_out_of_reach": unreachable.get(benchmark, 0),
            "scan_key": scan_keys.get(component, "none"),
            "expected_scan_key": expected,
        }
        for component, expected in expected_scan_keys.items()
        for benchmark, items in index.items_per_benchmark.items()
    ]
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))


def leaked_items(scans: Mapping[str, Scan]) -> pd.DataFrame:
    """One row for each component × item that was hit: its clearest hit, and the documents and files in which it is, in words."""
    rows: list[dict[str, object]] = []
    for component, scan in scans.items():
        groups: dict[tuple[str, str], list[Hit]] = {}
        for hit in scan.hits:
            groups.setdefault((hit.benchmark, hit.item), []).append(hit)
        rows += [_leaked(component, hits) for hits in groups.values()]
    return pd.DataFrame(rows, columns=list(LEAKED_ITEM_COLUMNS))


def _leaked(component: str, hits: list[Hit]) -> dict[str, object]:
    clearest = max(hits, key=lambda hit: (hit.score, hit.end - hit.start))
    return {
        "component": component,
        **{name: getattr(clearest, name) for name in TOLD_OF_HIT},
        "documents": name_some(str(number) for number in sorted({hit.document for hit in hits})),
        "files": name_some(sorted({hit.file for hit in hits})),
    }


def _measure(scan: Scan | None, benchmark: str, items: int) -> dict[str, object]:
    hits = [hit for hit in scan.hits if hit.benchmark == benchmark] if scan else []
    items_hit = len({hit.item for hit in hits})
    return {
        "benchmark": benchmark,
        "items": items,
        "items_hit": items_hit,
        "hit_percent": 100 * items_hit / items,
        "documents_hit": len({hit.place for hit in hits}),
        "tokens_hit": sum({hit.place: hit.tokens for hit in hits}.values()),
        "files": name_some(sorted({hit.file for hit in hits})),
        "documents_scanned": scan.documents if scan else 0,
    }
