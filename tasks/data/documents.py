"""A component's documents: what was read, from which files, what was left out, and how to go through them again."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from phasewise.tasks.data.conversation_text import COMPOSER
from phasewise.tasks.data.filters import NORMALIZER
from phasewise.tasks.data.listing import Listing
from phasewise.tasks.data.parts import DIGEST, HELD_OUT_ONE_IN, BundleRecord, Part, read_model, read_part, record_name, write_model
from phasewise.tasks.data.quarantine import Tally, refusal, refusal_of_columns, refusal_of_empty, refusal_of_unread
from phasewise.tasks.data.reading import READER
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import check_file, code_digest, digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import remove_strays, write_atomically
from phasewise.trainer.data.manifest import MANIFEST_NAME, SourceFile, Split

DOCUMENTS_PER_BUCKET = 1 << 17
MAX_BUCKETS = 256
COPY = np.dtype([("part", "<u4"), ("row", "<u4")])
COPIES_NAME = "copies.bin"
DOCUMENTS_CODE = ("tasks/data/documents.py", "tasks/data/parts.py", "tasks/data/quarantine.py")
DOCUMENTS = f"documents-2+{code_digest(*DOCUMENTS_CODE)}"
QUARANTINE_NAME = "quarantine.jsonl"
DECISIVE_SETTINGS = ("format", "text_key", "conversation", "filters", "normalization")


def num_buckets(documents: int) -> int:
    """How many buckets so many documents need."""
    return min(MAX_BUCKETS, max(1, -(-documents // DOCUMENTS_PER_BUCKET)))


def bucket_name(bucket: int) -> str:
    """The file with a bucket's copies."""
    return f"copies-{bucket:03d}.bin"


class Kept(NamedTuple):
    """Documents of a bucket that are no copies, by split."""

    train: int
    held_out: int


class Range(NamedTuple):
    """Documents `[start, stop)` of a part, in the order of their digests."""

    part: str
    start: int
    stop: int


def ranges_of(records: Iterable[BundleRecord], bucket: int, buckets: int) -> tuple[Range, ...]:
    """What a bucket takes of each part: the digests whose first byte lies in its share of the 256."""
    low, high = (256 * edge // buckets for edge in (bucket, bucket + 1))
    return tuple(
        Range(part.name, starts[low], starts[high]) for record in records for part, starts in zip(record.parts, record.starts, strict=True)
    )


def find_copies(folder: Path, ranges: Sequence[Range], bucket: int) -> Kept:
    """Write which documents of a bucket repeat an earlier one, as (part number, row); how many others there are."""
    path = folder / bucket_name(bucket)
    found = [_digests(folder, wanted) for wanted in ranges]
    digests = np.concatenate([table["digest"] for table in found]) if found else np.empty(0, "V32")
    words = digests.view(">u8").reshape(-1, 4).astype(np.uint64)
    places = np.empty(len(digests), COPY)
    places["part"] = np.repeat(np.arange(len(found)), [len(table) for table in found])
    places["row"] = np.concatenate([table["row"] for table in found]) if found else 0
    order = np.lexsort((places["row"], places["part"], *words.T))
    in_order = words[order]
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (in_order[1:] == in_order[:-1]).all(axis=1)
    copies = np.sort(places[order][repeats], order=("part", "row"))
    write_atomically(path, copies.tobytes())
    held_out = int(is_held_out(in_order[~repeats, 0]).sum())
    return Kept(len(order) - len(copies) - held_out, held_out)


def join_buckets(folder: Path, buckets: int, num_parts: int) -> tuple[tuple[int, ...], str]:
    """Put the buckets' copies into one file, sorted by part and row; how many copies each part holds, and the file's digest."""
    found = [np.frombuffer((folder / bucket_name(bucket)).read_bytes(), COPY) for bucket in range(buckets)]
    copies = np.sort(np.concatenate(found), order=("part", "row"))
    content = copies["row"].tobytes()
    write_atomically(folder / COPIES_NAME, content)
    return tuple(int(count) for count in np.bincount(copies["part"], minlength=num_parts)), digest_of_bytes(content)


def is_held_out(first_words: np.ndarray) -> np.ndarray:
    """Whether documents belong to the held-out split, from the first eight bytes of their digests: `parts.split_of`, vectorised."""
    return (first_words >> np.uint64(32)) % np.uint64(HELD_OUT_ONE_IN) == 0


def _digests(folder: Path, wanted: Range) -> np.ndarray:
    size = DIGEST.itemsize
    return np.frombuffer(_read_range(folder / f"{wanted.part}.digests", size * wanted.start, size * wanted.stop), DIGEST)


def _read_range(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


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
    # The rows of a part that repeat an earlier document, sorted, given how many copies every part holds
    start = 4 * sum(manifest.copies[:number])
    count = 4 * manifest.copies[number]
    copies = np.frombuffer(_read_range(folder / COPIES_NAME, start, start + count), "<u4") if count else np.empty(0, np.uint32)
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
