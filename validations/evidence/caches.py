"""Evidence on token caches: their manifests, their differences from the configuration, and the changes of the hand-off to a phase."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from phasewise.trainer.base import wording
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import read_manifest

TEST_LIKE = re.compile(r"(?<![a-z])(tests?|testing|dev|val|valid|validation|eval|evaluation|held[-_]?out)(?![a-z])", re.IGNORECASE)
FILES = " (files)"  # suffix of a manifest's reasons that count files instead of documents
CACHE_COLUMNS = (
    "component", "manifest_component", "split", "documents", "tokens", "shards", "left_out_percent", "left_out", "near_copies",
    "samples_of_near_copies", "files_like_tests", "names_like_tests", "manifest_digest", "folder",
)  # fmt: skip
DIFFERENCE_COLUMNS = ("component", "what", "kind", "file", "expected", "found", "what_to_do", "folder", "manifest_digest")
DIFFERENCE_KINDS = {
    "shard damaged": "damaged",
    "file no longer selected": "no longer selected",
    "file added": "files changed",
    "file removed": "files changed",
    "content changed": "files changed",
}
"""Difference → kind, with a check per kind. Any other difference is of kind `made otherwise`."""
HAND_OFF_COLUMNS = ("name", "declared", "found", "before", "after", "status")
name_some = partial(wording.name_some, most=5)


class NearCount(NamedTuple):
    """The number of near copies that a component left out, and samples in words."""

    documents: int
    samples: Sequence[str]


def cache_evidence(caches: Mapping[str, str | Path], near_copies: Mapping[str, NearCount] = MappingProxyType({})) -> pd.DataFrame:
    """Build a row per cache (component → folder) from the manifest. `near_copies`: component → near copies among the copies."""
    rows: list[dict[str, object]] = []
    for component, folder in caches.items():
        manifest = read_manifest(as_path(folder))
        near, samples = near_copies.get(component, NearCount(0, ()))
        counts = {**manifest.left_out, "copy": manifest.left_out.get("copy", 0) - near, "near copy": near}
        left_out = {reason: count for reason, count in counts.items() if count and not reason.endswith(FILES)}
        total = sum(left_out.values())
        like_tests = names_like_tests(file.name for file in manifest.sources)
        reasons = [f"{count:,} for {reason}" for reason, count in sorted(left_out.items(), key=lambda entry: -entry[1])]
        rows.append(
            {
                "component": component, "manifest_component": manifest.component, "split": manifest.split, "documents": manifest.documents,
                "tokens": manifest.tokens, "shards": len(manifest.shards),
                "left_out_percent": 100 * total / max(1, total + manifest.documents), "left_out": ", ".join(reasons) or "none",
                "near_copies": near, "samples_of_near_copies": name_some(samples) or "none", "files_like_tests": len(like_tests),
                "names_like_tests": name_some(like_tests), "manifest_digest": manifest.digest, "folder": str(as_path(folder)),
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=list(CACHE_COLUMNS))


def names_like_tests(names: Iterable[str]) -> list[str]:
    """Select file names with a part such as test, dev, validation or eval: such files may hold test items."""
    return [name for name in names if TEST_LIKE.search(name)]


def differences_evidence(rows: Mapping[str, Sequence[Mapping[str, str]]], caches: Mapping[str, str | Path]) -> pd.DataFrame:
    """Build a row per difference of `phasewise data verify`, and a row `none` per component without. `rows`: component → differences."""
    no_difference = {"what": "none", "kind": "none", "file": "", "expected": "", "found": "", "what_to_do": ""}
    table: list[dict[str, str]] = []
    for component, folder in caches.items():
        if component not in rows:
            continue
        try:
            digest = read_manifest(folder).digest
        except DataError:  # an unreadable manifest is listed as a difference
            digest = "none"
        about = {"component": component, "folder": str(folder), "manifest_digest": digest}
        cells = [
            {
                **{name: row[name] for name in ("what", "file", "expected", "found")},
                "kind": DIFFERENCE_KINDS.get(row["what"], "made otherwise"),
                "what_to_do": f"{row['remedy'][:1].upper()}{row['remedy'][1:]}.",
            }
            for row in rows[component]
        ]
        table += [about | each for each in cells or [no_difference]]
    return pd.DataFrame(table, columns=list(DIFFERENCE_COLUMNS))


def hand_off_evidence(declared: Sequence[str] | None, found: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Build a row per change, sorted by name: `declared` (None from scratch), or `found`, name → before and after. Else a status."""
    rows: list[tuple[object, ...]] = []
    if declared is None:
        rows.append(("from scratch", False, False, "nothing", "fresh weights", "from scratch"))
    elif not declared and not found:
        rows.append(("no change", False, False, "the parent's", "the parent's", "no change"))
    else:
        for name in sorted({*declared, *found}):
            before, after = found.get(name, ("", ""))
            status = "found undeclared" if name not in declared else "declared and found" if name in found else "declared not found"
            rows.append((name, name in declared, name in found, before, after, status))
    return pd.DataFrame(rows, columns=list(HAND_OFF_COLUMNS))
