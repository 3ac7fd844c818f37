"""What the data of a recipe must be, worked out from its sources before anything is built."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from phasewise.tasks.data.budget import budgeted, bundles_by_piece
from phasewise.tasks.data.caches import cache_key
from phasewise.tasks.data.conversations.template import ChatTemplate, resolved, special_tokens_in, template_of, template_text
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import documents_key
from phasewise.tasks.data.length_bias import LengthBias
from phasewise.tasks.data.listing import Listing, at_commit, fingerprint
from phasewise.tasks.data.parts import Bundle, bundles_of, part_bytes
from phasewise.tasks.data.pin import Pin
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.tokenizer import tokenizer_key
from phasewise.tasks.data.vocabularies.folder import content_name
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, SourceFile, Split

BENCHMARKS_VERSION = "benchmarks-3"


@dataclass(frozen=True)
class CachePlan:
    """A cache that must be there: its key, the folder named by it, and the lock for building it."""

    key: str
    folder: Path
    lock: Path
    pin: Pin | None = None

    @property
    def is_built(self) -> bool:
        """Whether the manifest, which is written last, is there."""
        return (self.folder / MANIFEST_NAME).exists()


@dataclass(frozen=True)
class ComponentPlan:
    """One component: its files as they are now, and what follows from them.

    Attributes:
        source: of a data set of the hub, at the commit that was listed.
        revision: what the recipe calls that commit.
        length_bias: which documents are trained on, by their length; None is all.
    """

    name: str
    source: Source
    listing: Listing
    documents: CachePlan
    train: CachePlan
    held_out: CachePlan
    revision: str | None = None
    length_bias: LengthBias | None = None

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files as they are now."""
        return self.listing.files

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """What one worker reads at a time."""
        if self.listing.budget:
            return bundles_by_piece(self.name, self.source, self.files)
        return bundles_of(self.name, self.source, self.files)

    @property
    def part_bytes(self) -> int:
        """How much text a part of the documents holds."""
        return self.listing.budget.part_bytes if self.listing.budget else part_bytes(self.files)

    def cache(self, split: Split) -> CachePlan:
        """The cache of a split."""
        return self.train if split == "train" else self.held_out

    def bias_of(self, split: Split) -> LengthBias | None:
        """Which documents of a split are taken. What is held out is measured on, and is whole."""
        return self.length_bias if split == "train" else None


@dataclass(frozen=True)
class DataPlan:
    """All components of a recipe, the tokenizer and what it is trained on, and the benchmarks made from what is held out.

    Attributes:
        special_tokens: of the tokenizer, besides those that begin and end a document: what chat templates write, sorted.
        digests: what was known of the sources' files when it was made, and can be asked again.
    """

    components: dict[str, ComponentPlan]
    tokenizer_components: tuple[str, ...]
    tokenizer: Path
    benchmarks: Path
    benchmark_components: tuple[str, ...]
    lock: Path
    special_tokens: tuple[str, ...] = ()
    digests: KnownDigests = field(default_factory=KnownDigests, repr=False, compare=False)

    @property
    def is_built(self) -> bool:
        """Whether nothing is left to prepare."""
        caches = [cache for component in self.components.values() for cache in (component.train, component.held_out)]
        return all(cache.is_built for cache in caches) and self.tokenizer.exists() and self.has_benchmarks

    def chats_of(self, names: Iterable[str]) -> tuple[ChatTemplate, ...]:
        """The chat templates of those components that are conversations."""
        found = (self.components[name].source.conversation for name in names)
        return tuple(template_of(how) for how in found if how is not None)

    @property
    def has_benchmarks(self) -> bool:
        """Whether the benchmarks are made."""
        return (self.benchmarks / MANIFEST_NAME).exists()

    def folders(self, split: Split) -> dict[str, Path]:
        """Component → cache folder."""
        return {name: component.cache(split).folder for name, component in self.components.items()}


def key_of_documents(source: Source, listing: Listing) -> str:
    """Digest of everything that decides a component's documents. A budget decides by the files that it chose, and how they are divided."""
    key = documents_key(source, listing)
    return key if listing.budget is None else digest_of_json({"documents": key, "part_bytes": listing.budget.part_bytes})


