"""A component's documents: parts, the copies among them, and the manifest with sources and counts.

A part is a Parquet file of bounded size (id, source_file, split, text). One worker reads a *bundle*: a piece of a file, or consecutive
small pieces. `part-00012-0003` is the fourth part of bundle 12. `part-00012-0003.digests` has the sorted digests of the documents, for the
search for copies in the whole component. The record `bundle-00012.json` is written last. A bundle with a record is never read again.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from phasewise.tasks.data.conversation_text import COMPOSER
from phasewise.tasks.data.filters import NORMALIZER, normalize
from phasewise.tasks.data.findings import QUARANTINE_NAME, Counting, Tally
from phasewise.tasks.data.listing import Listing, part_bytes
from phasewise.tasks.data.reading import READER, pieces_of, read_piece
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import check_file, code_digest, digest_of_bytes, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import remove_strays, write_atomically, writing
from phasewise.trainer.data.manifest import MANIFEST_NAME, SourceFile, Split

Model = TypeVar("Model", bound=Frozen)
HELD_OUT_ONE_IN = 16
BATCH_BYTES = 1 << 20
DOCUMENT_BYTES = 256  # overhead of a document in memory
SCHEMA = pa.schema({"id": pa.string(), "source_file": pa.string(), "split": pa.string(), "text": pa.large_string()})
CONVERSATION_SCHEMA = SCHEMA.append(pa.field("spans", pa.list_(pa.int64())))
"""`spans` has the characters of the answers as start, stop, start, stop …, or null if the template does not mark answers."""
Row = tuple[str, str, str, str, list[int] | None]
DIGEST = np.dtype([("digest", "V32"), ("row", "<u4")])
DOCUMENTS_PER_BUCKET = 1 << 17
MAX_BUCKETS = 256
COPY = np.dtype([("part", "<u4"), ("row", "<u4")])
COPIES_NAME = "copies.bin"
check_once = lru_cache(maxsize=64)(check_file)  # safe, because a folder is named by the digest of its inputs
DOCUMENTS_CODE = ("tasks/data/documents.py", "tasks/data/findings.py")
DOCUMENTS = f"documents-2+{code_digest(*DOCUMENTS_CODE)}"
DECISIVE_SETTINGS = ("format", "text_key", "conversation", "filters", "normalization")


def write_model(path: Path, record: Frozen) -> None:
    """Write a record with its digest, atomically."""
    write_sealed(path, record.model_dump(mode="json"))


def read_model(model: type[Model], path: Path) -> Model:
    """Read a record. Raises DataError if the file is missing, invalid, or was edited."""
    try:
        return model.model_validate(read_sealed(path))
    except (FileNotFoundError, ValidationError, ValueError) as error:
        raise DataError(f"{path} does not read ({in_one_line(error)}). Delete {path.parent} and prepare the data again.") from None


class HashedFile(io.RawIOBase):
    """Hash the bytes while they are written to a file. `hash`: SHA-256 so far. `size`: bytes written."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, content: Any) -> int:
        """Append bytes."""
        self.hash.update(content)
        self.size += memoryview(content).nbytes
        return self._file.write(content)

    def tell(self) -> int:
        """Bytes written, for pyarrow."""
        return self.size

    def writable(self) -> bool:
        """Always true, for pyarrow."""
        return True


class Part(Frozen):
    """Documents of one bundle. `digest`: SHA-256 of the Parquet file. `ids_digest`: SHA-256 of the file with the sorted digests."""

    name: str
    documents: int = Field(ge=0)
    text_bytes: int = Field(ge=0)
    digest: str
    ids_digest: str

    @property
    def files(self) -> dict[str, str]:
        """File name → SHA-256."""
        return {f"{self.name}.parquet": self.digest, f"{self.name}.digests": self.ids_digest}


class BundleRecord(Frozen):
    """The result of reading a bundle. `starts`: for each part 257 rows: the first sorted digest with each first byte, and the end."""

    parts: tuple[Part, ...]
    starts: tuple[tuple[int, ...], ...]
    tally: Tally


class Bundle(NamedTuple):
    """Consecutive pieces of a component, and the number in the names of their parts."""

    component: str
    source: Source
    pieces: tuple[Piece, ...]
    number: int


def split_of(digest: str) -> Split:
    """Hold out a sixteenth of the documents by their digests. A new document never moves an old document."""
    return "held_out" if int(digest[:8], 16) % HELD_OUT_ONE_IN == 0 else "train"


def record_name(number: int) -> str:
    """The record of a finished bundle."""
    return f"bundle-{number:05d}.json"


