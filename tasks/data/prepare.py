"""Data preparation, task by task. Each does what is missing, and nothing where nothing is."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from phasewise.tasks.data.caches import ENCODER, LENGTH_BIAS, ShardRecord, described, encode_part, finish_cache, read_by, shard_name
from phasewise.tasks.data.cluster import cluster, run_all
from phasewise.tasks.data.conversation_text import check_templates
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import (
    QUARANTINE_NAME,
    Kept,
    check_readable,
    documents_key,
    find_copies,
    finish_documents,
    num_buckets,
    ranges_of,
    read_documents_manifest,
    split_texts,
    tally_of,
)
from phasewise.tasks.data.filters import NORMALIZER
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.parts import BundleRecord, read_model, read_to_parts, record_name
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.quarantine import Counting, beside_of, left_out_of, refusal_of_columns, write_quarantine
from phasewise.tasks.data.reading import pieces_of, read_piece
from phasewise.tasks.data.stand_ins import StandIn, collect, missing_stand_ins, write_stand_ins, write_test_items
from phasewise.tasks.data.template import template_of
from phasewise.tasks.data.tokenizer import (
    check_special_tokens,
    check_tokenizer,
    fetch_tokenizer,
    load_tokenizer,
    shared_special_tokens,
    special_tokens,
    special_tokens_of,
    tokenizer_digest,
    train_tokenizer,
)
from phasewise.tasks.data.tokenizer_training import copy_tokenizer, names_folder
from phasewise.tasks.locks import held, held_all
from phasewise.tasks.progress import Meter, say
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file
from phasewise.trainer.base.storage import file_system_of, remove_strays, writing
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, SourceFile, Split, read_manifest

LOOKED_AT_RECORDS = 200
"""Of a component's first file: what its conversations do not read is known before everything is read."""


def adopt_documents(component: ComponentPlan) -> int:
    """Take over the bundles that a smaller budget has read; how many."""
    if component.listing.budget is None:
        return 0
    files, folder = max(_smaller_documents(component), default=(0, component.documents.folder))
    target, taken = component.documents.folder, 0
    for number in range(_bundles(component, files)):
        name = record_name(number)
        if (target / name).exists():
            continue
        for part in read_model(BundleRecord, folder / name).parts:
            for file, digest in part.files.items():
                check_file(folder / file, digest, f"Delete {folder} and prepare the data again.")
                _take(folder / file, target / file)
        _take(folder / name, target / name)
        taken += 1
    if taken:
        say(f"{component.name}: {taken:,} of {len(component.bundles):,} bundles were read for a smaller budget, and are not read again")
    return taken


def adopt_shards(component: ComponentPlan, split: Split, tokenizer: Path) -> int:
    """Take over the shards that a smaller budget has encoded; how many."""
    if component.listing.budget is None:
        return 0
    target = component.cache(split).folder
    files, folder = max(_smaller_caches(component, split, tokenizer), default=(0, component.documents.folder))
    last = f"part-{_bundles(component, files):05d}"
    parts = [part for part in read_documents_manifest(component.documents.folder).parts if part.name < last]
    taken = 0
    for number in range(len(parts)):
        record = f"{shard_name(number)}.json"
        if (target / record).exists() or not (folder / record).exists():
            continue
        for name in read_model(ShardRecord, folder / record).sizes:
            if (folder / name).exists():  # an empty shard has a record alone
                _take(folder / name, target / name)
        _take(folder / record, target / record)
        taken += 1
    return taken


def _smaller_documents(component: ComponentPlan) -> Iterator[tuple[int, Path]]:
    """Finished documents of a smaller budget, whose files are this one's first: how many files, and the folder."""
    for folder in _siblings(component.documents.folder):
        try:
            manifest = read_documents_manifest(folder)
        except (OSError, ValueError, DataError):
            continue
        if not _is_smaller(component, manifest.source, manifest.sources):
            continue
        first = replace(component.listing, files=component.files[: len(manifest.sources)])
        if documents_key(component.source, first) == manifest.key:
            yield len(manifest.sources), folder


