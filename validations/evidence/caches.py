"""Evidence about token caches: what they say that they hold. What they hold in truth is in the evidence about differences."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import read_manifest

TEST_LIKE = re.compile(r"(?<![a-z])(tests?|testing|dev|val|valid|validation|eval|evaluation|held[-_]?out)(?![a-z])", re.IGNORECASE)
FILES = " (files)"
"""Ends a reason of a manifest that counts files, and not documents."""
COLUMNS = (
    "component",
    "manifest_component",
    "split",
    "documents",
    "tokens",
    "shards",
    "left_out_percent",
    "left_out",
    "files_like_tests",
    "names_like_tests",
    "manifest_digest",
    "folder",
)


def cache_evidence(caches: Mapping[str, str | Path]) -> pd.DataFrame:
    """One row a cache, from its manifest. No shard is read.

    Args:
        caches: component → folder.

    Raises:
        DataError: a folder is not a finished cache.
    """
    return pd.DataFrame([_measure(component, as_path(folder)) for component, folder in caches.items()], columns=list(COLUMNS))


def _measure(component: str, folder: Path) -> dict[str, object]:
    manifest = read_manifest(folder)
    left_out = {reason: count for reason, count in manifest.left_out.items() if count and not reason.endswith(FILES)}
    total = sum(left_out.values())
    like_tests = names_like_tests(file.name for file in manifest.sources)
    return {
        "component": component,
        "manifest_component": manifest.component,
        "split": manifest.split,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": len(manifest.shards),
        "left_out_percent": 100 * total / max(1, total + manifest.documents),
        "left_out": ", ".join(f"{count:,} for {reason}" for reason, count in sorted(left_out.items(), key=lambda one: -one[1])) or "none",
        "files_like_tests": len(like_tests),
        "names_like_tests": name_some(like_tests),
        "manifest_digest": manifest.digest,
        "folder": str(folder),
    }


def names_like_tests(names: Iterable[str]) -> list[str]:
    """Names in which a folder or a part of the file's name says test, dev, validation or eval: such a file may hold test items.

    What is judged is the names that were read, whatever the globs looked like.
    """
    return [name for name in names if TEST_LIKE.search(name)]


def name_some(names: Iterable[str], max_named: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - max_named
    return ", ".join(names[:max_named]) + (f" and {more} more" if more > 0 else "")
