"""Evidence about token caches: their manifests, their differences from the configuration, and the changes at the hand-off to the phase."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import read_manifest

TEST_LIKE = re.compile(r"(?<![a-z])(tests?|testing|dev|val|valid|validation|eval|evaluation|held[-_]?out)(?![a-z])", re.IGNORECASE)
FILES = " (files)"
"""Ends a reason of a manifest that counts files, and not documents."""
CACHE_COLUMNS = (
    "component", "manifest_component", "split", "documents", "tokens", "shards", "left_out_percent", "left_out", "files_like_tests",
    "names_like_tests", "manifest_digest", "folder",
)  # fmt: skip
DIFFERENCE_COLUMNS = ("component", "what", "kind", "file", "expected", "found", "what_to_do", "folder", "manifest_digest")
DIFFERENCE_KINDS = {
    "shard damaged": "damaged",
    "file no longer selected": "no longer selected",
    "file added": "files changed",
    "file removed": "files changed",
    "content changed": "files changed",
}
"""Difference → its kind, which has a check of its own; every other difference is `made otherwise`."""
HAND_OFF_COLUMNS = ("name", "declared", "found", "before", "after", "status")


def cache_evidence(caches: Mapping[str, str | Path]) -> pd.DataFrame:
    """One row a cache, from its manifest. No shard is read.

    Args:
        caches: component → folder.

    Raises:
        DataError: a folder is not a finished cache.
    """
    rows: list[dict[str, object]] = []
    for component, folder in caches.items():
        manifest = read_manifest(as_path(folder))
        left_out = {reason: count for reason, count in manifest.left_out.items() if count and not reason.endswith(FILES)}
        total = sum(left_out.values())
        like_tests = names_like_tests(file.name for file in manifest.sources)
        reasons = [f"{count:,} for {reason}" for reason, count in sorted(left_out.items(), key=lambda one: -one[1])]
        rows.append(
            {
                "component": component,
                "manifest_component": manifest.component,
                "split": manifest.split,
                "documents": manifest.documents,
                "tokens": manifest.tokens,
                "shards": len(manifest.shards),
                "left_out_percent": 100 * total / max(1, total + manifest.documents),
                "left_out": ", ".join(reasons) or "none",
                "files_like_tests": len(like_tests),
                "names_like_tests": name_some(like_tests),
                "manifest_digest": manifest.digest,
                "folder": str(as_path(folder)),
            }
        )
    return pd.DataFrame(rows, columns=list(CACHE_COLUMNS))


def names_like_tests(names: Iterable[str]) -> list[str]:
    """Names in which a folder or a part of the file's name says test, dev, validation or eval: such a file may hold test items.

    The names of files that were read count, whatever the globs looked like.
    """
    return [name for name in names if TEST_LIKE.search(name)]


def name_some(names: Iterable[str], max_named: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - max_named
    return ", ".join(names[:max_named]) + (f" and {more} more" if more > 0 else "")


def differences_evidence(rows: Mapping[str, Sequence[Mapping[str, str]]], caches: Mapping[str, str | Path]) -> pd.DataFrame:
    """One row a component × difference, as `phasewise data verify` finds them; a component without any has one of kind none.

    Args:
        rows: component → its differences, each with `what`, `file`, `expected`, `found` and `remedy`. A component that is not named was
            not verified: it has no row.
        caches: component → folder of the cache that is to be trained on; its differences may be those of other caches of the component.
    """
    no_difference = {"what": "none", "kind": "none", "file": "", "expected": "", "found": "", "what_to_do": ""}
    table: list[dict[str, str]] = []
    for component, folder in caches.items():
        if component not in rows:
            continue
        try:
            digest = read_manifest(folder).digest
        except DataError:  # a manifest that cannot be read is a difference of its own
            digest = "none"
        about = {"component": component, "folder": str(folder), "manifest_digest": digest}
        cells = [
            {
                "what": row["what"],
                "kind": DIFFERENCE_KINDS.get(row["what"], "made otherwise"),
                "file": row["file"],
                "expected": row["expected"],
                "found": row["found"],
                "what_to_do": f"{row['remedy'][:1].upper()}{row['remedy'][1:]}.",
            }
            for row in rows[component]
        ]
        table += [about | each for each in cells or [no_difference]]
    return pd.DataFrame(table, columns=list(DIFFERENCE_COLUMNS))


def hand_off_evidence(declared: Sequence[str] | None, found: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """One row a change, in the order of its name: the changes that a phase declares against those that it makes.

    A phase from scratch, and one that changes nothing, has one row with that status.

    Args:
        declared: names of the changes that the phase declares; None for a phase from scratch.
        found: name → before and after, in words, of the changes.
    """
    rows: list[tuple[object, ...]] = []
    if declared is None:
        rows.append(("from scratch", False, False, "nothing", "fresh weights", "from scratch"))
    elif not declared and not found:
        rows.append(("no change", False, False, "the parent's", "the parent's", "no change"))
    for name in sorted({*(declared or ()), *found} if declared is not None else ()):
        is_declared = name in (declared or ())
        before, after = found.get(name, ("", ""))
        status = "found undeclared" if not is_declared else "declared and found" if name in found else "declared not found"
        rows.append((name, is_declared, name in found, before, after, status))
    return pd.DataFrame(rows, columns=list(HAND_OFF_COLUMNS))
