"""What is cached against what the sources demand now, difference by difference."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.data.plan import ComponentPlan
from tasks.home import Home
from trainer.data.manifest import MANIFEST_NAME, Manifest, SourceFile, Split, read_manifest
from trainer.errors import DataError
from trainer.storage import digest_of_file

SPLITS: tuple[Split, ...] = ("train", "held_out")


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it should be; what is not there is named `nothing`."""

    what: str
    file: str
    expected: str
    found: str

    def as_json(self) -> dict[str, str]:
        """In the shape of `phasewise data verify --json`."""
        return asdict(self)


def verify_component(component: ComponentPlan, home: Home) -> list[Difference]:
    """Every difference of a component's two caches."""
    return [difference for split in SPLITS for difference in _verify(component, split, home)]


def _verify(component: ComponentPlan, split: Split, home: Home) -> list[Difference]:
    cache = component.cache(split)
    if cache.is_built:
        return _damages(cache.folder, component, split)
    others = [path.parent for path in (home.root / "tokens" / component.name).glob(f"{split}-*/{MANIFEST_NAME}")]
    if not others:
        return [Difference(f"{split} cache not built", str(cache.folder), cache.key[:16], "nothing")]
    latest = max(others, key=lambda folder: (folder / MANIFEST_NAME).stat().st_mtime)
    return _changes(component, split, latest)


def _damages(folder: Path, component: ComponentPlan, split: Split) -> list[Difference]:
    """Whether the files of a cache are those that its manifest names."""
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return [Difference("manifest does not read", str(folder / MANIFEST_NAME), "a manifest", str(error))]
    expected_key = component.cache(split).key
    found = [] if manifest.key == expected_key else [Difference("manifest edited", str(folder), expected_key[:16], manifest.key[:16])]
    for shard in manifest.shards:
        for name, digest in ((f"{shard.name}.bin", shard.digest), (f"{shard.name}.parquet", shard.index_digest)):
            path = folder / name
            actual = digest_of_file(path) if path.exists() else "nothing"
            if actual != digest:
                found.append(Difference("shard damaged", str(path), digest[:16], actual[:16]))
    return found


def _changes(component: ComponentPlan, split: Split, cached: Path) -> list[Difference]:
    """Why the cache that is there is not the one that must be."""
    try:
        manifest = read_manifest(cached)
    except DataError as error:
        return [Difference("manifest does not read", str(cached / MANIFEST_NAME), "a manifest", str(error))]
    found = _changed_files(component.files, manifest)
    source = component.source
    for what, now, then in (("include filter", source.include, manifest.include), ("exclude filter", source.exclude, manifest.exclude)):
        if now != then:
            found.append(Difference(f"{what} changed", str(cached), ", ".join(now) or "nothing", ", ".join(then) or "nothing"))
    return found or [Difference("tokenizer, reader or settings changed", str(cached), component.cache(split).key[:16], manifest.key[:16])]


def _changed_files(now: tuple[SourceFile, ...], manifest: Manifest) -> list[Difference]:
    current, cached = {file.url: file.digest for file in now}, {file.url: file.digest for file in manifest.sources}
    found: list[Difference] = []
    for url in sorted({*current, *cached}):
        if url not in cached:
            found.append(Difference("file added", url, current[url][:16], "nothing"))
        elif url not in current:
            found.append(Difference("file removed", url, "nothing", cached[url][:16]))
        elif current[url] != cached[url]:
            found.append(Difference("content changed", url, current[url][:16], cached[url][:16]))
    return found