def _smaller_caches(component: ComponentPlan, split: Split, tokenizer: Path) -> Iterator[tuple[int, Path]]:
    versions = (read_by(component.source.described()), NORMALIZER, ENCODER, tokenizer_digest(tokenizer))
    for folder in _siblings(component.cache(split).folder):
        if not folder.name.startswith(f"{split}-"):
            continue
        try:
            manifest = read_manifest(folder)
        except (OSError, DataError):
            continue
        made_by = (manifest.reader, manifest.normalizer, manifest.encoder, manifest.tokenizer_digest)
        source = dict(manifest.source)
        takes_alike = source.pop(LENGTH_BIAS, None) == described(component.bias_of(split)).get(LENGTH_BIAS)
        if made_by == versions and takes_alike and _is_smaller(component, source, manifest.sources):
            yield len(manifest.sources), folder


def _is_smaller(component: ComponentPlan, source: dict[str, object], files: tuple[SourceFile, ...]) -> bool:
    now = component.source.described()
    same = {**source, "budget": None} == {**now, "budget": None}
    budget = source.get("budget")
    divided_alike = isinstance(budget, dict) and budget["part_bytes"] == component.part_bytes  # pyright: ignore[reportUnknownVariableType]
    return same and divided_alike and files == component.files[: len(files)] and len(files) < len(component.files)


def _bundles(component: ComponentPlan, files: int) -> int:
    return len(pieces_of(component.source, component.files[:files]))


def _siblings(folder: Path) -> list[Path]:
    if not folder.parent.exists():
        return []
    return sorted(other for other in folder.parent.iterdir() if other.name != folder.name and (other / MANIFEST_NAME).exists())


def _take(found: Path, target: Path) -> None:
    if file_system_of(target) is None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(found, target)
            return
        except OSError:
            pass  # no links here
    with found.open("rb") as file, writing(target) as copy:
        shutil.copyfileobj(file, copy)


def collect_stand_ins(stand_ins: Mapping[str, StandIn], sources: Path) -> int:
    """Build the stand-ins that were never finished; how many components that were."""
    missing = missing_stand_ins(stand_ins, sources)
    if not missing:
        return 0
    say(f"collecting text from this Python installation for {len(missing)} components")
    found = run_all("stand-ins", collect, [(stand_ins[name],) for name in missing])
    for name in missing:
        if stand_ins[name].test_items:
            write_test_items(sources / name)
    written = write_stand_ins(dict(zip(missing, found, strict=True)), sources)
    say(f"wrote {sum(written.values()):,} documents under {sources}")
    return len(missing)


def write_missing_documents(plan: DataPlan) -> int:
    """Read every component whose documents are not there; how many that were.

    Raises:
        DataError: too much of a component cannot be read, or a split is empty.
    """
    everything = list(plan.components.values())
    with held_all([c.documents.lock for c in everything if not c.documents.is_built]):
        missing = [c for c in everything if not c.documents.is_built]
        if not missing:
            manifests = []
        else:
            _say_what_moves(missing)
            _look_at_conversations(missing)
            for component in missing:
                adopt_documents(component)
            with cluster():
                calls = [
                    (bundle, component.part_bytes, component.documents.folder) for component in missing for bundle in component.bundles
                ]
                records = iter(run_all("documents", read_to_parts, calls, _meter(missing)))
                records = {component.name: list(islice(records, len(component.bundles))) for component in missing}
                _check_readable(missing, records)
                plan.digests.forget_unsettled()
                for component in missing:
                    _check_unchanged(component, plan.digests)
                plan.digests.keep()
                kept = _find_copies(missing, records)
            manifests = [finish_documents(c.name, c.source, c.listing, records[c.name], kept[c.name], c.documents.folder) for c in missing]
    for component in everything:
        tally = read_documents_manifest(component.documents.folder).tally
        check_readable(component.name, component.source, tally, component.documents.folder)
    if missing:
        train = sum(m.train for m in manifests)
        held_out = sum(m.held_out for m in manifests)
        say(f"{len(missing)} components: {train:,} documents to train on, {held_out:,} held out")
    return len(missing)


