"""Streams of files on any file system: opened by URL and unpacked by their first bytes, with bounded memory.

Errors of the file system, such as a lost connection, are independent of the data and are raised again. Damaged bytes are a fault of the
file.
"""

import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, NoReturn

import fsspec
import pyarrow as pa

from phasewise.tasks.data.findings import check_expansion
from phasewise.trainer.base.errors import DataError

Nature = Literal["packed", "archive", "parquet", "arrow", "warc", "text", "wide text", "empty", "no text", "unknown"]
SNIFF_BYTES = 2**14
TAR_BLOCK_BYTES = 512
MAX_SCHEMA_BYTES = 2**26
MAX_CONTROL_SHARE = 0.02
PARQUET_MAGIC = b"PAR1"
SKIPPABLE_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)  # of Zstandard and of LZ4
ZSTANDARD_MAGIC, LZ4_MAGIC = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
_TEXT_CONTROLS = b"\t\n\v\f\r\x08\x1b"
_CONTROLS = bytes(code for code in range(32) if code not in _TEXT_CONTROLS)
BLOCK_BYTES = 8 * 2**20  # of a remote file, with at most two in memory
BUFFER_BYTES = 2**18
ENDINGS = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz")


class Kind(NamedTuple):
    """The kind of a stream."""

    nature: Nature  # the reader for it. `no text` is media without text, and `unknown` has no reader.
    name: str  # the packing or archive, the encoding of wide text, or a description


