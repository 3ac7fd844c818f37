"""Files of any file system as streams of bytes: opened by URL, unpacked by what their first bytes say, and never held whole.

Two kinds of trouble are kept apart. What the file system fails with (a lost connection, a refused key) says nothing about the data: it is
remembered and raised again. What the bytes are (cut short, damaged, a few that unfold into very many) is a fault of the file.
"""

import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
BLOCK_BYTES = 8 * 2**20  # of a remote file; at most two are held
BUFFER_BYTES = 2**18
ENDINGS = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz")


class Kind(NamedTuple):
    """What a stretch of bytes is.

    Attributes:
        nature: how it is read; `no text` is what holds none by its nature, `unknown` is what no reader takes.
        name: of packings and archives the one that it is, of wide text its encoding, of all else what to call it.
    """

    nature: Nature
    name: str


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
    """What begins with these bytes, of which `SNIFF_BYTES` are enough. Fewer are taken for the whole."""
    if not start:
        return Kind("empty", "an empty file")
    if SKIPPABLE_FRAME.match(start):
        at = 0
        while SKIPPABLE_FRAME.match(start, at):
            at += 8 + int.from_bytes(start[at + 4 : at + 8], "little")
        return Kind("packed", "lz4" if start.startswith(LZ4_MAGIC, at) else "zstd")
    for pattern, kind in _PATTERNS:
        if pattern.match(start):
            return kind
    if _is_tar(start[:TAR_BLOCK_BYTES]):
        return Kind("archive", "tar")
    if _begins_with_a_schema(start):
        return Kind("arrow", "an Arrow stream")
    if encoding := _wide_encoding(start):
        return Kind("wide text", encoding)
    return TEXT if is_text(start, cut=len(start) >= SNIFF_BYTES) or _begins_with_a_line_of_json(start) else UNKNOWN


def _begins_with_a_schema(start: bytes) -> bool:
    """Whether an Arrow stream begins as older writers had it, with the schema's message and no mark before it."""
    if not 16 <= int.from_bytes(start[:4], "little") <= MAX_SCHEMA_BYTES:
        return False
    try:
        return pa.ipc.read_message(pa.py_buffer(start)).type == "schema"
    except (pa.ArrowException, OSError):
        return False


def is_text(raw: bytes, *, cut: bool) -> bool:
    """Whether bytes read as text: next to no control characters, and none at all where they are not UTF-8. `cut`: more follows."""
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


def _begins_with_a_line_of_json(start: bytes) -> bool:
    """Whether what looks damaged is so behind a first line that looks like JSON: then it is JSON lines, some of them damaged."""
    line, end, _ = start.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    return bool(end) and line[:1] in (b"{", b"[") and line.rstrip()[-1:] in (b"}", b"]") and is_text(line, cut=False)


def _is_tar(block: bytes) -> bool:
    """Whether a first block is the head of a member: its checksum says so, of old archives, too, that have no mark."""
    if len(block) < TAR_BLOCK_BYTES:
        return False
    digits = block[148:156].strip(b" \0")
    if not digits.isdigit() or any(digit not in b"01234567" for digit in digits):
        return False
    return int(digits, 8) == sum(block) - sum(block[148:156]) + 8 * ord(" ")


def _wide_encoding(start: bytes) -> str | None:
    even, odd = start[0:4096:2], start[1:4096:2]
    if len(start) < 4:
        return None
    if odd.count(0) > 0.4 * len(odd) and even.count(0) < 0.02 * len(even):
        return "utf-16-le"
    if even.count(0) > 0.4 * len(even) and odd.count(0) < 0.02 * len(odd):
        return "utf-16-be"
    return None


