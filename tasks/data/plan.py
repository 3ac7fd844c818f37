"""What the data of a recipe must be, worked out from its sources before anything is built."""

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from phasewise.tasks.data.caches import cache_key, encode_part
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import documents_key, find_copies, finish_documents, num_buckets, ranges_of
from phasewise.tasks.data.filters import LengthBias
from phasewise.tasks.data.listing import Listing, assumed_tokens, at_commit, budgeted, bundles_by_piece, fingerprint
from phasewise.tasks.data.parts import Bundle, bundles_of, part_bytes, read_to_parts
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.data.stand_ins import roots
from phasewise.tasks.data.template import ChatTemplate, resolved, special_tokens_in, template_of, template_text
from phasewise.tasks.data.tokenizer import tokenizer_key, train_tokenizer
from phasewise.tasks.data.tokenizer_training import content_name
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, SourceFile, Split, read_manifest

MEASURE_SECONDS = 10.0
ROUND_BYTES = 500_000
DOCUMENT_CHARACTERS = 2000
SAMPLE_VOCABULARY = 8192
BENCHMARKS_VERSION = "benchmarks-3"


@dataclass(frozen=True)
class Speed:
    """Of one process: tokens a second from files to shards, and by which tokenizer; how long that was measured."""

    tokens_per_second: float
    seconds: float
    tokenizer: str


def measure_speed(tokenizer: Path, seconds: float = MEASURE_SECONDS) -> Speed:
    """Prepare text of this installation again and again for about so many seconds.

    Args:
        tokenizer: the recipe's, if it is there; else one is trained on the sample, which is no part of what is measured.
    """
    with tempfile.TemporaryDirectory(prefix="phasewise-speed-") as name:
        folder = Path(name)
        source = _write_sample(folder / "sample")
        words = "the recipe's tokenizer"
        if not tokenizer.exists():
            tokenizer, words = folder / "tokenizer.json", f"a tokenizer of {SAMPLE_VOCABULARY:,} entries, because the recipe's is not here"
            train_tokenizer([_texts(folder / "sample")], SAMPLE_VOCABULARY, tokenizer)
        _prepare(source, folder / "first", tokenizer)  # what is loaded once is not measured
        began, tokens = time.monotonic(), 0
        for number in count():
            tokens += _prepare(source, folder / str(number), tokenizer)
            if (elapsed := time.monotonic() - began) >= seconds:
                return Speed(tokens / elapsed, elapsed, words)
    raise AssertionError


def _write_sample(folder: Path) -> Source:
    folder.mkdir(parents=True)
    found = 0
    with (folder / "sample.jsonl").open("w", encoding="utf-8") as lines:
        for path in sorted(roots()["stdlib"].glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            cut = (text[at : at + DOCUMENT_CHARACTERS] for at in range(0, len(text), DOCUMENT_CHARACTERS))
            lines.writelines(json.dumps({"text": document}) + "\n" for document in cut)
            found += len(text)
            if found >= ROUND_BYTES:
                break
    return Source(url=folder.as_uri(), include=("*.jsonl",), format="jsonl")


def _texts(folder: Path) -> Iterator[str]:
    with (folder / "sample.jsonl").open(encoding="utf-8") as lines:
        yield from (json.loads(line)["text"] for line in lines)


def _prepare(source: Source, folder: Path, tokenizer: Path) -> int:
    listing = fingerprint(source, KnownDigests())
    documents, targets = folder / "documents", cast(dict[Split, Path], {"train": folder / "train"})
    records = [read_to_parts(bundle, 2**24, documents) for bundle in bundles_of("sample", source, listing.files)]
    buckets = num_buckets(sum(part.documents for record in records for part in record.parts))
    kept = [find_copies(documents, ranges_of(records, bucket, buckets), bucket) for bucket in range(buckets)]
    manifest = finish_documents("sample", source, listing, records, kept, documents)
    for number in range(len(manifest.parts)):
        encode_part(documents, number, tokenizer, targets)
    return sum(json.loads(path.read_text())["shard"]["tokens"] for path in (folder / "train").glob("shard-*.json"))


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


def _of_component(component: ComponentPlan) -> dict[str, Any]:
    budget = component.listing.budget
    size = sum(file.size_bytes for file in component.files)
    built = component.train.is_built and component.held_out.is_built
    tokens = round(sum(assumed_tokens(component.source, file.name, file.size_bytes) for file in component.files))
    return {
        "name": component.name,
        "files": len(component.files),
        "of_files": budget.of_files if budget else len(component.files),
        "bytes": size,
        "of_bytes": budget.of_bytes if budget else size,
        "tokens": read_manifest(component.train.folder).tokens if built else tokens,
        "is_built": built,
        "tokens_left": 0 if built else tokens,
        "bytes_left": 0 if built else size,
    }


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


def project(plan: DataPlan, speed: Speed, *, workers: int, price_per_hour: float | None) -> dict[str, object]:
    """What is left to do for the caches that are not built, in the shape of `data prepare --plan --json`."""
    components = [_of_component(component) for component in plan.components.values()]
    tokens = sum(one["tokens_left"] for one in components)
    bytes_left = sum(one["bytes_left"] for one in components)
    seconds = tokens / (speed.tokens_per_second * workers)
    return {
        "components": components,
        "tokens": tokens,
        "bytes": bytes_left,
        "tokens_per_second": speed.tokens_per_second,
        "measured_seconds": speed.seconds,
        "measured_with": speed.tokenizer,
        "workers": workers,
        "hours": seconds / 3600,
        "bytes_per_second": bytes_left / seconds if seconds else 0.0,
        "price_per_hour": price_per_hour,
        "dollars": None if price_per_hour is None else price_per_hour * seconds / 3600,
    }


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
    held_out = {name: components[name].held_out.key for name in asked_of}
    return digest_of_json({"version": BENCHMARKS_VERSION, "held_out": held_out})


def _with_template(source: Source) -> Source:
    return source if source.conversation is None else source.but(conversation=resolved(source.conversation).model_dump())


def _written_by_templates(sources: Iterable[Source]) -> set[str]:
    found = [source.conversation for source in sources if source.conversation]
    return {token for how in found for token in special_tokens_in(template_text(how), how.special_tokens)}