_STARTS: Sequence[tuple[bytes, Kind]] = (
    (rb"\x1f\x8b\x08", Kind("packed", "gzip")),
    (re.escape(ZSTANDARD_MAGIC), Kind("packed", "zstd")),
    (re.escape(LZ4_MAGIC), Kind("packed", "lz4")),
    (rb"\xfd7zXZ\0", Kind("packed", "xz")),
    (rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)", Kind("packed", "bzip2")),
    (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", Kind("archive", "zip")),
    (re.escape(PARQUET_MAGIC), Kind("parquet", "Parquet")),
    (rb"ARROW1", Kind("arrow", "an Arrow file")),
    (rb"\xff\xff\xff\xff", Kind("arrow", "an Arrow stream")),
    (rb"WARC/[01]\.\d+\r?\n", Kind("warc", "WARC")),
    (rb"\xff\xfe\0\0", Kind("wide text", "utf-32")),
    (rb"\0\0\xfe\xff", Kind("wide text", "utf-32")),
    (rb"\xff\xfe|\xfe\xff", Kind("wide text", "utf-16")),
    (rb"\x89PNG", Kind("no text", "a PNG image")),
    (rb"\xff\xd8\xff", Kind("no text", "a JPEG image")),
    (rb"GIF8[79]a", Kind("no text", "a GIF image")),
    (rb"BM.{4}\0{4}", Kind("no text", "a BMP image")),
    (rb"II\x2a\0|MM\0\x2a", Kind("no text", "a TIFF image")),
    (rb"\0\0[\x01\x02]\0.\0.{6}", Kind("no text", "an icon")),
    (rb"RIFF.{4}(?:WEBP|WAVE|AVI )", Kind("no text", "an image, a sound or a film (RIFF)")),
    (rb"fLaC|OggS|ID3|\xff[\xfb\xf3\xf2]", Kind("no text", "a sound")),
    (rb".{4}ftyp", Kind("no text", "a film, a sound or an image (ISO media)")),
    (rb"\x1aE\xdf\xa3", Kind("no text", "a film (Matroska)")),
    (rb"wOF[F2]|OTTO\0|\0\x01\0\0\0.{3}\0", Kind("no text", "a font")),
    (rb"\x93NUMPY.{4,6}\{[^}]*'descr': *'[<>=|][?biufcmM]\d+", Kind("no text", "an array of numbers (NumPy)")),
    (rb"\x93NUMPY", Kind("unknown", "a NumPy array of texts or objects")),
    (rb".{5}\0{3}\{\"", Kind("no text", "weights (safetensors)")),
    (rb"PARE", Kind("unknown", "an encrypted Parquet file")),
    (rb"%PDF-", Kind("unknown", "a PDF document")),
    (rb"Rar!\x1a\x07", Kind("unknown", "a RAR archive")),
    (rb"7z\xbc\xaf\x27\x1c", Kind("unknown", "a 7z archive")),
    (rb"\x1f[\x9d\xa0]", Kind("unknown", "a file packed by compress")),
    (rb"LZIP", Kind("unknown", "a file packed by lzip")),
    (rb"\xff\x06\0\0sNaPpY", Kind("unknown", "a file packed by Snappy")),
    (rb"FEA1", Kind("unknown", "a Feather file of version 1")),
    (rb"ORC[\x00-\x1f]", Kind("unknown", "an ORC table")),
    (rb"Obj\x01", Kind("unknown", "an Avro file")),
    (rb"\x89HDF", Kind("unknown", "an HDF5 file")),
    (rb"SQLite format 3\0", Kind("unknown", "a SQLite database")),
    (rb"\xd0\xcf\x11\xe0", Kind("unknown", "an Office document of before 2007")),
    (rb"\x7fELF|MZ.{2}[\x00-\x08]", Kind("unknown", "a program")),
    (rb"version https://git-lfs\.github\.com/spec/", Kind("unknown", "a pointer of Git LFS: the file itself was not fetched")),
    (rb"/annex/objects/", Kind("unknown", "a pointer of git-annex: the file itself was not fetched")),
)
_PATTERNS = [(re.compile(pattern, re.DOTALL), kind) for pattern, kind in _STARTS]
TEXT = Kind("text", "text")
UNKNOWN = Kind("unknown", "neither text nor anything else that is known")


def kind_of(start: bytes) -> Kind:
    """The kind of a stream with the given first bytes. Fewer than `SNIFF_BYTES` are the whole stream."""
    if not start:
        return Kind("empty", "an empty file")
    if SKIPPABLE_FRAME.match(start):
        position = 0
        while SKIPPABLE_FRAME.match(start, position):
            position += 8 + int.from_bytes(start[position + 4 : position + 8], "little")
        return Kind("packed", "lz4" if start.startswith(LZ4_MAGIC, position) else "zstd")
    for pattern, kind in _PATTERNS:
        if pattern.match(start):
            return kind
    head = start[:TAR_BLOCK_BYTES]  # old tars have no mark, only a checksum
    digits = head[148:156].strip(b" \0")
    is_octal = len(head) == TAR_BLOCK_BYTES and digits and not digits.strip(b"01234567")
    if is_octal and int(digits, 8) == sum(head) - sum(head[148:156]) + 8 * ord(" "):
        return Kind("archive", "tar")
    if 16 <= int.from_bytes(start[:4], "little") <= MAX_SCHEMA_BYTES:  # older writers put no mark before the schema
        with suppress(pa.ArrowException, OSError):
            if pa.ipc.read_message(pa.py_buffer(start)).type == "schema":
                return Kind("arrow", "an Arrow stream")
    even, odd = start[0:4096:2], start[1:4096:2]
    if len(start) >= 4 and odd.count(0) > 0.4 * len(odd) and even.count(0) < 0.02 * len(even):
        return Kind("wide text", "utf-16-le")
    if len(start) >= 4 and even.count(0) > 0.4 * len(even) and odd.count(0) < 0.02 * len(odd):
        return Kind("wide text", "utf-16-be")
    if is_text(start, cut=len(start) >= SNIFF_BYTES):
        return TEXT
    # A sound first line of JSON before damaged bytes: JSON lines, and some of the lines are damaged
    line, end, _ = start.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    is_json = bool(end) and line[:1] in (b"{", b"[") and line.rstrip()[-1:] in (b"}", b"]") and is_text(line, cut=False)
    return TEXT if is_json else UNKNOWN


def is_text(raw: bytes, *, cut: bool) -> bool:
    """Whether bytes are text: almost no control characters in UTF-8, and none in further encodings. `cut`: more bytes follow."""
    controls = len(raw) - len(raw.translate(None, _CONTROLS))
    if not controls:
        return True
    if controls > MAX_CONTROL_SHARE * len(raw):
        return False
    try:
        raw[: len(raw) - 3 if cut else None].decode()
    except UnicodeDecodeError as error:
        return cut and error.start >= len(raw) - 6
    return True


class ByteStream(io.RawIOBase):
    """A stream for reading."""

    def readable(self) -> bool:
        """Always true."""
        return True


class WatchedFile(ByteStream):
    """A file that keeps an error of the file system (`failure`), and counts bytes read (`taken_bytes`) and unpacked, of any layer."""

    def __init__(self, file: Any):
        self._file = file
        self.failure: Exception | None = None
        self.taken_bytes = 0
        self.unpacked_bytes = 0
        self.size_bytes = sys.maxsize
        if file.seekable():
            self.size_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)

    def seekable(self) -> bool:
        """False for servers without byte ranges."""
        return bool(self._file.seekable())

    def readinto(self, buffer: Any, /) -> int:
        """Read up to `len(buffer)` bytes and return their number."""
        try:
            count: int = self._file.readinto(buffer)
        except Exception as error:  # file systems raise many types of errors
            self.failure = error
            raise
        self.taken_bytes += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a byte."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    @contextmanager
    def spooled(self, stream: io.BufferedReader) -> Iterator[io.BufferedReader]:
        """Make a stream seekable, if necessary by a copy in a temporary file."""
        if stream.seekable():
            yield stream
            return
        with tempfile.TemporaryFile() as copy:
            while chunk := stream.read(2**20):
                try:
                    copy.write(chunk)
                except OSError as error:
                    self.failure = error
                    raise
            copy.seek(0)
            yield io.BufferedReader(copy, BUFFER_BYTES)  # pyright: ignore[reportArgumentType]  # a file in spite of the stubs