class WatchedFile(io.RawIOBase):
    """A file that remembers what its file system failed with while reading. It counts the bytes that were read from it, and
    the bytes that they unpacked to."""

    def __init__(self, file: Any):
        self._file = file
        self.failure: Exception | None = None
        self.taken_bytes = 0
        self._unpacked_bytes = 0
        self._size_bytes = self._measured()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """Some servers give a file from its start only."""
        return bool(self._file.seekable())

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer`, or less of it; how many bytes came."""
        with self._watched():
            count: int = self._file.readinto(buffer)
        self.taken_bytes += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The byte that comes next."""
        return self._file.tell()

    def unfold(self, count: int) -> None:
        """Count bytes that were unpacked, on whatever level: what is read twice is not counted twice against them.

        Raises:
            FileFault: they are too many for a file of this size.
        """
        self._unpacked_bytes += count
        check_expansion(self._unpacked_bytes, min(self.taken_bytes, self._size_bytes))

    @contextmanager
    def spooled(self, stream: io.BufferedReader) -> Iterator[io.BufferedReader]:
        """A stream as one that can be read from anywhere: copied, if need be, to a file without a name that is gone when it is closed."""
        if stream.seekable():
            yield stream
            return
        with tempfile.TemporaryFile() as copy:
            while chunk := stream.read(2**20):
                with self._watched():
                    copy.write(chunk)
            copy.seek(0)
            yield io.BufferedReader(copy, BUFFER_BYTES)  # pyright: ignore[reportArgumentType]  # a file, whatever the stubs call it

    def _measured(self) -> int:
        if not self._file.seekable():
            return sys.maxsize
        size = self._file.seek(0, io.SEEK_END)
        self._file.seek(0)
        return size

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each file system has errors of its own
            self.failure = error
            raise


class Recognised(NamedTuple):
    """What a stream is, and the stream from its first byte."""

    kind: Kind
    stream: io.BufferedReader


@contextmanager
def open_watched(url: str) -> Iterator[WatchedFile]:
    """The file at an fsspec URL, read in blocks.

    Raises:
        DataError: it is not there, or must not be read.
    """
    try:
        file_system, path = fsspec.core.url_to_fs(url)
        opened = file_system.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
    except Exception as error:  # each file system has errors of its own
        raise_failure(url, error)
    with opened as file:
        yield WatchedFile(file)


def raise_failure(url: str, failure: Exception) -> NoReturn:
    """Raise a file system's failure: as a refusal if trying again cannot help, otherwise as it is."""
    if isinstance(failure, FileNotFoundError):
        raise DataError(
            f"{url} was listed as a source file and is gone: put it back, or start again so that it is listed anew."
        ) from failure
    if isinstance(failure, PermissionError | IsADirectoryError | ValueError):  # fsspec's ValueError: a server gives no part of a file
        raise DataError(f"{url} cannot be read ({failure}): a source file must be one that can be read in parts by this user.") from failure
    raise failure


def is_packed(name: str) -> bool:
    """Whether a file's name says that it is packed, or an archive."""
    return name.lower().endswith(ENDINGS)


def recognise(raw: io.RawIOBase) -> Recognised:
    """What the bytes from the start of `raw` are. What fails behind the first of them fails when it is come to, and not here."""
    if raw.seekable():
        stream: io.BufferedReader = io.BufferedReader(raw, BUFFER_BYTES)
        start = stream.read(SNIFF_BYTES)
        stream.seek(0)
        return Recognised(kind_of(start), stream)
    again = _Again(raw)
    return Recognised(kind_of(again.start), io.BufferedReader(again, BUFFER_BYTES))


class Measured(io.RawIOBase):
    """What `read` gives as a stream, measured against the file that it comes of."""

    def __init__(self, file: WatchedFile, read: Callable[[int], bytes]):
        self._file, self._read = file, read

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer`, or less of it; how many bytes came."""
        into = memoryview(buffer).cast("B")
        chunk = self._read(len(into))
        self._file.unfold(len(chunk))
        into[: len(chunk)] = chunk
        return len(chunk)


class _Again(io.RawIOBase):
    """A stream that was read a little ahead, from its first byte; `start` is what was read."""

    def __init__(self, raw: io.RawIOBase):
        self._raw = raw
        self._failure: Exception | None = None
        self.start = b""
        try:
            while len(self.start) < SNIFF_BYTES and (chunk := raw.read(SNIFF_BYTES - len(self.start))):
                self.start += chunk
        except Exception as error:  # it is raised again in its place
            self._failure = error
            if not self.start:
                raise
        self._left = self.start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        into = memoryview(buffer).cast("B")
        if self._left:
            chunk, self._left = self._left[: len(into)], self._left[len(into) :]
            into[: len(chunk)] = chunk
            return len(chunk)
        if self._failure:
            raise self._failure
        return self._raw.readinto(into) or 0  # pyright: ignore[reportAttributeAccessIssue]  # every raw stream has it
