"""Documents on their way: the pieces of a component's files become parts, a Parquet file each, bounded in size.

One worker reads a *bundle*: a piece, or a run of pieces too small for a part of their own. A part `part-00012-0003` is the fourth run of
documents of bundle 12. Beside its Parquet file (id, source_file, split, text) lies `part-00012-0003.digests`: the documents' content
digests, sorted, from which exact copies are found over the whole component. The bundle's record, `bundle-00012.json`, is written when all
its parts are: a bundle that has one is never read again.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from phasewise.tasks.data.filters import normalize
from phasewise.tasks.data.quarantine import Counting, Tally
from phasewise.tasks.data.reading import pieces_of, read_piece
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import check_file, digest_of_bytes, read_sealed, write_sealed
from phasewise.trainer.base.storage import write_atomically, writing
from phasewise.trainer.data.manifest import SourceFile, Split

Model = TypeVar("Model", bound=Frozen)
HELD_OUT_ONE_IN = 16
BATCH_BYTES = 1 << 20
DOCUMENT_BYTES = 256  # what a document costs besides its text
PARTS_PER_COMPONENT, MIN_PART_BYTES, MAX_PART_BYTES = 64, 4 << 20, 256 << 20
SCHEMA = pa.schema({"id": pa.string(), "source_file": pa.string(), "split": pa.string(), "text": pa.large_string()})
CONVERSATION_SCHEMA = SCHEMA.append(pa.field("spans", pa.list_(pa.int64())))
"""Of conversations there are the characters that count, as start, stop, start, stop …; null where the template does not say."""
Row = tuple[str, str, str, str, list[int] | None]
DIGEST = np.dtype([("digest", "V32"), ("row", "<u4")])


def write_model(path: Path, record: Frozen) -> None:
    """Write a record, atomically."""
    write_sealed(path, record.model_dump(mode="json"))


def read_model(model: type[Model], path: Path) -> Model:
    """The record in a file.

    Raises:
        DataError: the file is missing, is not one, or was changed after it was written.
    """
    try:
        return model.model_validate(read_sealed(path))
    except (FileNotFoundError, ValidationError, ValueError) as error:
        raise DataError(f"{path} does not read ({in_one_line(error)}). Delete {path.parent} and prepare the data again.") from None


class HashedFile(io.RawIOBase):
    """Passes what is written on to a file and hashes it on the way, so that nothing is read again for its digest."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: Any) -> int:
        """Append bytes."""
        self._hash.update(content)
        self.size += memoryview(content).nbytes
        return self._file.write(content)

    def tell(self) -> int:
        """Bytes written."""
        return self.size

    def writable(self) -> bool:
        """Always: Arrow asks."""
        return True

    def hexdigest(self) -> str:
        """SHA-256 of everything written so far."""
        return self._hash.hexdigest()


class Part(Frozen):
    """Some documents of one bundle. `digest` is that of the Parquet file, `ids_digest` that of the sorted digests beside it."""

    name: str
    documents: int = Field(ge=0)
    text_bytes: int = Field(ge=0)
    digest: str
    ids_digest: str

    @property
    def files(self) -> dict[str, str]:
        """Its files by name, and the digest of each."""
        return {f"{self.name}.parquet": self.digest, f"{self.name}.digests": self.ids_digest}


class BundleRecord(Frozen):
    """What reading a bundle gave. `starts` says, for each part, where each of the 256 first bytes begins among the sorted digests."""

    parts: tuple[Part, ...]
    starts: tuple[tuple[int, ...], ...]
    tally: Tally


