"""A budget that was raised goes on with what a smaller one has made: its bundles and shards are taken over, not made again.

The files of the smaller budget are the first of the larger one, in the same order and the same parts. So the first bundles are the same,
and so are the shards of their parts: of copies the first in that order stays. What is taken over is a link where the file system has
links, else a copy. Only finished documents and caches are looked at.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from phasewise.tasks.data.caches import ENCODER, LENGTH_BIAS, described, read_by
from phasewise.tasks.data.documents import DocumentsManifest, documents_key, read_documents_manifest
from phasewise.tasks.data.encode import ShardRecord, shard_name
from phasewise.tasks.data.normalize import NORMALIZER
from phasewise.tasks.data.parts import BundleRecord, record_name
from phasewise.tasks.data.plan import ComponentPlan
from phasewise.tasks.data.reading import pieces_of
from phasewise.tasks.data.records import read_model
from phasewise.tasks.data.tokenizer import tokenizer_digest
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file
from phasewise.trainer.base.storage import file_system_of, writing
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, SourceFile, Split, read_manifest


def adopt_documents(component: ComponentPlan) -> int:
    """Take over the bundles that a smaller budget has read; how many."""
    if component.listing.budget is None:
        return 0
    found = [(len(manifest.sources), folder) for folder, manifest in _smaller_documents(component)]
    if not found:
        return 0
    files, folder = max(found, key=lambda one: one[0])
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
    found = [(len(manifest.sources), folder) for folder, manifest in _smaller_caches(component, split, tokenizer)]
    if not found:
        return 0
    files, folder = max(found, key=lambda one: one[0])
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


def _smaller_documents(component: ComponentPlan) -> Iterator[tuple[Path, DocumentsManifest]]:
    """Finished documents of a smaller budget, whose files are this one's first, made by the same code with the same settings."""
    for folder in _siblings(component.documents.folder):
        try:
            manifest = read_documents_manifest(folder)
        except (OSError, ValueError, DataError):
            continue
        if not _is_smaller(component, manifest.source, manifest.sources):
            continue
        first = replace(component.listing, files=component.files[: len(manifest.sources)])
        if documents_key(component.source, first) == manifest.key:
            yield folder, manifest


def _smaller_caches(component: ComponentPlan, split: Split, tokenizer: Path) -> Iterator[tuple[Path, Manifest]]:
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
            yield folder, manifest


def _is_smaller(component: ComponentPlan, source: dict[str, object], files: tuple[SourceFile, ...]) -> bool:
    """Whether what was made of these files of a source is the beginning of what is made now."""
    now = component.source.described()
    same = {**source, "budget": None} == {**now, "budget": None}
    budget = source.get("budget")
    divided_alike = isinstance(budget, dict) and budget["part_bytes"] == component.part_bytes  # pyright: ignore[reportUnknownVariableType]
    return same and divided_alike and files == component.files[: len(files)] and len(files) < len(component.files)


def _bundles(component: ComponentPlan, files: int) -> int:
    """How many bundles the first files are."""
    return len(pieces_of(component.source, component.files[:files]))


def _siblings(folder: Path) -> list[Path]:
    """Other finished folders beside this one."""
    if not folder.parent.exists():
        return []
    return sorted(other for other in folder.parent.iterdir() if other.name != folder.name and (other / MANIFEST_NAME).exists())


def _take(found: Path, target: Path) -> None:
    """Put a file that is never changed under another name, too."""
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