class Recognised(NamedTuple):
    """A stream at the first byte, and the kind of the stream."""

    kind: Kind
    stream: io.BufferedReader


@contextmanager
def open_watched(url: str) -> Iterator[WatchedFile]:
    """Open the file at an fsspec URL. Raises DataError if the file is missing or unreadable."""
    try:
        file_system, path = fsspec.core.url_to_fs(url)
        opened = file_system.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
    except Exception as error:  # file systems raise many types of errors
        raise_failure(url, error)
    with opened as file:
        yield WatchedFile(file)


def raise_failure(url: str, failure: Exception) -> NoReturn:
    """Raise the error of a file system, as a `DataError` if a retry cannot help."""
    if isinstance(failure, FileNotFoundError):
        raise DataError(f"{url} was listed as a source file and is gone: put it back, or start again with a new listing.") from failure
    if isinstance(failure, PermissionError | IsADirectoryError | ValueError):  # fsspec's ValueError: a server without byte ranges
        raise DataError(f"{url} cannot be read ({failure}): this user must be able to read byte ranges of a source file.") from failure
    raise failure


def is_packed(name: str) -> bool:
    """Whether the name has the extension of a packed file or an archive."""
    return name.lower().endswith(ENDINGS)


def recognise(raw: io.RawIOBase) -> Recognised:
    """Recognise a stream by its first bytes. An error after the first byte is raised at its position, not here."""
    if raw.seekable():
        stream: io.BufferedReader = io.BufferedReader(raw, BUFFER_BYTES)
        start = stream.read(SNIFF_BYTES)
        stream.seek(0)
        return Recognised(kind_of(start), stream)
    start, failure = b"", None
    try:
        while len(start) < SNIFF_BYTES and (chunk := raw.read(SNIFF_BYTES - len(start))):
            start += chunk
    except Exception as error:  # raised at its position
        if not start:
            raise
        failure = error
    return Recognised(kind_of(start), io.BufferedReader(Measured(None, again(start, failure, raw.read)), BUFFER_BYTES))


def again(start: bytes, failure: Exception | None, read: Callable[[int], bytes | None]) -> Callable[[int], bytes]:
    """Return a function that reads `start`, which was read ahead, then the rest by `read`, or raises the error behind `start`."""
    left = memoryview(start)
    del start

    def read_again(size: int) -> bytes:
        nonlocal left
        if left:
            chunk, left = bytes(left[:size]), left[size:] or memoryview(b"")  # frees the start
            return chunk
        if failure:
            raise failure
        return read(size) or b""

    return read_again


class Measured(ByteStream):
    """The output of `read` as a stream, counted as unpacked bytes of `file`. Raises FileFault if the file expands too much."""

    def __init__(self, file: WatchedFile | None, read: Callable[[int], bytes]):
        self._file, self._read = file, read

    def readinto(self, buffer: Any, /) -> int:
        """Read up to `len(buffer)` bytes and return their number."""
        into = memoryview(buffer).cast("B")
        chunk = self._read(len(into))
        if self._file is not None:
            self._file.unpacked_bytes += len(chunk)
            check_expansion(self._file.unpacked_bytes, min(self._file.taken_bytes, self._file.size_bytes))
        into[: len(chunk)] = chunk
        return len(chunk)
