"""Packed streams unpacked, members and frames in a row as one, and a cut in any of them noticed."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import pyarrow as pa

from phasewise.tasks.data.formats.findings import FileFault

PACKED_BYTES = 2**16
MAX_WINDOW_BYTES = 256 * 2**20  # `xz -9` needs 65 MiB; a window of gigabytes is no archive of text
Read = Callable[[int], bytes]


def unpacking(packed: io.BufferedReader, packing: str) -> Read:
    """Reads up to so many unpacked bytes at a time, none at the end.

    Raises:
        FileFault: while reading: the file is truncated.
    """
    if packing in ("zstd", "lz4", "brotli"):
        return _frames_reader(packed, packing)
    return _Members(packed, _DECODERS[packing]).read


def _frames_reader(packed: io.BufferedReader, packing: str) -> Read:
    """Arrow's: the one of python-zstandard takes the end of the file for the end of a frame."""
    stream = pa.CompressedInputStream(pa.PythonFile(packed, "r"), packing)  # pyright: ignore[reportArgumentType]  # one of its names

    def read(size: int) -> bytes:
        try:
            return stream.read(size)
        except OSError as error:
            if "Truncated" in str(error):
                raise FileFault("truncated", f"the file ends inside a frame of {packing}") from error
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


class _Zlib:
    """A gzip member, or a stream of zlib's, with the interface of the others."""

    def __init__(self, window_bits: int):
        self._decoder = zlib.decompressobj(wbits=window_bits)

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
    "gzip": lambda: _Zlib(31),
    "zlib": lambda: _Zlib(15),
    "bzip2": bz2.BZ2Decompressor,
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
                self._waiting = decoder.unused_data
                self._decoder = None
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