def bundles_of(component: str, source: Source, files: tuple[SourceFile, ...]) -> tuple[Bundle, ...]:
    """The pieces of all files in order. Consecutive small pieces share a bundle of at most one part."""
    sizes = {file.name: file.size_bytes for file in files}
    max_bytes = part_bytes(files)
    bundles: list[list[Piece]] = []
    room = 0
    for piece in pieces_of(source, files):
        size = sizes[piece.name] if piece.stop is None else piece.stop - (piece.start or 0)
        if room < size or not bundles:
            bundles.append([])
            room = max_bytes
        bundles[-1].append(piece)
        room -= size
    return tuple(Bundle(component, source, tuple(pieces), number) for number, pieces in enumerate(bundles))


def read_to_parts(bundle: Bundle, max_part_bytes: int, folder: Path) -> BundleRecord:
    """Read a bundle into parts with bounded memory, or return an existing record."""
    record_path = folder / record_name(bundle.number)
    if record_path.exists():
        return read_model(BundleRecord, record_path)
    countings = [Counting(bundle.component, piece) for piece in bundle.pieces]
    parts: list[Part] = []
    starts: list[tuple[int, ...]] = []
    batches = _batches(bundle, countings)
    schema = SCHEMA if bundle.source.conversation is None else CONVERSATION_SCHEMA
    while (first := next(batches, None)) is not None:
        path = folder / f"part-{bundle.number:05d}-{len(parts):04d}.parquet"
        part, starts_of_part = _write_part(path, chain([first], batches), max_part_bytes, schema)
        parts.append(part)
        starts.append(starts_of_part)
    record = BundleRecord(parts=tuple(parts), starts=tuple(starts), tally=sum((counting.tally for counting in countings), Tally()))
    write_model(record_path, record)
    return record


