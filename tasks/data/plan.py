"""What the data of a recipe must be, worked out from its sources before anything is built."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.data.caches import cache_key
from tasks.data.documents import documents_key
from tasks.data.source import Source, fingerprint
from tasks.data.tokenizer import tokenizer_key
from tasks.home import Home
from trainer.data.manifest import MANIFEST_NAME, SourceFile, Split
from trainer.storage import digest_of_json

BENCHMARKS_VERSION = "benchmarks-2"


@dataclass(frozen=True)
class CachePlan:
    """A cache that must be there: its key and the folder named by it."""

    key: str
    folder: Path

    @property
    def is_built(self) -> bool:
        """Whether the manifest, which is written last, is there."""
        return (self.folder / MANIFEST_NAME).exists()


@dataclass(frozen=True)
class ComponentPlan:
    """One component: its files as they are now, and what follows from them."""

    name: str
    source: Source
    files: tuple[SourceFile, ...]
    documents: CachePlan
    train: CachePlan
    held_out: CachePlan

    def cache(self, split: Split) -> CachePlan:
        """The cache of a split."""
        return self.train if split == "train" else self.held_out


@dataclass(frozen=True)
class DataPlan:
    """All components of a recipe, the tokenizer, and the benchmarks made from what is held out."""

    components: dict[str, ComponentPlan]
    tokenizer: Path
    benchmarks: Path

    @property
    def is_built(self) -> bool:
        """Whether nothing is left to prepare."""
        caches = [cache for component in self.components.values() for cache in (component.train, component.held_out)]
        return all(cache.is_built for cache in caches) and self.tokenizer.exists() and (self.benchmarks / MANIFEST_NAME).exists()

    def folders(self, split: Split) -> dict[str, Path]:
        """Component → cache folder."""
        return {name: component.cache(split).folder for name, component in self.components.items()}


def plan_data(sources: Mapping[str, Source], home: Home, *, vocab_size: int, tokenizer_name: str | None = None) -> DataPlan:
    """Expand and fingerprint the sources; every key and folder follows from the digests.

    Raises:
        DataError: a component has no files.
    """
    files = {name: fingerprint(source) for name, source in sorted(sources.items())}
    documents = {name: documents_key(sources[name], files[name]) for name in files}
    tokenizer = tokenizer_key(documents.values(), vocab_size, tokenizer_name)

    def cache(name: str, split: Split) -> CachePlan:
        key = cache_key(documents[name], split, tokenizer)
        return CachePlan(key, home.tokens(name, split, key))

    components = {
        name: ComponentPlan(
            name=name,
            source=sources[name],
            files=files[name],
            documents=CachePlan(documents[name], home.documents(name, documents[name])),
            train=cache(name, "train"),
            held_out=cache(name, "held_out"),
        )
        for name in files
    }
    held_out = {name: component.held_out.key for name, component in components.items()}
    benchmarks = digest_of_json({"version": BENCHMARKS_VERSION, "held_out": held_out})
    return DataPlan(components, home.tokenizer(tokenizer) / "tokenizer.json", home.benchmarks(benchmarks))