def make_missing_tokenizer(plan: DataPlan, vocab_size: int, name: str | None) -> bool:
    """Fetch the tokenizer by its name, or train it, unless it is there; whether anything was done.

    Raises:
        ConfigError: its name is a folder that has none.
        DataError: it cannot be fetched, was changed after it was written, lacks a special token of documents or of a chat
            template, or has more entries than `vocab_size`.
    """
    is_made = not plan.tokenizer.exists() and _make_tokenizer(plan, vocab_size, name)
    check_special_tokens(plan.tokenizer, vocab_size)
    check_templates(plan.tokenizer, plan.chats_of(plan.components))
    return is_made


def _make_tokenizer(plan: DataPlan, vocab_size: int, name: str | None) -> bool:
    with held(plan.lock):
        if plan.tokenizer.exists():
            return False
        remove_strays(plan.tokenizer.parent, ())
        if name is not None and names_folder(name):
            say(f"taking the tokenizer of {name}")
            copy_tokenizer(name, vocab_size, plan.tokenizer)
            return True
        if name is not None:
            say(f"fetching the tokenizer {name}")
            fetch_tokenizer(name, plan.tokenizer)
            return True
        say(f"training a byte-level BPE tokenizer with {vocab_size:,} entries")
        texts = (split_texts(plan.components[name].documents.folder, "train") for name in plan.tokenizer_components)
        train_tokenizer(texts, vocab_size, plan.tokenizer, plan.special_tokens)
        return True


def build_missing_caches(plan: DataPlan) -> int:
    """Tokenize what is not cached yet; how many caches that were.

    Raises:
        DataError: a pinned cache is not there, for what is pinned is never built; or its documents begin or end with other tokens.
    """
    everything = [(c, c.cache(split)) for c in plan.components.values() for split in SPLITS]
    for component, cache in everything:
        if cache.pin and not cache.is_built:
            raise DataError(f"component {component.name} is pinned to {cache.folder}, where no finished token cache is.")
    # Refuse pinned caches whose documents begin or end with other tokens than those that are made here
    pinned = [cache.folder for component in plan.components.values() for cache in map(component.cache, SPLITS) if cache.pin]
    found = {str(folder): special_tokens_of(read_manifest(folder)) for folder in pinned}
    if found:
        shared_special_tokens({"the tokenizer": special_tokens(load_tokenizer(plan.tokenizer), plan.tokenizer), **found})
    with held_all([cache.lock for _, cache in everything if not cache.is_built]):
        missing: list[tuple[ComponentPlan, Split]] = [
            (c, split) for c in plan.components.values() for split in SPLITS if not c.cache(split).is_built
        ]
        if missing:
            check_tokenizer(plan.tokenizer)
        for component, split in missing:
            adopt_shards(component, split, plan.tokenizer)
        run_all("token caches", encode_part, _parts_to_encode(plan, missing))
        manifests = [
            finish_cache(
                c.name,
                split,
                c.documents.folder,
                plan.tokenizer,
                c.cache(split).key,
                c.cache(split).folder,
                length_bias=c.bias_of(split),
            )
            for c, split in missing
        ]
    if missing:
        say(f"{len(missing)} token caches with {sum(manifest.tokens for manifest in manifests):,} tokens")
    return len(missing)


def _say_what_moves(missing: Sequence[ComponentPlan]) -> None:
    """A branch may be elsewhere tomorrow, and then its caches are others: the commit that is read is said once."""
    for component in missing:
        commit = component.source.revision
        if commit and not commit.startswith(component.revision or "main"):
            name = component.revision or "the default branch"
            say(f"{component.name}: {component.source.url}, {name}, is read at {commit}. Name that as its revision to read the same later.")


