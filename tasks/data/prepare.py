"""The stages of data preparation. Each stage creates only missing outputs."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from phasewise.tasks.data.caches import ENCODER, LENGTH_BIAS, ShardRecord, described, encode_part, finish_cache, read_by, shard_name
from phasewise.tasks.data.cluster import Shared, one_cluster, run_all
from phasewise.tasks.data.conversation_text import ids_of_tokens
from phasewise.tasks.data.documents import (
    Bundle,
    BundleRecord,
    bucket_ranges,
    documents_key,
    find_copies,
    finish_documents,
    read_documents_manifest,
    read_model,
    read_to_parts,
    record_name,
    split_texts,
    tally_of,
)
from phasewise.tasks.data.filters import NORMALIZER
from phasewise.tasks.data.findings import QUARANTINE_NAME, Counting, check_readable, left_out_of, refusal_of_columns
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.near_copies import find_near_copies, keep_copies
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.reading import pieces_of, read_piece
from phasewise.tasks.data.stand_ins import TEST_NAME, StandIn, collect, missing_stand_ins, word_problems, write_stand_ins
from phasewise.tasks.data.template import template_of
from phasewise.tasks.data.tokenizer import (
    SpecialTokens,
    check_special_tokens,
    check_tokenizer,
    fetch_tokenizer,
    load_tokenizer,
    shared_special_tokens,
    special_tokens,
    train_tokenizer,
    write_tokenizer,
)
from phasewise.tasks.data.tokenizer_training import copy_tokenizer, names_folder
from phasewise.tasks.locks import held, held_all
from phasewise.tasks.progress import Meter, explain, say
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file, digest_of_file
from phasewise.trainer.base.storage import file_system_of, remove_strays, write_atomically, writing
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, SourceFile, Split, read_manifest

SAMPLED_RECORDS = 200  # records of a component's first file that show unread columns before all files are read


def collect_stand_ins(stand_ins: Mapping[str, StandIn], sources: Path, shared: Shared | None = None) -> int:
    """Build the missing proxy data sets, on a shared cluster if one is given, and return their number."""
    missing = missing_stand_ins(stand_ins, sources)
    if not missing:
        return 0
    say(f"collecting text from this Python installation for {len(missing)} components")
    found = run_all("stand-ins", collect, [(stand_ins[name],) for name in missing], shared=shared)
    for name in missing:
        if stand_ins[name].test_items:
            rows = [{"id": one.id, "text": f"Question: {one.question}\nAnswer: {one.solution}"} for one in word_problems()]  # as OLMES
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            write_atomically(sources / name / TEST_NAME, lines.encode())
    written = write_stand_ins(dict(zip(missing, found, strict=True)), sources)
    say(f"wrote {sum(written.values()):,} documents under {sources}")
    return len(missing)


def write_missing_documents(plan: DataPlan, shared: Shared | None = None) -> int:
    """Write missing documents. Raises DataError if too much is unreadable, a split is empty, or a file changed meanwhile."""
    everything, digests = list(plan.components.values()), plan.digests
    train = held_out = 0
    with held_all([component.documents.lock for component in everything if not component.has_documents]), one_cluster() as own:
        missing = [component for component in everything if not component.has_documents]
        if missing:
            _check_first_records(missing)
            for component in missing:
                _reuse_documents(component)
            bundles: list[tuple[Bundle, int, Path]] = []
            sizes: list[int] = []
            finished: set[int] = set()  # bundles with a record
            for component in missing:
                folder = component.documents.folder
                size_of = {file.name: file.size_bytes for file in component.listing.files}
                existing = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
                for bundle in component.bundles:
                    if record_name(bundle.number) in existing:
                        finished.add(len(sizes))
                    sizes.append(sum((piece.stop or size_of[piece.name]) - (piece.start or 0) for piece in bundle.pieces))
                    bundles.append((bundle, component.part_bytes, folder))
            read = iter(run_all("documents", read_to_parts, bundles, Meter(sizes, finished), shared or own))
            records = {component.name: list(islice(read, len(component.bundles))) for component in missing}

            _report_unreadable(missing, records)
            digests.forget_unsettled()
            for component in missing:
                listing, folder = component.listing, component.documents.folder
                now = fingerprint(component.source, digests, listing.budget and listing.budget.tokens)
                if now != listing:  # the manifest would list other digests
                    before, after = ({file.name: file for file in one.files} for one in (listing, now))
                    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
                    remove_strays(folder, ())
                    raise DataError(
                        f"component {component.name}: {', '.join(changed[:3])} under {component.source.root} changed while the data were "
                        "read. Run again when no process writes to this folder."
                    )
            digests.keep()

            kept = _leave_out_copies(missing, records, shared or own)
            for c in missing:
                manifest = finish_documents(c.name, c.source, c.listing, records[c.name], kept[c.name], c.documents.folder)
                train += manifest.train
                held_out += manifest.held_out
    for component in everything:
        tally = read_documents_manifest(component.documents.folder).tally
        check_readable(component.name, component.source, tally, component.documents.folder)
    if missing:
        say(f"{len(missing)} components: {train:,} documents to train on, {held_out:,} held out")
    return len(missing)


def _leave_out_copies(
    components: Sequence[ComponentPlan], records: Mapping[str, list[BundleRecord]], shared: Shared
) -> dict[str, list[tuple[int, int]]]:
    """Write the rows of the copies that each component leaves out. Return parts of the counts of other documents: training, held out."""
    run = partial(run_all, shared=shared)
    buckets = {name: list(enumerate(bucket_ranges(of_name))) for name, of_name in records.items()}
    searched = [c for c in components if c.source.deduplicate is not None]
    distinct = iter(
        run("copies", find_copies, [(c.documents.folder, ranges, bucket) for c in searched for bucket, ranges in buckets[c.name]])
    )
    kept: dict[str, list[tuple[int, int]]] = {}
    for c in components:
        folder, of_name = c.documents.folder, records[c.name]
        if c.source.deduplicate is None:
            kept[c.name] = [keep_copies(folder, ranges, bucket) for bucket, ranges in buckets[c.name]]
            continue
        kept[c.name] = list(islice(distinct, len(buckets[c.name])))
        if c.source.deduplicate == "near":
            kept[c.name].append(find_near_copies(c.name, of_name, folder, evidence=c.near_copies, num_buckets=len(kept[c.name]), run=run))
    return kept


def _check_first_records(missing: Sequence[ComponentPlan]) -> None:
    """Print the commit of a branch and templates without a generation prompt. Reject unread columns before all files are read."""
    refusals: list[str] = []
    for component in missing:
        commit = component.source.revision
        if commit and not commit.startswith(component.revision or "main"):
            branch = component.revision or "the default branch"
            say(
                f"{component.name}: {component.source.url}, {branch}, is read at {commit}. "
                "Name this commit as the revision to read the same files later."
            )
        how = component.source.conversation
        if how is None or not component.bundles:
            continue
        chat = template_of(how)
        if opening := chat.missing_generation_prompt():
            say(
                f"{component.name}: the chat template {chat.name} has no generation prompt: with add_generation_prompt "
                f"it does not write {opening!r}. Training is the same. `phasewise export` offers to add the prompt."
            )
        first = component.bundles[0].pieces[0]
        counting = Counting(component.name, first)
        with suppress(OSError):  # the workers retry
            list(islice(counting.records(read_piece(component.source, first)), SAMPLED_RECORDS))
        if counting.tally.unread:
            refusals.append(refusal_of_columns(component.name, how, counting.tally))
    if refusals:
        raise DataError("\n".join(refusals))


def _report_unreadable(missing: Sequence[ComponentPlan], records: Mapping[str, list[BundleRecord]]) -> None:
    """Write the samples of unusable records, print the counts, and reject each component that exceeds its limits."""
    refusals: list[str] = []
    for component in missing:
        tally = tally_of(records[component.name], component.listing)
        if excluded := component.listing.excluded:
            say(f"{component.name}: excluded by {', '.join(component.source.exclude)}: {name_some(excluded, 3)}")
        quarantine = component.documents.folder / QUARANTINE_NAME
        lines = [json.dumps(sample.model_dump(mode="json"), ensure_ascii=False) + "\n" for sample in tally.samples]
        write_atomically(quarantine, "".join(lines).encode())
        try:
            check_readable(component.name, component.source, tally, component.documents.folder)
        except DataError as error:
            refusals.append(str(error))
            continue
        if tally.reasons:
            counts = ", ".join(f"{reason}: {count}" for reason, count in tally.reasons.items())
            say(f"{component.name}: unusable, within the limit: {counts}. Samples are in {quarantine}")
        if left_out := left_out_of(tally):
            say(f"{component.name}: left out: {left_out}")
        if tally.beside:
            taken = max(1, tally.documents - sum(tally.left_out.values()) - sum(tally.bad_documents.values()))
            beside = ", ".join(f"{name} ({count / taken:.0%})" for name, count in tally.beside.items())
            explain(f"{component.name}: unread fields with text, and their share of the documents: {beside}")
    if refusals:
        raise DataError("\n".join(refusals))


def make_missing_tokenizer(plan: DataPlan, vocab_size: int, name: str | None) -> bool:
    """Copy, download or train a missing tokenizer, and return whether it was missing. Raises ConfigError or DataError for an unfit one."""
    path = plan.tokenizer
    is_missing = not path.exists()
    if is_missing:
        with held(plan.lock):
            is_missing = not path.exists()
            if is_missing:
                remove_strays(path.parent, ())
                if name is None:
                    say(f"training a byte-level BPE tokenizer with {vocab_size:,} entries")
                    texts = (split_texts(plan.components[one].documents.folder, "train") for one in plan.tokenizer_components)
                    train_tokenizer(texts, vocab_size, path, plan.special_tokens)
                elif names_folder(name):
                    say(f"copying the tokenizer of {name}")
                    copy_tokenizer(name, vocab_size, path, plan.around)
                else:
                    say(f"downloading the tokenizer {name}")
                    write_tokenizer(path, fetch_tokenizer(name), plan.around)
    check_special_tokens(path, vocab_size)
    tokenizer = load_tokenizer(path)
    for chat in plan.chats_of(plan.components):
        ids_of_tokens(tokenizer, chat, path)
    return is_missing


def build_missing_caches(plan: DataPlan, shared: Shared | None = None) -> int:
    """Tokenize the missing caches and return their number. Raises DataError for a pinned cache that is missing or does not fit."""
    everything: list[tuple[ComponentPlan, Split]] = [(component, split) for component in plan.components.values() for split in SPLITS]
    pinned = {str(cache.folder): (component, cache) for component, split in everything if (cache := component.cache(split)).pin}
    for folder, (component, cache) in pinned.items():
        if not cache.is_built:
            raise DataError(f"component {component.name} is pinned to {folder}, which has no finished token cache.")
    if pinned:
        manifests = {folder: read_manifest(cache.folder) for folder, (_, cache) in pinned.items()}
        found = {folder: SpecialTokens(one.begin_of_text, one.end_of_text) for folder, one in manifests.items()}
        shared_special_tokens({"the tokenizer": special_tokens(load_tokenizer(plan.tokenizer), plan.tokenizer), **found})
    with held_all([cache.lock for component, split in everything if not (cache := component.cache(split)).is_built]):
        missing: list[tuple[ComponentPlan, Split]] = [
            (component, split) for component, split in everything if not component.cache(split).is_built
        ]
        if missing:
            check_tokenizer(plan.tokenizer)
        targets: dict[str, dict[Split, Path]] = {}
        for component, split in missing:
            _reuse_shards(component, split, plan.tokenizer)
            targets.setdefault(component.name, {})[split] = component.cache(split).folder
        calls: list[tuple[object, ...]] = []
        for name, folders in targets.items():
            documents = plan.components[name].documents.folder
            num_parts = len(read_documents_manifest(documents).parts)
            calls += [(documents, number, plan.tokenizer, folders, plan.components[name].length_bias) for number in range(num_parts)]
        run_all("token caches", encode_part, calls, shared=shared)
        tokens = 0
        for component, split in missing:
            cache = component.cache(split)
            documents, bias = component.documents.folder, component.bias_of(split)
            tokens += finish_cache(component.name, split, documents, plan.tokenizer, cache.key, cache.folder, length_bias=bias).tokens
    if missing:
        say(f"{len(missing)} token caches with {tokens:,} tokens")
    return len(missing)


def _reuse_documents(component: ComponentPlan) -> None:
    """Link the bundles of the largest finished build with a smaller budget."""
    if component.listing.budget is None:
        return
    target = component.documents.folder
    smaller: list[tuple[int, Path]] = []
    for folder in sorted(path.parent for path in target.parent.glob(f"*/{MANIFEST_NAME}") if path.parent != target):
        try:
            manifest = read_documents_manifest(folder)
        except (OSError, ValueError, DataError):
            continue
        num_files = len(manifest.sources)
        first = replace(component.listing, files=component.listing.files[:num_files])
        if _has_smaller_budget(component, manifest.source, manifest.sources) and documents_key(component.source, first) == manifest.key:
            smaller.append((num_files, folder))
    num_files, folder = max(smaller, default=(0, target))
    reused = 0
    for number in range(len(pieces_of(component.source, component.listing.files[:num_files]))):
        name = record_name(number)
        if (target / name).exists():
            continue
        for part in read_model(BundleRecord, folder / name).parts:
            for file, digest in part.files.items():
                check_file(folder / file, digest, f"Delete {folder} and prepare the data again.")
                _link_or_copy(folder / file, target / file)
        _link_or_copy(folder / name, target / name)
        reused += 1
    if reused:
        say(f"{component.name}: reusing {reused:,} of {len(component.bundles):,} bundles of a smaller budget")


def _reuse_shards(component: ComponentPlan, split: Split, tokenizer: Path) -> None:
    """Link the shards of the largest finished cache with a smaller budget. More documents change which of them are near copies."""
    if component.listing.budget is None or component.source.deduplicate == "near":
        return
    target = component.cache(split).folder
    versions = (read_by(component.source.described()), NORMALIZER, ENCODER, digest_of_file(tokenizer))
    bias = described(component.bias_of(split)).get(LENGTH_BIAS)
    smaller: list[tuple[int, Path]] = []
    for folder in sorted(path.parent for path in target.parent.glob(f"{split}-*/{MANIFEST_NAME}") if path.parent != target):
        try:
            manifest = read_manifest(folder)
        except (OSError, DataError):
            continue
        source = dict(manifest.source)
        has_same_bias = source.pop(LENGTH_BIAS, None) == bias
        has_same_code = (manifest.reader, manifest.normalizer, manifest.encoder, manifest.tokenizer_digest) == versions
        if has_same_bias and has_same_code and _has_smaller_budget(component, source, manifest.sources):
            smaller.append((len(manifest.sources), folder))
    num_files, folder = max(smaller, default=(0, target))
    next_part = f"part-{len(pieces_of(component.source, component.listing.files[:num_files])):05d}"
    parts = [part for part in read_documents_manifest(component.documents.folder).parts if part.name < next_part]
    for number in range(len(parts)):
        record = f"{shard_name(number)}.json"
        if (target / record).exists() or not (folder / record).exists():
            continue
        for name in read_model(ShardRecord, folder / record).sizes:
            if (folder / name).exists():  # an empty shard has only a record
                _link_or_copy(folder / name, target / name)
        _link_or_copy(folder / record, target / record)


def _has_smaller_budget(component: ComponentPlan, source: dict[str, object], files: tuple[SourceFile, ...]) -> bool:
    """Whether a build of the same source has the same part size and only the first files of this component."""
    budget = source.get("budget")
    return (
        {**source, "budget": None} == {**component.source.described(), "budget": None}
        and isinstance(budget, dict)
        and budget["part_bytes"] == component.part_bytes  # pyright: ignore[reportUnknownVariableType]
        and files == component.listing.files[: len(files)]
        and len(files) < len(component.listing.files)
    )


def _link_or_copy(found: Path, target: Path) -> None:
    if file_system_of(target) is None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        with suppress(OSError):  # a file system without hard links
            os.link(found, target)
            return
    with found.open("rb") as file, writing(target) as copy:
        shutil.copyfileobj(file, copy)
