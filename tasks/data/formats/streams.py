"""Files of any file system as streams of bytes: opened by URL, unpacked by name, and never held whole.

Two kinds of trouble are kept apart. What the file system fails with (a lost connection, a refused key) says nothing about the data: it is
remembered and raised again. What the bytes are (cut short, damaged, a few that unfold into very many) is a fault of the file.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import fsspec
import pyarrow as pa

from tasks.data.formats.findings import FileFault
from trainer.errors import DataError

BLOCK_BYTES = 8 * 2**20  # of a remote file; at most two are held
BUFFER_BYTES = 2**18
PACKED_BYTES = 2**16
MAX_EXPANSION = 200
FREE_EXPANSION_BYTES = 100 * 2**20
MAX_WINDOW_BYTES = 256 * 2**20  # `xz -9` needs 65 MiB; a window of gigabytes is no archive of text
ENDINGS = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz")


class WatchedFile(io.RawIOBase):
    """A file that remembers what its file system failed with while reading, and counts the bytes that were taken from it."""

    def __init__(self, file: Any):
        self._file = file
        self.failure: Exception | None = None
        self.taken_bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """Some servers give a file from its start only."""
        return bool(self._file.seekable())

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer`, or less of it; how many bytes came."""
        try:
            count: int = self._file.readinto(buffer)
        except Exception as error:  # each file system has errors of its own
            self.failure = error
            raise
        self.taken_bytes += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The byte that comes next."""
        return self._file.tell()


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
    """Whether a file's name says that it is packed."""
    return name.lower().endswith(ENDINGS)


def unpack(file: WatchedFile, name: str) -> io.BufferedReader:
    """The bytes that a file holds, unpacked if its name says that it is packed. Several members in a row are one stream.

    Raises:
        FileFault: while reading: the file is truncated, or expands too much.
    """
    packed: io.BufferedReader = io.BufferedReader(file, BUFFER_BYTES)
    if not is_packed(name):
        return packed
    ending = name.lower().rpartition(".")[2]
    read = _zstandard_reader(packed) if ending in ("zst", "zstd") else _Members(packed, _DECODERS[ending]).read
    return io.BufferedReader(_Unpacked(file, read), BUFFER_BYTES)


def check_expansion(unpacked_bytes: int, packed_bytes: int) -> None:
    """Refuse what unfolds like a bomb: text rarely packs better than 20 to 1, gzip can reach 1,000 and Zstandard 30,000 to 1.

    Raises:
        FileFault: more than 200 bytes come of one, counted once there are 100 MiB.
    """
    if unpacked_bytes > FREE_EXPANSION_BYTES and unpacked_bytes > MAX_EXPANSION * packed_bytes:
        raise FileFault(
            "expands too much", f"{packed_bytes} bytes unfold into {unpacked_bytes} and more, at most {MAX_EXPANSION} of one are taken"
        )


class _Unpacked(io.RawIOBase):
    """Unpacked bytes as a stream, measured against the packed ones."""

    def __init__(self, file: WatchedFile, read: Callable[[int], bytes]):
        self._file, self._read = file, read
        self._unpacked_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        into = memoryview(buffer).cast("B")
        chunk = self._read(len(into))
        self._unpacked_bytes += len(chunk)
        check_expansion(self._unpacked_bytes, self._file.taken_bytes)
        into[: len(chunk)] = chunk
        return len(chunk)


def _zstandard_reader(packed: io.BufferedReader) -> Callable[[int], bytes]:
    """Arrow's: the one of python-zstandard takes the end of the file for the end of a frame."""
    stream = pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd")

    def read(size: int) -> bytes:
        try:
            return stream.read(size)
        except OSError as error:
            if "Truncated" in str(error):
                raise FileFault("truncated", "the file ends inside a Zstandard frame") from error
            raise

    return read


class _Decoder(Protocol):
    """One member: what `bz2` and `lzma` have. Never more than `max_length` bytes come at once."""

    def decompress(self, data: bytes, max_length: int) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class _Gzip:
    """A gzip member with the interface of the others."""

    def __init__(self):
        self._decoder = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data


_DECODERS: Mapping[str, Callable[[], _Decoder]] = {
    "gz": _Gzip,
    "gzip": _Gzip,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=MAX_WINDOW_BYTES),
}


class _Members:
    """Members one after the other, with or without zero bytes between and after them."""

    def __init__(self, packed: io.BufferedReader, new_decoder: Callable[[], _Decoder]):
        self._packed, self._new_decoder = packed, new_decoder
        self._decoder: _Decoder | None = None
        self._waiting = b""
        self._members = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end."""
        while decoder := self._current():
            data, self._waiting = self._waiting, b""
            if wants := not data and decoder.needs_input:
                data = self._packed.read(PACKED_BYTES)
            unpacked = decoder.decompress(data, size)
            if decoder.eof:
                self._waiting, self._decoder = decoder.unused_data, None
            elif wants and not data and not unpacked:
                raise FileFault("truncated", f"the file ends inside member {self._members} of its packing")
            if unpacked:
                return unpacked
        return b""

    def _current(self) -> _Decoder | None:
        while self._decoder is None:
            self._waiting = self._waiting or self._packed.read(PACKED_BYTES)
            if not self._waiting:
                return None
            if self._members:
                self._waiting = self._waiting.lstrip(b"\0")
            if self._waiting:
                self._decoder = self._new_decoder()
                self._members += 1
        return self._decoder
