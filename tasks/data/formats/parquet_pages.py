"""The pages of a Parquet column by their heads alone: what each takes once unpacked is known before a byte of it is unpacked.

Arrow allocates what a page's head claims, whatever the file's metadata say. A head is a struct of Thrift's compact protocol
(`PageHeader` of parquet.thrift: field 2 has the unpacked bytes, field 3 the packed ones).
"""

import io
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from tasks.data.formats.findings import FileFault

HEAD_BYTES = 256
MAX_HEAD_BYTES = 2**20  # of a page whose statistics hold long values
UNPACKED_BYTES, PACKED_BYTES = 2, 3
STOP = 0
MAX_DEPTH = 8


class Chunk(Protocol):
    """What pyarrow says of a column in a row group."""

    has_dictionary_page: bool
    dictionary_page_offset: int | None
    data_page_offset: int
    total_compressed_size: int
    num_values: int


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
        sizes = [max(page) for page in pages_of(file, chunk)] if chunk.num_values else []
        dictionary_bytes = sizes[0] if sizes and chunk.has_dictionary_page else 0
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
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < at:
        at = chunk.dictionary_page_offset or 0
    end = at + chunk.total_compressed_size
    while at < end:
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
            head = _Struct(raw)
        except IndexError:
            if len(raw) < size or size >= MAX_HEAD_BYTES:
                raise FileFault("truncated", f"the file ends inside the head of the page at byte {at}") from None
            size = MAX_HEAD_BYTES
            continue
        except ValueError as error:
            raise FileFault("unreadable", f"the page at byte {at} has no head: {error}") from error
        unpacked, packed = head.numbers.get(UNPACKED_BYTES, -1), head.numbers.get(PACKED_BYTES, -1)
        if unpacked < 0 or packed < 0:
            raise FileFault("unreadable", f"the page at byte {at} says that it has {packed} bytes, unpacked {unpacked}")
        return head.end, Page(packed, unpacked)


class _Struct:
    """The whole numbers among a struct's own fields, by the fields' numbers, and the byte behind it.

    Raises:
        IndexError: it goes on behind the end of `raw`.
        ValueError: it is no struct.
    """

    def __init__(self, raw: bytes):
        self._raw = raw
        self.end = 0
        self.numbers: dict[int, int] = {}
        self._pass_struct(0)

    def _pass_struct(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"structs within structs, {depth} deep")
        field = 0
        while (head := self._byte()) != STOP:
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._whole_number()
            value = self._pass_value(kind, depth)
            if depth == 0 and value is not None:
                self.numbers[field] = value

    def _pass_value(self, kind: int, depth: int, *, in_list: bool = False) -> int | None:
        match kind:
            case 1 | 2:  # true and false are kinds of their own, but not in a list
                self.end += in_list
            case 3:
                self.end += 1
            case 4 | 5 | 6:
                return self._whole_number()
            case 7:
                self.end += 8
            case 8:
                length = self._length()  # it moves the end itself
                self.end += length
            case 9 | 10:
                self._pass_list(depth)
            case 12:
                self._pass_struct(depth + 1)
            case _:
                raise ValueError(f"a field of kind {kind}")
        if self.end > len(self._raw):
            raise IndexError
        return None

    def _pass_list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._length()
        if count > MAX_HEAD_BYTES:
            raise ValueError(f"a list of {count} fields")
        for _ in range(count):
            self._pass_value(head & 15, depth + 1, in_list=True)

    def _byte(self) -> int:
        byte = self._raw[self.end]
        self.end += 1
        return byte

    def _length(self) -> int:
        """Seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _whole_number(self) -> int:
        """Zigzag: even numbers stand for positive ones."""
        value = self._length()
        return value >> 1 ^ -(value & 1)
