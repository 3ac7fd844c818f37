"""The size of an Arrow record batch before it is read, from its message's head: a batch is taken as a whole or not at all.

The head is a flatbuffer (Arrow's `Message.fbs`): a table begins with the distance back to its list of offsets, one for each field.
"""

import io
import struct
from collections.abc import Iterator

from phasewise.tasks.data.formats.expansion import check_expansion
from phasewise.tasks.data.formats.findings import FileFault

FILE_START = b"ARROW1"
NO_MORE = -1
MAX_BATCH_BYTES = 2**29  # with the packed bytes that they come of
MAX_HEAD_BYTES = 64 * 2**20
CONTINUATION = 0xFFFFFFFF
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
MAX_METADATA_VERSION = 4
Table = tuple[bytes, int]


def begins_with_a_schema(start: bytes) -> bool:
    """Whether a stream begins as older writers had it, with the schema's message and no mark before it."""
    try:
        (size,) = struct.unpack_from("<I", start)
        if not 16 <= size <= MAX_HEAD_BYTES:
            return False
        message = _table(start, 4)
        (version,) = _number(message, 0, "<h")
        (kind,) = _number(message, 1, "<B")
        return kind == SCHEMA and 0 <= version <= MAX_METADATA_VERSION and message[1] < 4 + size and _child(message, 2) is not None
    except (struct.error, IndexError):
        return False


def check_next_batch(file: io.BufferedReader, file_bytes: int) -> int:
    """Bytes of the next record batch once unpacked, `NO_MORE` at the end of the stream. The file's position stays.

    Raises:
        FileFault: the stream is cut off, or the batch or a dictionary before it is larger than what may be held.
    """
    start = at = file.tell()
    held_bytes = 0  # of a batch and of the dictionaries before it
    try:
        while True:
            file.seek(at)
            head = _read_head(file)
            if head is None:
                return NO_MORE
            kind, body_bytes, batch = _message(head)
            body = file.tell()
            if body + body_bytes > file_bytes:
                raise FileFault("truncated", f"the file ends inside a record batch of {body_bytes} bytes")
            from_packed_bytes = sum(_unpacked_sizes(file, body, body_bytes, batch)) if batch else 0
            unpacked_bytes = max(body_bytes, from_packed_bytes)
            check_expansion(unpacked_bytes, file_bytes)
            held_bytes += unpacked_bytes + (body_bytes if from_packed_bytes else 0)
            if held_bytes > MAX_BATCH_BYTES:
                raise FileFault(
                    "unreadable", f"a record batch takes {held_bytes} bytes, at most {MAX_BATCH_BYTES} are held: write it smaller"
                )
            if kind == RECORD_BATCH:
                return unpacked_bytes
            at = body + body_bytes
    except (struct.error, IndexError) as error:
        raise FileFault("unreadable", f"a message at byte {at} is no Arrow message: {error}") from error
    finally:
        file.seek(start)


def _read_head(file: io.BufferedReader) -> bytes | None:
    """The flatbuffer at the file's position, `None` for the end of the stream."""
    (size,) = _read_numbers(file, "<I")
    if size == CONTINUATION:  # older writers leave it out
        (size,) = _read_numbers(file, "<I")
    if size == 0:
        return None
    if size > MAX_HEAD_BYTES:
        raise FileFault("unreadable", f"a message's head has {size} bytes, at most {MAX_HEAD_BYTES} are held")
    head = file.read(size)
    if len(head) < size:
        raise FileFault("truncated", "the file ends inside the head of a message")
    return head


def _read_numbers(file: io.BufferedReader, layout: str) -> tuple[int, ...]:
    raw = file.read(struct.calcsize(layout))
    if len(raw) < struct.calcsize(layout):
        raise FileFault("truncated", "the file ends without the mark of the stream's end")
    return struct.unpack(layout, raw)


def _message(head: bytes) -> tuple[int, int, Table | None]:
    """A message's kind, the bytes of its body, and its record batch if it has one."""
    message = _table(head, 0)
    (kind,) = _number(message, 1, "<B")
    (body_bytes,) = _number(message, 3, "<q")
    if body_bytes < 0:
        raise struct.error(f"a body of {body_bytes} bytes")
    batch = _child(message, 2) if kind in (RECORD_BATCH, DICTIONARY_BATCH) else None
    if batch and kind == DICTIONARY_BATCH:
        batch = _child(batch, 1)
    return kind, body_bytes, batch


def _unpacked_sizes(file: io.BufferedReader, body: int, body_bytes: int, batch: Table) -> Iterator[int]:
    """What each packed buffer says that it unpacks to, in its first 8 bytes. Buffers that are not packed say nothing."""
    vector = _child(batch, 2)
    if vector is None or _child(batch, 3) is None:
        return
    raw, at = vector
    (count,) = struct.unpack_from("<I", raw, at)
    for number in range(count):
        offset, length = struct.unpack_from("<qq", raw, at + 4 + 16 * number)
        if not 0 <= offset <= offset + length <= body_bytes:
            raise struct.error(f"a buffer of {length} bytes at {offset} in a body of {body_bytes}")
        if length >= 8:
            file.seek(body + offset)
            (size,) = _read_numbers(file, "<q")
            yield max(size, length)  # -1 says that this one was left as it is


def _table(raw: bytes, at: int) -> Table:
    """The table or vector that the offset at `at` leads to."""
    (distance,) = struct.unpack_from("<I", raw, at)
    return raw, at + distance


def _field(table: Table, place: int) -> int:
    """Where a field is, 0 if it has its default value."""
    raw, at = table
    (back,) = struct.unpack_from("<i", raw, at)
    (offsets_bytes,) = struct.unpack_from("<H", raw, at - back)
    if 4 + 2 * place >= offsets_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", raw, at - back + 4 + 2 * place)
    return at + offset if offset else 0


def _number(table: Table, place: int, layout: str) -> tuple[int, ...]:
    at = _field(table, place)
    return struct.unpack_from(layout, table[0], at) if at else (0,)


def _child(table: Table, place: int) -> Table | None:
    at = _field(table, place)
    return _table(table[0], at) if at else None
