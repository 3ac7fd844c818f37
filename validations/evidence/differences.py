"""Evidence about staleness: what is cached against what is configured, difference by difference, as `phasewise data verify` finds them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import read_manifest

COLUMNS = ("component", "what", "kind", "file", "expected", "found", "what_to_do", "folder", "manifest_digest")
NONE, DAMAGED, UNSELECTED, CHANGED, OTHER = "none", "damaged", "no longer selected", "files changed", "made otherwise"
KINDS = {
    "shard damaged": DAMAGED,
    "file no longer selected": UNSELECTED,
    "file added": CHANGED,
    "file removed": CHANGED,
    "content changed": CHANGED,
}
"""What a difference says → its kind, which has a check of its own; every other difference is `made otherwise`."""


def differences_evidence(rows: Mapping[str, Sequence[Mapping[str, str]]], caches: Mapping[str, str | Path]) -> pd.DataFrame:
    """One row a component × difference; a component without any has one that says so, in `what` and `kind`: none.

    Args:
        rows: component → its differences, each with `what`, `file`, `expected`, `found` and `remedy`. A component that is not named was
            not verified: it has no row.
        caches: component → folder of the cache that is to be trained on; its differences may be those of other caches of the component.
    """
    table: list[dict[str, str]] = []
    for component, folder in caches.items():
        if component not in rows:
            continue
        about = {"component": component, "folder": str(folder), "manifest_digest": _digest(folder)}
        table += [about | _cells(row) for row in rows[component]] or [about | _no_difference()]
    return pd.DataFrame(table, columns=list(COLUMNS))


def _cells(row: Mapping[str, str]) -> dict[str, str]:
    remedy = row["remedy"]
    return {
        "what": row["what"],
        "kind": KINDS.get(row["what"], OTHER),
        "file": row["file"],
        "expected": row["expected"],
        "found": row["found"],
        "what_to_do": f"{remedy[:1].upper()}{remedy[1:]}.",
    }


def _no_difference() -> dict[str, str]:
    return {"what": NONE, "kind": NONE, "file": "", "expected": "", "found": "", "what_to_do": ""}


def _digest(folder: str | Path) -> str:
    """The digest of a cache's manifest; one that cannot be read is a difference of its own."""
    try:
        return read_manifest(folder).digest
    except DataError:
        return "none"