def part_bytes(files: Iterable[SourceFile]) -> int:
    """How much text a part holds: enough parts to share the work, few enough to keep track of. Decided by the sources alone."""
    return min(MAX_PART_BYTES, max(MIN_PART_BYTES, sum(file.size_bytes for file in files) // PARTS_PER_COMPONENT))


def split_of(digest: str) -> Split:
    """One document in sixteen is held out, by its own digest: adding a document moves no other."""
    return "held_out" if int(digest[:8], 16) % HELD_OUT_ONE_IN == 0 else "train"


def record_name(number: int) -> str:
    """The file that says a bundle is done."""
    return f"bundle-{number:05d}.json"


class Bundle(NamedTuple):
    """Pieces of a component, one after another, and the number that names their parts."""

    component: str
    source: Source
    pieces: tuple[Piece, ...]
    number: int


def bundles_of(component: str, source: Source, files: tuple[SourceFile, ...]) -> tuple[Bundle, ...]:
    """The pieces of all files in order, small ones together until they fill a part."""
    sizes = {file.name: file.size_bytes for file in files}
    enough = part_bytes(files)
    bundles: list[list[Piece]] = []
    room = 0
    for piece in pieces_of(source, files):
        size = sizes[piece.name] if piece.stop is None else piece.stop - (piece.start or 0)
        if room < size or not bundles:
            bundles.append([])
            room = enough
        bundles[-1].append(piece)
        room -= size
    return tuple(Bundle(component, source, tuple(pieces), number) for number, pieces in enumerate(bundles))


def read_to_parts(bundle: Bundle, max_part_bytes: int, folder: Path) -> BundleRecord:
    """Read a bundle into parts, unless its record is there. Memory does not grow with its files."""
    record_path = folder / record_name(bundle.number)
    if record_path.exists():
        return read_model(BundleRecord, record_path)
    countings = [Counting(bundle.component, piece) for piece in bundle.pieces]
    parts: list[Part] = []
    starts: list[tuple[int, ...]] = []
    batches = _batches(bundle, countings)
    while (first := next(batches, None)) is not None:
        name = f"part-{bundle.number:05d}-{len(parts):04d}"
        part, of_part = _write_part(folder / f"{name}.parquet", first, batches, max_part_bytes)
        parts.append(part)
        starts.append(of_part)
    record = BundleRecord(parts=tuple(parts), starts=tuple(starts), tally=sum((counting.tally for counting in countings), Tally()))
    write_model(record_path, record)
    return record


def read_part(folder: Path, part: Part) -> Iterator[pa.Table]:
    """The documents of a part, a bounded batch at a time, with every copy still in it.

    Raises:
        DataError: the file is not the one that was written.
    """
    path = folder / f"{part.name}.parquet"
    check_file(path, part.digest, f"Delete {folder} and prepare the data again.")
    with path.open("rb") as file, pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group)


class Batch(NamedTuple):
    """Normalised documents, about a megabyte of them, and their digests. `size` counts something for each document, too."""

    documents: pa.RecordBatch
    digests: list[bytes]
    text_bytes: int
    size: int


def _batches(bundle: Bundle, countings: Sequence[Counting]) -> Iterator[Batch]:
    rows: list[Row] = []
    text_bytes = 0
    source = bundle.source
    schema = SCHEMA if source.conversation is None else CONVERSATION_SCHEMA
    for piece, counting in zip(bundle.pieces, countings, strict=True):
        for read in counting.records(read_piece(source, piece)):
            text = normalize(read.text, source.normalization) if source.conversation is None else read.text
            content = text.encode()
            digest = digest_of_bytes(content)
            rows.append((digest, piece.name, split_of(digest), text, None if read.spans is None else list(chain(*read.spans))))
            text_bytes += len(content)
            if text_bytes + DOCUMENT_BYTES * len(rows) >= BATCH_BYTES:
                yield _batch(schema, rows, text_bytes)
                rows, text_bytes = [], 0
    if rows:
        yield _batch(schema, rows, text_bytes)


def _batch(schema: pa.Schema, rows: Sequence[Row], text_bytes: int) -> Batch:
    columns = dict(zip(CONVERSATION_SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    digests = [bytes.fromhex(row[0]) for row in rows]
    return Batch(
        pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema),
        digests,
        text_bytes,
        text_bytes + DOCUMENT_BYTES * len(rows),
    )


def _write_part(path: Path, first: Batch, batches: Iterator[Batch], max_bytes: int) -> tuple[Part, tuple[int, ...]]:
    """Write batches until the part is full, and its documents' digests; where each first byte starts among these."""
    digests: list[bytes] = []
    text_bytes = size = 0
    with writing(path) as file:
        hashed = HashedFile(file)
        with pq.ParquetWriter(pa.PythonFile(hashed, "w"), first.documents.schema, compression="zstd") as parquet:
            batch: Batch | None = first
            while batch is not None:
                parquet.write_batch(batch.documents)
                digests += batch.digests
                text_bytes += batch.text_bytes
                size += batch.size
                batch = next(batches, None) if size < max_bytes else None
    ids_digest, starts = _write_digests(path.with_suffix(".digests"), digests)
    written = Part(name=path.stem, documents=len(digests), text_bytes=text_bytes, digest=hashed.hexdigest(), ids_digest=ids_digest)
    return written, starts


def _write_digests(path: Path, digests: list[bytes]) -> tuple[str, tuple[int, ...]]:
    """The digests with their rows, sorted. The digest of that file; where each of the 256 first bytes starts, and the end."""
    table = np.empty(len(digests), DIGEST)
    table["digest"] = digests
    table["row"] = np.arange(len(digests))
    order = np.argsort(np.array(digests, "S32") if digests else np.empty(0, "S32"), kind="stable")
    table = table[order]
    content = table.tobytes()
    write_atomically(path, content)
    first_bytes = np.frombuffer(table["digest"].tobytes(), np.uint8).reshape(-1, 32)[:, 0]
    return digest_of_bytes(content), tuple(int(at) for at in np.searchsorted(first_bytes, np.arange(257)))
