"""Files of any file system as streams of bytes: opened by URL, unpacked by what their first bytes say, and never held whole.

Two kinds of trouble are kept apart. What the file system fails with (a lost connection, a refused key) says nothing about the data: it is
remembered and raised again. What the bytes are (cut short, damaged, a few that unfold into very many) is a fault of the file.
"""

import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import fsspec

from phasewise.tasks.data.formats.expansion import check_expansion
from phasewise.tasks.data.formats.kinds import SNIFF_BYTES, Kind, kind_of
from phasewise.tasks.data.formats.packings import unpacking
from phasewise.trainer.base.errors import DataError

BLOCK_BYTES = 8 * 2**20  # of a remote file; at most two are held
BUFFER_BYTES = 2**18
ENDINGS = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz")


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


def unpack(file: WatchedFile, packed: io.BufferedReader, packing: str) -> io.RawIOBase:
    """The bytes that a packed stream of `file` holds. Several members in a row are one stream.

    Raises:
        FileFault: while reading: the file is truncated, or expands too much.
    """
    return Measured(file, unpacking(packed, packing))


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
