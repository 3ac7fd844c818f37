"""The plan of a recipe's data: keys and folders, derived from the sources before any build."""

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import cast

from phasewise.tasks.data.caches import cache_key, encode_part
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import Bundle, bucket_ranges, bundles_of, documents_key, find_copies, finish_documents, read_to_parts
from phasewise.tasks.data.filters import LengthBias
from phasewise.tasks.data.listing import Budgeted, Listing, assumed_tokens, at_commit, fingerprint, part_bytes
from phasewise.tasks.data.near_copies import key_of_search
from phasewise.tasks.data.reading import pieces_of
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.data.stand_ins import roots
from phasewise.tasks.data.template import ChatTemplate, special_tokens_in, template_of, template_text
from phasewise.tasks.data.tokenizer import OUR_TOKENS, DocumentTokens, tokenizer_key, train_tokenizer
from phasewise.tasks.data.tokenizer_training import checked_file, names_folder
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_file, digest_of_json
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, Split, read_manifest

MEASURE_SECONDS = 10.0
SAMPLE_BYTES = 500_000
DOCUMENT_CHARACTERS = 2000
SAMPLE_VOCABULARY = 8192
BENCHMARKS_VERSION = "benchmarks-4"


@dataclass(frozen=True)
class CachePlan:
    """A folder with the key of the content in its name, and the lock for the build."""

    key: str
    folder: Path
    lock: Path
    pin: Pin | None = None

    @property
    def is_built(self) -> bool:
        """Whether the manifest exists, which is written last."""
        return (self.folder / MANIFEST_NAME).exists()


@dataclass(frozen=True)
class ComponentPlan:
    """A component: current files, documents and caches."""

    name: str
    source: Source  # a data set of the hub is at the listed commit
    listing: Listing
    documents: CachePlan
    train: CachePlan
    held_out: CachePlan
    near_copies: Path  # folder of the evidence on near copies
    revision: str | None = None  # the recipe's name for the commit
    length_bias: LengthBias | None = None  # selects training documents by their length. None takes all

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """The units of work. With a budget every piece is a bundle, because a larger budget must start with the same bundles."""
        if self.listing.budget is None:
            return bundles_of(self.name, self.source, self.listing.files)
        pieces = pieces_of(self.source, self.listing.files)
        return tuple(Bundle(self.name, self.source, (piece,), number) for number, piece in enumerate(pieces))

    @property
    def part_bytes(self) -> int:
        """The text bytes of a part of the documents."""
        return self.listing.budget.part_bytes if self.listing.budget else part_bytes(self.listing.files)

    @property
    def has_documents(self) -> bool:
        """Whether the documents are complete, with the evidence on near copies."""
        return self.documents.is_built and (self.source.deduplicate != "near" or (self.near_copies / MANIFEST_NAME).exists())

    def cache(self, split: Split) -> CachePlan:
        """The cache of a split."""
        return self.train if split == "train" else self.held_out

    def bias_of(self, split: Split) -> LengthBias | None:
        """The length bias of a split. Held-out text is always complete."""
        return self.length_bias if split == "train" else None


@dataclass(frozen=True)
class DataPlan:
    """The components of a recipe, the tokenizer, and the benchmarks made from held-out text."""

    components: dict[str, ComponentPlan]
    tokenizer_components: tuple[str, ...]
    tokenizer: Path
    benchmarks: Path
    benchmark_components: tuple[str, ...]
    lock: Path
    special_tokens: tuple[str, ...] = ()  # tokens of chat templates, sorted, without the BOS and EOS token
    around: DocumentTokens = OUR_TOKENS
    digests: KnownDigests = field(default_factory=KnownDigests, repr=False, compare=False)  # of the sources' files

    @property
    def is_built(self) -> bool:
        """Whether all caches, the tokenizer and the benchmarks are complete."""
        caches = [component.cache(split) for component in self.components.values() for split in SPLITS]
        return all(cache.is_built for cache in caches) and self.tokenizer.exists() and (self.benchmarks / MANIFEST_NAME).exists()

    def chats_of(self, names: Iterable[str]) -> tuple[ChatTemplate, ...]:
        """The chat templates of the named components that are conversations."""
        found = (self.components[name].source.conversation for name in names)
        return tuple(template_of(how) for how in found if how is not None)

    def folders(self, split: Split) -> dict[str, Path]:
        """Component → cache folder."""
        return {name: component.cache(split).folder for name, component in self.components.items()}


