"""Evidence about token caches: are they what their manifests say, and are their sources still what was read?"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from trainer.data.manifest import Manifest, SourceFile, read_manifest
from trainer.storage import as_path, digest_of_file

TEST_LIKE = re.compile(r"(?<![a-z])(tests?|testing|dev|val|valid|validation|eval|evaluation|held[-_]?out)(?![a-z])", re.IGNORECASE)
COLUMNS = (
    "component",
    "manifest_component",
    "split",
    "documents",
    "tokens",
    "shards",
    "damaged_shards",
    "stale_files",
    "differences",
    "files_like_tests",
    "names_like_tests",
    "manifest_digest",
    "folder",
)


def cache_evidence(caches: Mapping[str, Path], current_sources: Mapping[str, tuple[SourceFile, ...]]) -> pd.DataFrame:
    """One row a cache, measured against its manifest and against the source files as they are now.

    Args:
        caches: component → folder.
        current_sources: component → its source files, fingerprinted now. A component without an entry has none left.

    Raises:
        DataError: a folder is not a finished cache.
    """
    rows = [_measure(component, as_path(folder), current_sources.get(component, ())) for component, folder in caches.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _measure(component: str, folder: Path, current: Iterable[SourceFile]) -> dict[str, object]:
    manifest = read_manifest(folder)
    damaged = damaged_files(folder, manifest)
    stale = stale_files(manifest.sources, current)
    like_tests = names_like_tests(file.name for file in manifest.sources)
    differences = {"damaged": list(damaged), **stale}
    return {
        "component": component,
        "manifest_component": manifest.component,
        "split": manifest.split,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": len(manifest.shards),
        "damaged_shards": len({Path(name).stem for name in damaged}),
        "stale_files": sum(map(len, stale.values())),
        "differences": "; ".join(f"{kind}: {name_some(names)}" for kind, names in differences.items() if names),
        "files_like_tests": len(like_tests),
        "names_like_tests": name_some(like_tests),
        "manifest_digest": manifest.digest,
        "folder": str(folder),
    }


def damaged_files(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Names of the shard files that are missing or whose digest, computed now, is not the manifest's."""
    expected = {f"{shard.name}.bin": shard.digest for shard in manifest.shards}
    expected |= {f"{shard.name}.parquet": shard.index_digest for shard in manifest.shards}
    return tuple(name for name, digest in expected.items() if not _has_digest(folder / name, digest))


def stale_files(manifested: Iterable[SourceFile], current: Iterable[SourceFile]) -> dict[str, list[str]]:
    """Names of the sources that are `changed`, `missing` or `new` now, against what the manifest says was read."""
    before = {file.name: file.digest for file in manifested}
    now = {file.name: file.digest for file in current}
    return {
        "changed": sorted(name for name in before.keys() & now.keys() if before[name] != now[name]),
        "missing": sorted(before.keys() - now.keys()),
        "new": sorted(now.keys() - before.keys()),
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


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and digest_of_file(path) == digest