def plan_data(
    sources: Mapping[str, Source],
    home: Home,
    *,
    vocab_size: int,
    tokenizer_name: str | None = None,
    tokenizer_components: Collection[str] | None = None,
    special_tokens: Collection[str] = (),
    benchmark_components: Collection[str] | None = None,
    pins: Iterable[Pin] = (),
    digests: KnownDigests | None = None,
    budgets: Mapping[str, int] | None = None,
    length_bias: Mapping[str, LengthBias] = MappingProxyType({}),
) -> DataPlan:
    """Expand and fingerprint the sources; every key and folder follows from the digests. A pin names another folder, not another key.

    Args:
        tokenizer_name: of the hub, or a folder as `names_folder` says; None is trained here.
        tokenizer_components: those that the tokenizer is trained on; None is all.
        special_tokens: that it must have besides those of the chat templates of these sources.
        benchmark_components: those from whose held-out text the benchmarks are made; None is all.
        digests: the files' contents as this command knows them; None is what the home keeps of earlier commands.
        budgets: component → tokens of which a part of its files will do; of the others everything is read.
        length_bias: component → which of its documents are trained on, by their length.

    Raises:
        ConfigError: the folder of the tokenizer has none, or a chat template cannot be used.
        DataError: a component has no files, or the tokenizer in a folder was changed after it was written.
    """
    digests = KnownDigests(home) if digests is None else digests
    fixed = {name: _with_template(at_commit(source)) for name, source in sorted(sources.items())}
    listings = {name: fingerprint(source, digests, (budgets or {}).get(name)) for name, source in fixed.items()}
    digests.keep()
    documents = {name: key_of_documents(fixed[name], listings[name]) for name in listings}
    trained_on = tuple(sorted(documents if tokenizer_components is None else tokenizer_components))
    special = tuple(sorted({*special_tokens, *_written_by_templates(fixed.values())}))
    tokenizer = tokenizer_key((documents[name] for name in trained_on), vocab_size, content_name(tokenizer_name), special)
    pinned = {(pin.component, pin.split): pin for pin in pins}

    def cache(name: str, split: Split) -> CachePlan:
        key = cache_key(documents[name], split, tokenizer, length_bias.get(name) if split == "train" else None)
        folder = as_path(pin.url) if (pin := pinned.get((name, split))) else home.tokens(name, split, key)
        return CachePlan(key, folder, home.lock(f"tokens-{name}-{split}-{key[:16]}"), pin)

    def component(name: str, key: str) -> ComponentPlan:
        written = CachePlan(key, home.documents(name, key), home.lock(f"documents-{name}-{key[:16]}"))
        read, caches = budgeted(fixed[name], listings[name].budget), (cache(name, split) for split in SPLITS)
        revision, bias = sources[name].revision, length_bias.get(name)
        return ComponentPlan(name, read, listings[name], written, *caches, revision=revision, length_bias=bias)

    components = {name: component(name, key) for name, key in documents.items()}
    asked_of = tuple(sorted(components if benchmark_components is None else benchmark_components))
    benchmarks = _benchmarks_key(components, asked_of)
    places = home.tokenizer(tokenizer) / "tokenizer.json", home.benchmarks(benchmarks)
    lock = home.lock(f"recipe-{benchmarks[:16]}")
    return DataPlan(components, trained_on, *places, asked_of, lock, special, digests)


def _benchmarks_key(components: Mapping[str, ComponentPlan], asked_of: Iterable[str]) -> str:
    """Digest of everything that decides the benchmarks."""
    held_out = {name: components[name].held_out.key for name in asked_of}
    return digest_of_json({"version": BENCHMARKS_VERSION, "held_out": held_out})


def _with_template(source: Source) -> Source:
    """With its chat template itself, wherever that was named from."""
    return source if source.conversation is None else source.but(conversation=resolved(source.conversation).model_dump())


def _written_by_templates(sources: Iterable[Source]) -> set[str]:
    """The special tokens of the chat templates of some sources."""
    found = [source.conversation for source in sources if source.conversation]
    return {token for how in found for token in special_tokens_in(template_text(how), how.special_tokens)}