def plan_data(
    sources: Mapping[str, Source],
    home: Home,
    *,
    vocab_size: int,
    tokenizer_name: str | None = None,
    tokenizer_components: Collection[str] | None = None,
    special_tokens: Collection[str] = (),
    around: DocumentTokens = OUR_TOKENS,
    benchmark_components: Collection[str] | None = None,
    pins: Iterable[Pin] = (),
    digests: KnownDigests | None = None,
    budgets: Mapping[str, int] | None = None,
    length_bias: Mapping[str, LengthBias] = MappingProxyType({}),
) -> DataPlan:
    """List the files of the sources with their digests and derive every key and folder. A pin changes the folder and keeps the key.

    `tokenizer_name`: on the hub, or a folder. None trains a tokenizer on `tokenizer_components`. `special_tokens`: besides the tokens of
    chat templates. `budgets`: component → tokens to train on. None is all components, or no budget. Raises ConfigError or DataError as
    `expand`, `checked_file` and `template_of`.
    """
    digests = KnownDigests(home) if digests is None else digests
    fixed = {name: at_commit(source) for name, source in sorted(sources.items())}
    written: set[str] = set(special_tokens)
    for name, source in fixed.items():
        if source.conversation is not None:
            text = template_text(source.conversation)  # keys depend on the text, not on the file's name
            fixed[name] = source.but(conversation=source.conversation.but(template=text).model_dump())
            written.update(special_tokens_in(text, source.conversation.special_tokens))
    listings = {name: fingerprint(source, digests, (budgets or {}).get(name)) for name, source in fixed.items()}
    digests.keep()
    keys = {name: key_of_search(documents_key(fixed[name], one), fixed[name].deduplicate) for name, one in listings.items()}
    for name, listing in listings.items():
        if listing.budget:  # the files and the part size of a budget change the key, and the tokens do not
            keys[name] = digest_of_json({"documents": keys[name], "part_bytes": listing.budget.part_bytes})
    trained_on = tuple(sorted(keys if tokenizer_components is None else tokenizer_components))
    special = tuple(sorted(written))
    if tokenizer_name is not None and names_folder(tokenizer_name):
        tokenizer_name = f"sha256:{digest_of_file(checked_file(tokenizer_name))}"
    tokenizer = tokenizer_key((keys[name] for name in trained_on), vocab_size, tokenizer_name, special, around)
    pinned = {(pin.component, pin.split): pin for pin in pins}
    components: dict[str, ComponentPlan] = {}
    for name, key in keys.items():
        caches: list[CachePlan] = []
        for split in SPLITS:
            bias = length_bias.get(name) if split == "train" else None
            of_split = cache_key(key, split, tokenizer, bias)
            pin = pinned.get((name, split))
            folder = as_path(pin.url) if pin else home.tokens(name, split, of_split)
            caches.append(CachePlan(of_split, folder, home.lock(f"tokens-{name}-{split}-{of_split[:16]}"), pin))
        documents = CachePlan(key, home.keyed("documents", key, name), home.lock(f"documents-{name}-{key[:16]}"))
        source, listing = fixed[name], listings[name]
        if listing.budget:
            source = Budgeted.model_validate({**source.model_dump(), "budget": listing.budget.model_dump()})
        near, revision, bias = home.keyed("evidence", key, "near-copies"), sources[name].revision, length_bias.get(name)
        components[name] = ComponentPlan(name, source, listing, documents, *caches, near_copies=near, revision=revision, length_bias=bias)
    asked_of = tuple(sorted(components if benchmark_components is None else benchmark_components))
    splits = {split: {name: components[name].cache(split).key for name in asked_of} for split in SPLITS}
    benchmarks = digest_of_json({"version": BENCHMARKS_VERSION, **splits})
    path = home.keyed("tokenizers", tokenizer) / "tokenizer.json"
    lock = home.lock(f"recipe-{benchmarks[:16]}")
    return DataPlan(components, trained_on, path, home.keyed("benchmarks", benchmarks), asked_of, lock, special, around, digests)


