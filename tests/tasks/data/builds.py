"""A component's documents and caches without Dask, one task after another."""

from pathlib import Path

from phasewise.tasks.data.caches import encode_part, finish_cache
from phasewise.tasks.data.documents import (
    Bundle,
    DocumentsManifest,
    bucket_ranges,
    find_copies,
    finish_documents,
    read_documents_manifest,
    read_to_parts,
)
from phasewise.tasks.data.filters import LengthBias
from phasewise.tasks.data.listing import Listing, fingerprint
from phasewise.tasks.data.reading import pieces_of
from phasewise.tasks.data.source import Source
from phasewise.trainer.data.manifest import Manifest, Split


def bundles(source: Source, listing: Listing) -> tuple[Bundle, ...]:
    return tuple(Bundle("web", source, (piece,), number) for number, piece in enumerate(pieces_of(source, listing.files)))


def write_documents(source: Source, folder: Path, max_part_bytes: int = 1 << 20) -> DocumentsManifest:
    listing = fingerprint(source)
    records = [read_to_parts(bundle, max_part_bytes, folder) for bundle in bundles(source, listing)]
    kept = [find_copies(folder, ranges, bucket) for bucket, ranges in enumerate(bucket_ranges(records))]
    return finish_documents("web", source, listing, records, kept, folder)


def build_cache(
    documents: Path, split: Split, tokenizer: Path, folder: Path, key: str = "key", *, length_bias: LengthBias | None = None
) -> Manifest:
    for number in range(len(read_documents_manifest(documents).parts)):
        encode_part(documents, number, tokenizer, {split: folder}, length_bias)
    return finish_cache("web", split, documents, tokenizer, key, folder, length_bias=length_bias)
