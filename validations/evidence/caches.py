"""Evidence about token caches: are they what their manifests say, and are their sources still what was read?"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from trainer.data.manifest import Manifest, SourceFile, read_manifest
from trainer.storage import digest_of_file

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
    rows = [_measure(component, Path(folder), current_sources.get(component, ())) for component, folder in caches.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _measure(component: str, folder: Path, current: Iterable[SourceFile]) -> dict[str, object]:
    manifest = read_manifest(folder)
    damaged = damaged_files(folder, manifest)
    stale = stale_files(manifest.sources, current)
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
        "manifest_digest": manifest.digest,
        "folder": str(folder),
    }


def damaged_files(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Names of the shard files that are missing or whose digest, computed now, is not the manifest's."""
    expected = {f"{shard.name}.bin": shard.digest for shard in manifest.shards}
    expected |= {f"{shard.name}.parquet": shard.index_digest for shard in manifest.shards}
    return tuple(name for name, digest in expected.items() if not _has_digest(folder / name, digest))


def stale_files(manifested: Iterable[SourceFile], current: Iterable[SourceFile]) -> dict[str, list[str]]:
    """URLs of the sources that are `changed`, `missing` or `new` now, against what the manifest says was read."""
    before = {file.url: file.digest for file in manifested}
    now = {file.url: file.digest for file in current}
    return {
        "changed": sorted(url for url in before.keys() & now.keys() if before[url] != now[url]),
        "missing": sorted(before.keys() - now.keys()),
        "new": sorted(now.keys() - before.keys()),
    }


def name_some(names: Iterable[str], max_named: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - max_named
    return ", ".join(names[:max_named]) + (f" and {more} more" if more > 0 else "")


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and digest_of_file(path) == digest