def _batches(bundle: Bundle, countings: list[Counting]) -> Iterator[list[Row]]:
    """Normalised documents, about `BATCH_BYTES` at a time."""
    rows: list[Row] = []
    size = 0
    source = bundle.source
    for piece, counting in zip(bundle.pieces, countings, strict=True):
        for read in counting.records(read_piece(source, piece)):
            text = normalize(read.text, source.normalization) if source.conversation is None else read.text
            content = text.encode()
            digest = digest_of_bytes(content)
            rows.append((digest, piece.name, split_of(digest), text, None if read.spans is None else list(chain(*read.spans))))
            size += len(content) + DOCUMENT_BYTES
            if size >= BATCH_BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _write_part(path: Path, batches: Iterator[list[Row]], max_bytes: int, schema: pa.Schema) -> tuple[Part, tuple[int, ...]]:
    """Write batches until the part is full. Return the part and the starts of its sorted digests by first byte."""
    digests: list[bytes] = []
    text_bytes = 0
    with writing(path) as file:
        hashed = HashedFile(file)
        with pq.ParquetWriter(pa.PythonFile(hashed, "w"), schema, compression="zstd") as parquet:
            for rows in batches:
                columns = dict(zip(CONVERSATION_SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
                parquet.write_batch(pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema))
                digests += [bytes.fromhex(row[0]) for row in rows]
                text_bytes += sum(len(row[3].encode()) for row in rows)
                if text_bytes + DOCUMENT_BYTES * len(digests) >= max_bytes:
                    break
    order = np.argsort(np.array(digests, "S32"), kind="stable")
    table = np.empty(len(digests), DIGEST)
    table["digest"] = digests
    table["row"] = np.arange(len(digests))
    content = table[order].tobytes()
    write_atomically(path.with_suffix(".digests"), content)
    first_bytes = np.sort(np.array([digest[0] for digest in digests], np.uint8))
    starts = tuple(int(start) for start in np.searchsorted(first_bytes, np.arange(257)))
    part = Part(
        name=path.stem, documents=len(digests), text_bytes=text_bytes, digest=hashed.hash.hexdigest(), ids_digest=digest_of_bytes(content)
    )
    return part, starts


class DocumentsManifest(Frozen):
    """The manifest of a component's documents, written last. `copies`: for each part, the documents that repeat an earlier one."""

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
        """File name → SHA-256."""
        return {COPIES_NAME: self.copies_digest, **{name: digest for part in self.parts for name, digest in part.files.items()}}


def documents_key(source: Source, listing: Listing) -> str:
    """Digest of all inputs of the documents. The folder of the files is not an input: a copy has the same key."""
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
    """Read the manifest in a folder of documents."""
    return read_model(DocumentsManifest, folder / MANIFEST_NAME)


def bucket_ranges(records: Iterable[BundleRecord]) -> list[tuple[tuple[str, int, int], ...]]:
    """The sorted digests of each bucket as rows (part, start, stop). A bucket has a range of the 256 possible first bytes."""
    parts = [(part, starts) for record in records for part, starts in zip(record.parts, record.starts, strict=True)]
    buckets = min(MAX_BUCKETS, max(1, -(-sum(part.documents for part, _ in parts) // DOCUMENTS_PER_BUCKET)))
    edges = [256 * number // buckets for number in range(buckets + 1)]
    return [tuple((part.name, starts[low], starts[high]) for part, starts in parts) for low, high in pairwise(edges)]


def find_copies(folder: Path, ranges: Sequence[tuple[str, int, int]], bucket: int) -> tuple[int, int]:
    """Write the (part number, row) of each document of a bucket that repeats an earlier document. Count the others: training, held out."""
    found = [np.frombuffer(_read_rows(folder / f"{part}.digests", DIGEST, start, stop), DIGEST) for part, start, stop in ranges]
    table = np.concatenate(found) if found else np.empty(0, DIGEST)
    words = table["digest"].copy().view(">u8").reshape(-1, 4).astype(np.uint64)
    places = np.empty(len(table), COPY)
    places["part"] = np.repeat(np.arange(len(found)), [len(one) for one in found])
    places["row"] = table["row"]
    order = np.lexsort((places["row"], places["part"], *words.T))
    words = words[order]
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (words[1:] == words[:-1]).all(axis=1)
    copies = np.sort(places[order][repeats], order=("part", "row"))
    write_atomically(folder / f"copies-{bucket:03d}.bin", copies.tobytes())
    held_out = int(((words[~repeats, 0] >> np.uint64(32)) % np.uint64(HELD_OUT_ONE_IN) == 0).sum())  # `split_of`, vectorised
    return len(order) - len(copies) - held_out, held_out


def _read_rows(path: Path, dtype: np.dtype, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(dtype.itemsize * start)
        return file.read(dtype.itemsize * (stop - start))


def tally_of(records: Iterable[BundleRecord], listing: Listing) -> Tally:
    """The counts of all bundles and of the rejected files."""
    rejected = Tally(files=len(listing.rejected), bad_files={file.name: file.reason for file in listing.rejected})
    return sum((record.tally for record in records), rejected)


def finish_documents(
    component: str, source: Source, listing: Listing, records: list[BundleRecord], kept: list[tuple[int, int]], folder: Path
) -> DocumentsManifest:
    """Join the records of the bundles and buckets, remove stray files, and write the manifest. Raises DataError if a split is empty."""
    tally = tally_of(records, listing)
    parts = tuple(part for record in records for part in record.parts)
    train = sum(in_train for in_train, _ in kept)
    held_out = sum(in_held_out for _, in_held_out in kept)
    if not (train and held_out):
        left_out = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(tally.left_out.items()))
        filters = f" Left out: {left_out}. Check its filters as well." if left_out else ""
        raise DataError(
            f"component {component}: {train + held_out} documents in {len(listing.files)} files leave {train} to train on and "
            f"{held_out} held out; both need at least one. Add documents to {source.url}.{filters}"
        )
    found = [np.frombuffer((folder / f"copies-{bucket:03d}.bin").read_bytes(), COPY) for bucket in range(len(kept))]
    copies = np.sort(np.concatenate(found), order=("part", "row"))
    content = copies["row"].tobytes()
    write_atomically(folder / COPIES_NAME, content)
    manifest = DocumentsManifest(
        key=documents_key(source, listing),
        source=source.described(),
        sources=listing.files,
        parts=parts,
        copies=tuple(int(count) for count in np.bincount(copies["part"], minlength=len(parts))),
        copies_digest=digest_of_bytes(content),
        tally=tally,
        train=train,
        held_out=held_out,
    )
    remove_strays(folder, {*manifest.files, QUARANTINE_NAME, *(record_name(number) for number in range(len(records)))})
    write_model(folder / MANIFEST_NAME, manifest)
    return manifest


def read_documents(folder: Path, manifest: DocumentsManifest, number: int) -> Iterator[pa.Table]:
    """The documents of a part without copies, in bounded batches of columns as in `SCHEMA`. Raises DataError if a file is damaged."""
    remedy = f"Delete {folder} and prepare the data again."
    check_once(folder / COPIES_NAME, manifest.copies_digest, remedy)
    start = sum(manifest.copies[:number])
    copies = np.frombuffer(_read_rows(folder / COPIES_NAME, np.dtype("<u4"), start, start + manifest.copies[number]), "<u4")
    part = manifest.parts[number]
    path = folder / f"{part.name}.parquet"
    check_file(path, part.digest, remedy)
    row = 0
    with path.open("rb") as file, pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group)
            within = copies[(copies >= row) & (copies < row + len(table))] - np.uint32(row)
            keep = np.ones(len(table), bool)
            keep[within] = False
            row += len(table)
            yield table.filter(pa.array(keep))


def split_texts(folder: Path, split: Split) -> Iterator[str]:
    """The texts of one split, in order."""
    manifest = read_documents_manifest(folder)
    for number in range(len(manifest.parts)):
        for table in read_documents(folder, manifest, number):
            yield from map(str, table.filter(pc.field("split") == split)["text"].to_pylist())
