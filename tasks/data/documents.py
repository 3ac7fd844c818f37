"""A component's documents: what was read, from which files, what was left out, and how to go through them again."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from phasewise.tasks.data import deduplicate, hashed_file, parts, quarantine
from phasewise.tasks.data.conversations.compose import COMPOSER
from phasewise.tasks.data.deduplicate import COPIES_NAME, Kept, copies_of_part, join_buckets
from phasewise.tasks.data.listing import Listing
from phasewise.tasks.data.normalize import NORMALIZER
from phasewise.tasks.data.parts import HELD_OUT_ONE_IN, BundleRecord, Part, read_part, record_name
from phasewise.tasks.data.quarantine import Tally, refusal, refusal_of_columns, refusal_of_empty, refusal_of_unread
from phasewise.tasks.data.reading import READER
from phasewise.tasks.data.records import read_model, write_model
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.code_digest import code_digest
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import check_file, digest_of_json
from phasewise.trainer.base.storage import remove_strays
from phasewise.trainer.data.manifest import MANIFEST_NAME, SourceFile, Split

DOCUMENTS_CODE: tuple[ModuleType, ...] = (parts, deduplicate, hashed_file, quarantine)
DOCUMENTS = f"documents-2+{code_digest(*DOCUMENTS_CODE)}"
QUARANTINE_NAME = "quarantine.jsonl"
DECISIVE_SETTINGS = ("format", "text_key", "conversation", "filters", "normalization")


class DocumentsManifest(Frozen):
    """Written last. `copies` says how many documents of each part repeat an earlier one and are skipped."""

    key: str
    source: dict[str, Any]
    sources: tuple[SourceFile, ...]
    parts: tuple[Part, ...]
    copies: tuple[int, ...]
    copies_digest: str
    tally: Tally
    train: int = Field(gt=0)
    held_out: int = Field(gt=0)

    @property
    def files(self) -> dict[str, str]:
        """The files beside it by name, and the digest of each."""
        return {COPIES_NAME: self.copies_digest, **{name: digest for part in self.parts for name, digest in part.files.items()}}


def documents_key(source: Source, listing: Listing) -> str:
    """Digest of everything that decides the documents. Where the files lie does not: a copied folder has the same key."""
    decisive = source.model_dump(mode="json", include=set(DECISIVE_SETTINGS))
    composer = {"composer": COMPOSER} if source.conversation else {}
    return digest_of_json(
        {
            "documents": DOCUMENTS,
            "reader": READER,
            **composer,
            "normalizer": NORMALIZER,
            "held_out_one_in": HELD_OUT_ONE_IN,
            "source": decisive,
            "files": [[file.name, file.digest] for file in listing.files],
            "rejected": [[file.name, file.reason] for file in listing.rejected],
        }
    )


def read_documents_manifest(folder: Path) -> DocumentsManifest:
    """The manifest in a folder of documents."""
    return read_model(DocumentsManifest, folder / MANIFEST_NAME)


def check_readable(component: str, source: Source, tally: Tally, folder: Path) -> None:
    """Refuse a component of which too much cannot be read or holds no text, or with a file of another format, or with unread columns.

    Samples are in its quarantine file.

    Raises:
        DataError: with the counts by reason, or the names.
    """
    if tally.unread_files:
        raise DataError(refusal_of_unread(component, source, tally, folder / QUARANTINE_NAME))
    if source.conversation and tally.unread:
        raise DataError(refusal_of_columns(component, source.conversation, tally))
    if tally.bad_fraction > source.max_bad_fraction:
        raise DataError(refusal(component, source, tally, folder / QUARANTINE_NAME))
    if tally.empty_fraction > source.max_empty_fraction:
        raise DataError(refusal_of_empty(component, source, tally))


def tally_of(records: Iterable[BundleRecord], listing: Listing) -> Tally:
    """The counts of all pieces, and of the files that were not to be read."""
    rejected = Tally(files=len(listing.rejected), bad_files={file.name: file.reason for file in listing.rejected})
    return sum((record.tally for record in records), rejected)


def finish_documents(
    component: str, source: Source, listing: Listing, records: list[BundleRecord], kept: list[Kept], folder: Path
) -> DocumentsManifest:
    """Put the pieces' records together and write the manifest, last.

    Raises:
        DataError: too much of the component cannot be read, or a split is empty.
    """
    tally = tally_of(records, listing)
    every = tuple(part for record in records for part in record.parts)
    train = sum(bucket.train for bucket in kept)
    held_out = sum(bucket.held_out for bucket in kept)
    if not (train and held_out):
        left_out = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(tally.left_out.items()))
        also = f" Left out: {left_out}; look at its filters, too." if left_out else ""
        raise DataError(
            f"component {component}: {train + held_out} documents in {len(listing.files)} files leave {train} to train on and "
            f"{held_out} held out; both need at least one. Add documents to {source.url}.{also}"
        )
    copies, copies_digest = join_buckets(folder, len(kept), len(every))
    manifest = DocumentsManifest(
        key=documents_key(source, listing),
        source=source.described(),
        sources=listing.files,
        parts=every,
        copies=copies,
        copies_digest=copies_digest,
        tally=tally,
        train=train,
        held_out=held_out,
    )
    files = {COPIES_NAME, QUARANTINE_NAME, *(record_name(number) for number in range(len(records)))}
    remove_strays(folder, {*files, *(f"{part.name}.{ending}" for part in every for ending in ("parquet", "digests"))})
    write_model(folder / MANIFEST_NAME, manifest)
    return manifest


def read_documents(folder: Path, manifest: DocumentsManifest, number: int) -> Iterator[pa.Table]:
    """The documents of one part without the copies, a bounded batch at a time: id, source_file, split, text, and of conversations spans.

    Raises:
        DataError: a file is not the one that was written.
    """
    check_once(folder / COPIES_NAME, manifest.copies_digest)
    copies = copies_of_part(folder, manifest.copies, number)
    row = 0
    for table in read_part(folder, manifest.parts[number]):
        within = copies[(copies >= row) & (copies < row + len(table))] - np.uint32(row)
        keep = np.ones(len(table), bool)
        keep[within] = False
        row += len(table)
        yield table.filter(pa.array(keep))


@lru_cache(maxsize=64)
def check_once(path: Path, digest: str) -> None:
    """A worker reads the file once for all parts; its folder is named by what decides it."""
    check_file(path, digest, f"Delete {path.parent} and prepare the data again.")


def split_texts(folder: Path, split: Split) -> Iterator[str]:
    """The texts of one split, in order."""
    manifest = read_documents_manifest(folder)
    for number in range(len(manifest.parts)):
        for table in read_documents(folder, manifest, number):
            yield from map(str, table.filter(pc.field("split") == split)["text"].to_pylist())
