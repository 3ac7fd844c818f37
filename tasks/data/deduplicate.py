"""Exact deduplication over a whole component: of documents with the same content digest the first stays, in the order of the files.

The digests of every part lie sorted on disk. A bucket is a range of their first byte: all copies of a document fall into one bucket, and
a bucket takes one part of the digests, so that memory stays bounded up to 256 × `DOCUMENTS_PER_BUCKET` documents.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phasewise.tasks.data.parts import DIGEST, HELD_OUT_ONE_IN, BundleRecord
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import write_atomically

DOCUMENTS_PER_BUCKET = 1 << 17
MAX_BUCKETS = 256
COPY = np.dtype([("part", "<u4"), ("row", "<u4")])
COPIES_NAME = "copies.bin"


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


def copies_of_part(folder: Path, copies: Sequence[int], number: int) -> np.ndarray:
    """The rows of a part that repeat an earlier document, sorted, given how many copies every part holds."""
    start = 4 * sum(copies[:number])
    count = 4 * copies[number]
    return np.frombuffer(_read_range(folder / COPIES_NAME, start, start + count), "<u4") if count else np.empty(0, np.uint32)


def is_held_out(first_words: np.ndarray) -> np.ndarray:
    """Whether documents belong to the held-out split, from the first eight bytes of their digests: `parts.split_of`, vectorised."""
    return (first_words >> np.uint64(32)) % np.uint64(HELD_OUT_ONE_IN) == 0


def _digests(folder: Path, wanted: Range) -> np.ndarray:
    size = DIGEST.itemsize
    return np.frombuffer(_read_range(folder / f"{wanted.part}.digests", size * wanted.start, size * wanted.stop), DIGEST)


def _read_range(path: Path, start: int, stop: int) -> bytes:
    """Bytes `[start, stop)` of a file."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
