"""The pages of a Parquet column by their heads alone: what each takes once unpacked is known before a byte of it is unpacked.

Arrow allocates what a page's head claims, whatever the file's footer says. A head is a `PageHeader` of parquet.thrift.
"""

import io
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from phasewise.tasks.data.formats.findings import FileFault
from phasewise.tasks.data.formats.parquet_footer import Chunk
from phasewise.tasks.data.formats.thrift import read_struct

HEAD_BYTES = 256
MAX_HEAD_BYTES = 2**20  # of a page whose statistics hold long values
UNPACKED, PACKED = 2, 3  # fields of PageHeader


class Page(NamedTuple):
    """Bytes of a page, as it lies there and unpacked."""

    packed_bytes: int
    unpacked_bytes: int


def check_pages(file: io.BufferedReader, chunks: Iterable[Chunk], *, max_held_bytes: int) -> tuple[int, int]:
    """Bytes that are held at once of these columns of a row group – of each its dictionary and its largest page –, and all unpacked bytes.

    Raises:
        FileFault: a page's head is none, or more would be held than may be.
    """
    held_bytes = all_bytes = 0
    for chunk in chunks:
        sizes = [max(page) for page in pages_of(file, chunk)]
        dictionary_bytes = sizes[0] if sizes and chunk.dictionary_bytes is not None else 0
        held_bytes += dictionary_bytes + max(sizes, default=0)
        all_bytes += sum(sizes)
    if held_bytes > max_held_bytes:
        raise FileFault(
            "expands too much", f"pages of {held_bytes} bytes would be held at once, at most {max_held_bytes} are: write smaller pages"
        )
    return held_bytes, all_bytes


def pages_of(file: io.BufferedReader, chunk: Chunk) -> Iterator[Page]:
    """The pages of a column, in order; the file's position moves.

    Raises:
        FileFault: a head is none.
    """
    at = chunk.start
    end = chunk.start + chunk.packed_bytes
    if chunk.num_values and end > (size := file.seek(0, io.SEEK_END)):
        raise FileFault("truncated", f"the column {chunk.path} ends at byte {end} of a file of {size}")
    while at < end and chunk.num_values:
        head_bytes, page = _head(file, at)
        yield page
        at += head_bytes + page.packed_bytes


def _head(file: io.BufferedReader, at: int) -> tuple[int, Page]:
    """A head's own bytes, and what it says."""
    size = HEAD_BYTES
    while True:
        file.seek(at)
        raw = file.read(size)
        try:
            head, head_bytes = read_struct(raw)
        except IndexError:
            if len(raw) < size or size >= MAX_HEAD_BYTES:
                raise FileFault("truncated", f"the file ends inside the head of the page at byte {at}") from None
            size = MAX_HEAD_BYTES
            continue
        except ValueError as error:
            raise FileFault("unreadable", f"the page at byte {at} has no head: {error}") from error
        unpacked = head.get(UNPACKED)
        packed = head.get(PACKED)
        if not isinstance(unpacked, int) or not isinstance(packed, int) or min(unpacked, packed) < 0:
            raise FileFault("unreadable", f"the page at byte {at} says that it has {packed} bytes, unpacked {unpacked}")
        return head_bytes, Page(packed, unpacked)
