"""Documents on their way: the pieces of a component's files become parts, a Parquet file each, bounded in size.

A part `part-00012-0003` is the third run of documents of piece 12. Beside its Parquet file (id, source_file, split, text) lies
`part-00012-0003.digests`: the documents' content digests, sorted, from which exact copies are found over the whole component. A piece's
record, `piece-00012.json`, is written when all its parts are: a piece that has one is never read again.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from tasks.data.hashed_file import HashedFile
from tasks.data.normalize import normalize
from tasks.data.quarantine import Counting, Tally
from tasks.data.reading import read_piece
from tasks.data.source import Piece, Source
from trainer.config import Frozen
from trainer.data.manifest import SourceFile, Split
from trainer.errors import DataError
from trainer.storage import digest_of_bytes, digest_of_file, read_json, write_atomically, write_json, writing

HELD_OUT_ONE_IN = 16
BATCH_BYTES = 1 << 20
PARTS_PER_COMPONENT, MIN_PART_BYTES, MAX_PART_BYTES = 64, 4 << 20, 256 << 20
SCHEMA = pa.schema({"id": pa.string(), "source_file": pa.string(), "split": pa.string(), "text": pa.large_string()})
DIGEST = np.dtype([("digest", "V32"), ("row", "<u4")])


class Part(Frozen):
    """Some documents of one piece. `digest` is that of the Parquet file, `starts` where each first byte begins among the sorted digests."""

    name: str
    documents: int = Field(ge=0)
    text_bytes: int = Field(ge=0)
    digest: str
    starts: tuple[int, ...]


class PieceRecord(Frozen):
    """What reading a piece gave."""

    parts: tuple[Part, ...]
    tally: Tally


def part_bytes(files: Iterable[SourceFile]) -> int:
    """How much text a part holds: enough parts to share the work, few enough to keep track of. Decided by the sources alone."""
    return min(MAX_PART_BYTES, max(MIN_PART_BYTES, sum(file.size_bytes for file in files) // PARTS_PER_COMPONENT))


def split_of(digest: str) -> Split:
    """One document in sixteen is held out, by its own digest: adding a document moves no other."""
    return "held_out" if int(digest[:8], 16) % HELD_OUT_ONE_IN == 0 else "train"


def record_name(number: int) -> str:
    """The file that says a piece is done."""
    return f"piece-{number:05d}.json"


class PieceToRead(NamedTuple):
    """One piece of a component and the number that names its parts."""

    component: str
    source: Source
    piece: Piece
    number: int


def read_to_parts(work: PieceToRead, max_part_bytes: int, folder: Path) -> PieceRecord:
    """Read one piece into parts, unless its record is there. Memory does not grow with the piece."""
    record_path = folder / record_name(work.number)
    if record_path.exists():
        return PieceRecord.model_validate(read_json(record_path))
    counting = Counting(work.component, work.piece)
    parts: list[Part] = []
    batches = _batches(work, counting)
    while (part := _write_part(folder, f"part-{work.number:05d}-{len(parts):04d}", batches, max_part_bytes)) is not None:
        parts.append(part)
    record = PieceRecord(parts=tuple(parts), tally=counting.tally)
    write_json(record_path, record.model_dump(mode="json"))
    return record


def read_part(folder: Path, part: Part) -> Iterator[pa.Table]:
    """The documents of a part, a bounded batch at a time, with every copy still in it.

    Raises:
        DataError: the file is not the one that was written.
    """
    path = folder / f"{part.name}.parquet"
    found = digest_of_file(path) if path.exists() else "nothing"
    if found != part.digest:
        raise DataError(f"{path} must have the digest {part.digest[:16]}, found {found[:16]}. Delete {folder} and prepare the data again.")
    with path.open("rb") as file, pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group)


class Batch(NamedTuple):
    """Normalised documents, about a megabyte of them, and their digests."""

    documents: pa.RecordBatch
    digests: list[bytes]
    text_bytes: int


def _batches(work: PieceToRead, counting: Counting) -> Iterator[Batch]:
    """The documents of a piece; what is no document is counted."""
    columns: dict[str, list[str]] = {name: [] for name in SCHEMA.names}
    size = 0

    def batch() -> Batch:
        return Batch(pa.RecordBatch.from_pydict(columns, SCHEMA), [bytes.fromhex(digest) for digest in columns["id"]], size)

    for read in counting.records(read_piece(work.source, work.piece)):
        text = normalize(read.text, work.source.normalization)
        content = text.encode()
        digest = digest_of_bytes(content)
        for name, value in zip(SCHEMA.names, (digest, work.piece.name, split_of(digest), text), strict=True):
            columns[name].append(value)
        size += len(content)
        if size >= BATCH_BYTES:
            yield batch()
            columns, size = {name: [] for name in SCHEMA.names}, 0
    if size:
        yield batch()


def _write_part(folder: Path, name: str, batches: Iterator[Batch], max_bytes: int) -> Part | None:
    """Write batches until the part is full; `None` if there are none left."""
    first = next(batches, None)
    if first is None:
        return None
    path = folder / f"{name}.parquet"
    collected: list[bytes] = []
    text_bytes = 0
    with writing(path) as file:
        hashed = HashedFile(file)
        with pq.ParquetWriter(pa.PythonFile(hashed, "w"), SCHEMA, compression="zstd") as parquet:
            batch: Batch | None = first
            while batch is not None:
                parquet.write_batch(batch.documents)
                collected += batch.digests
                text_bytes += batch.text_bytes
                batch = next(batches, None) if text_bytes < max_bytes else None
    starts = _write_digests(folder / f"{name}.digests", collected)
    return Part(name=name, documents=len(collected), text_bytes=text_bytes, digest=hashed.hexdigest(), starts=starts)


def _write_digests(path: Path, digests: list[bytes]) -> tuple[int, ...]:
    """The digests with their rows, sorted; where each of the 256 first bytes starts, and the end."""
    table = np.empty(len(digests), DIGEST)
    table["digest"], table["row"] = digests, np.arange(len(digests))
    order = np.argsort(np.array(digests, "S32") if digests else np.empty(0, "S32"), kind="stable")
    table = table[order]
    write_atomically(path, table.tobytes())
    first_bytes = np.frombuffer(table["digest"].tobytes(), np.uint8).reshape(-1, 32)[:, 0]
    return tuple(int(at) for at in np.searchsorted(first_bytes, np.arange(257)))