def _look_at_conversations(missing: Sequence[ComponentPlan]) -> None:
    """Warn of templates that open no answer, and refuse columns that nothing reads by the first records, before all are read."""
    refusals: list[str] = []
    for component in missing:
        if (how := component.source.conversation) is None or not component.bundles:
            continue
        chat = template_of(how)
        if opening := chat.missing_generation_prompt():
            say(
                f"{component.name}: the chat template {chat.name} has no generation prompt: asked for an answer (add_generation_prompt), "
                f"it does not write {opening!r}. Training is the same; `phasewise export` asks whether to add it."
            )
        first = component.bundles[0].pieces[0]
        counting = Counting(component.name, first)
        with suppress(OSError):  # the workers ask again
            list(islice(counting.records(read_piece(component.source, first)), LOOKED_AT_RECORDS))
        if counting.tally.unread:
            refusals.append(refusal_of_columns(component.name, how, counting.tally))
    if refusals:
        raise DataError("\n".join(refusals))


def _check_readable(missing: Sequence[ComponentPlan], records: Mapping[str, list[BundleRecord]]) -> None:
    """Write the samples of what could not be read, say what it was, and refuse every component in which it is too much."""
    refusals: list[str] = []
    for component in missing:
        tally = tally_of(records[component.name], component.listing)
        if excluded := component.listing.excluded:
            globs = ", ".join(component.source.exclude)
            say(f"{component.name}: excluded by {globs}: {name_some(excluded, 3)}")
        quarantine = component.documents.folder / QUARANTINE_NAME
        write_quarantine(quarantine, tally.samples)
        try:
            check_readable(component.name, component.source, tally, component.documents.folder)
        except DataError as error:
            refusals.append(str(error))
        else:
            if tally.reasons:
                counts = ", ".join(f"{reason}: {count}" for reason, count in tally.reasons.items())
                say(f"{component.name}: within its limit, these could not be used: {counts}. Samples are in {quarantine}")
            if left_out := left_out_of(tally):
                say(f"{component.name}: left out: {left_out}")
            if beside := beside_of(tally):
                say(f"{component.name}: fields with text that are not read, and the share of documents that have them: {beside}")
    if refusals:
        raise DataError("\n".join(refusals))


def _check_unchanged(component: ComponentPlan, digests: KnownDigests) -> None:
    """Refuse what was read from files that were changed meanwhile: the manifest would name other contents."""
    budget = component.listing.budget
    now = fingerprint(component.source, digests, budget and budget.tokens)
    if now == component.listing:
        return
    before, after = ({file.name: file for file in listing.files} for listing in (component.listing, now))
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    remove_strays(component.documents.folder, ())
    raise DataError(
        f"component {component.name}: {', '.join(changed[:3])} under {component.source.root} changed while the data were read. "
        "Run again when nobody writes there."
    )


def _meter(missing: Sequence[ComponentPlan]) -> Meter:
    """Of the bytes of all bundles, component by component. Those whose record is there are read already."""
    sizes, finished = list[int](), set[int]()
    for component in missing:
        of_file = {file.name: file.size_bytes for file in component.files}
        folder = component.documents.folder
        there = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
        for bundle in component.bundles:
            if record_name(bundle.number) in there:
                finished.add(len(sizes))
            sizes.append(sum((piece.stop or of_file[piece.name]) - (piece.start or 0) for piece in bundle.pieces))
    return Meter(sizes, finished)


def _find_copies(missing: Sequence[ComponentPlan], records: Mapping[str, list[BundleRecord]]) -> dict[str, list[Kept]]:
    buckets = {name: num_buckets(sum(part.documents for record in records[name] for part in record.parts)) for name in records}
    calls = [
        (component.documents.folder, ranges_of(records[component.name], bucket, buckets[component.name]), bucket)
        for component in missing
        for bucket in range(buckets[component.name])
    ]
    kept = iter(run_all("copies", find_copies, calls))
    return {component.name: list(islice(kept, buckets[component.name])) for component in missing}


def _parts_to_encode(plan: DataPlan, missing: Sequence[tuple[ComponentPlan, Split]]) -> list[tuple[object, ...]]:
    targets: dict[str, dict[Split, Path]] = {}
    for component, split in missing:
        targets.setdefault(component.name, {})[split] = component.cache(split).folder
    return [
        (plan.components[name].documents.folder, number, plan.tokenizer, folders, plan.components[name].length_bias)
        for name, folders in targets.items()
        for number in range(len(read_documents_manifest(plan.components[name].documents.folder).parts))
    ]