@dataclass(frozen=True)
class Speed:
    """The measured speed of one process, from files to shards. `seconds`: of the measurement. `tokenizer`: its description."""

    tokens_per_second: float
    seconds: float
    tokenizer: str


def measure_speed(tokenizer: Path, seconds: float = MEASURE_SECONDS) -> Speed:
    """Prepare text of this Python installation for about the given time. A missing tokenizer is first trained on the sample."""
    with tempfile.TemporaryDirectory(prefix="phasewise-speed-") as name:
        folder = Path(name)
        sample = folder / "sample" / "sample.jsonl"
        sample.parent.mkdir()
        texts: list[str] = []
        for path in sorted(roots()["stdlib"].glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            texts += [text[start : start + DOCUMENT_CHARACTERS] for start in range(0, len(text), DOCUMENT_CHARACTERS)]
            if sum(map(len, texts)) >= SAMPLE_BYTES:
                break
        sample.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        source = Source(url=sample.parent.as_uri(), include=("*.jsonl",), format="jsonl")
        description = "the recipe's tokenizer"
        if not tokenizer.exists():
            tokenizer = folder / "tokenizer.json"
            description = f"a tokenizer of {SAMPLE_VOCABULARY:,} entries, because the recipe's tokenizer is missing"
            train_tokenizer([texts], SAMPLE_VOCABULARY, tokenizer)
        _prepare(source, folder / "first", tokenizer)  # loads libraries outside the measurement
        start, tokens, elapsed, rounds = time.monotonic(), 0, 0.0, 0
        while elapsed < seconds or not rounds:
            tokens += _prepare(source, folder / str(rounds), tokenizer)
            rounds += 1
            elapsed = time.monotonic() - start
        return Speed(tokens / elapsed, elapsed, description)


def _prepare(source: Source, folder: Path, tokenizer: Path) -> int:
    """Prepare a training cache without Dask and return its tokens."""
    listing = fingerprint(source, KnownDigests())
    documents = folder / "documents"
    targets = cast("dict[Split, Path]", {"train": folder / "train"})
    records = [read_to_parts(bundle, 2**24, documents) for bundle in bundles_of("sample", source, listing.files)]
    kept = [find_copies(documents, ranges, bucket) for bucket, ranges in enumerate(bucket_ranges(records))]
    manifest = finish_documents("sample", source, listing, records, kept, documents)
    for number in range(len(manifest.parts)):
        encode_part(documents, number, tokenizer, targets)
    return sum(json.loads(path.read_text())["shard"]["tokens"] for path in (folder / "train").glob("shard-*.json"))


def project(plan: DataPlan, speed: Speed, *, workers: int, price_per_hour: float | None) -> dict[str, object]:
    """The remaining work for missing caches, in the shape of `data prepare --plan --json`."""
    components: list[dict[str, object]] = []
    tokens_left = bytes_left = 0
    for component in plan.components.values():
        budget, files = component.listing.budget, component.listing.files
        size = sum(file.size_bytes for file in files)
        is_built = component.train.is_built and component.held_out.is_built
        tokens = round(sum(assumed_tokens(component.source, file.name, file.size_bytes) for file in files))
        tokens_left += 0 if is_built else tokens
        bytes_left += 0 if is_built else size
        components.append(
            {
                "name": component.name,
                "files": len(files),
                "of_files": budget.of_files if budget else len(files),
                "bytes": size,
                "of_bytes": budget.of_bytes if budget else size,
                "tokens": read_manifest(component.train.folder).tokens if is_built else tokens,
                "is_built": is_built,
                "tokens_left": 0 if is_built else tokens,
                "bytes_left": 0 if is_built else size,
            }
        )
    seconds = tokens_left / (speed.tokens_per_second * workers)
    return {
        "components": components,
        "tokens": tokens_left,
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
