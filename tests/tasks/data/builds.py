"""A component's documents and caches without Dask, one task after another; and what goes wrong with its files."""

import io
import os
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

from experiments.near_copies import one_by_one
from phasewise.tasks.data import documents
from phasewise.tasks.data.caches import encode_part, finish_cache
from phasewise.tasks.data.documents import Bundle, DocumentsManifest, bucket_ranges, find_copies, finish_documents, read_to_parts
from phasewise.tasks.data.filters import LengthBias
from phasewise.tasks.data.listing import Listing, fingerprint
from phasewise.tasks.data.near_copies import find_near_copies
from phasewise.tasks.data.reading import pieces_of
from phasewise.tasks.data.source import Source
from phasewise.trainer.data.manifest import Manifest, Split


def bundles(source: Source, listing: Listing) -> tuple[Bundle, ...]:
    return tuple(Bundle("web", source, (piece,), number) for number, piece in enumerate(pieces_of(source, listing.files)))


def write_documents(source: Source, folder: Path, max_part_bytes: int = 1 << 20, evidence: Path | None = None) -> DocumentsManifest:
    listing = fingerprint(source)
    records = [read_to_parts(bundle, max_part_bytes, folder) for bundle in bundles(source, listing)]
    kept = [find_copies(folder, ranges, bucket) for bucket, ranges in enumerate(bucket_ranges(records))]
    if evidence is not None:
        kept.append(find_near_copies("web", records, folder, evidence=evidence, num_buckets=len(kept), run=one_by_one))
    return finish_documents("web", source, listing, records, kept, folder)


def build_cache(
    texts: Path, split: Split, tokenizer: Path, folder: Path, key: str = "key", length_bias: LengthBias | None = None
) -> Manifest:
    for number in range(len(documents.read_documents_manifest(texts).parts)):
        encode_part(texts, number, tokenizer, {split: folder}, length_bias)
    return finish_cache("web", split, texts, tokenizer, key, folder, length_bias=length_bias)


def edit_in_silence(path: Path) -> None:
    """Another letter: the size stays, and the time is set back."""
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"The", b"She", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


class Failing(io.BytesIO):
    failure: Exception
    after = 4

    def readinto(self, buffer: object, /) -> int:
        if self.tell() >= self.after:
            raise self.failure
        return super().readinto(memoryview(buffer)[: self.after])  # pyright: ignore[reportArgumentType]  # a buffer


class FailingFileSystem(MemoryFileSystem):
    """Where `failing://` reads from, when it is registered: the first bytes of the content, and then the failure."""

    protocol = "failing"
    content = b""

    def _open(self, path: str, *_: object, **__: object) -> Failing:
        return Failing(self.content)
