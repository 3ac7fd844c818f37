"""Packed streams, and the members of zip and tar archives as streams. Member names are never used as paths.

`tarfile` takes a damaged header for the end of an archive, and `zipfile` reads only the last of several joined archives. Here both are
faults, because part of the file would remain unread.
"""

import bz2
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import pyarrow as pa

from phasewise.tasks.data.findings import FileFault
from phasewise.tasks.data.streams import TAR_BLOCK_BYTES as BLOCK_BYTES
from phasewise.tasks.data.streams import Measured, WatchedFile

PACKED_BYTES = 2**16
MAX_WINDOW_BYTES = 256 * 2**20  # `xz -9` needs 65 MiB
MAX_LAYERS = 4  # of nested packings and archives
MAX_TABLE_BYTES = 16 * 2**20  # of a zip's table of contents, which is held in memory: about 200,000 members
MAX_UNLISTED_BYTES = 64  # between two members of a zip: a descriptor and padding
MAX_NAME_BYTES = 2**20
LOCAL_HEAD = struct.Struct("<4s22xHH")
ENCRYPTED = 1
FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
ABOUT_THE_NEXT = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
DAMAGE = (zipfile.BadZipFile, tarfile.HeaderError, struct.error, NotImplementedError, RuntimeError, ValueError, zlib.error, OverflowError)
_DECODERS: Mapping[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, wbits=31),
    "zlib": partial(zlib.decompressobj, wbits=15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, memlimit=MAX_WINDOW_BYTES),
}


def unpack(file: WatchedFile, packed: io.BufferedReader, packing: str) -> io.RawIOBase:
    """Unpack a stream of `file`, or raise FileFault if it is truncated or expands too much. Consecutive members form one stream."""
    if packing in ("zstd", "lz4", "brotli"):
        stream = pa.CompressedInputStream(pa.PythonFile(packed, "r"), packing)  # pyright: ignore[reportArgumentType]  # one of its names

        def read_frames(size: int) -> bytes:
            try:
                return stream.read(size)
            except OSError as error:
                if "Truncated" in str(error):
                    raise FileFault("truncated", f"the file ends inside a frame of {packing}") from error
                raise

        return Measured(file, read_frames)
    decoder: Any = None
    waiting, num_members = b"", 0

    def read_members(size: int) -> bytes:
        nonlocal decoder, waiting, num_members
        while True:
            if decoder is None:
                waiting = waiting or packed.read(PACKED_BYTES)
                if not waiting:
                    return b""
                waiting = waiting.lstrip(b"\0") if num_members else waiting  # zero bytes may separate members
                if not waiting:
                    continue
                decoder = _DECODERS[packing]()
                num_members += 1
            tail = getattr(decoder, "unconsumed_tail", b"")  # only zlib's decoders return it
            wants_more = not waiting and not tail and getattr(decoder, "needs_input", True)
            data, waiting = packed.read(PACKED_BYTES) if wants_more else waiting, b""
            unpacked = decoder.decompress(tail + data, size)
            if decoder.eof:
                waiting, decoder = decoder.unused_data, None
            elif wants_more and not data and not unpacked:
                raise FileFault("truncated", f"the file ends inside member {num_members} of its packing")
            if unpacked:
                return unpacked

    return Measured(file, read_members)


class Member(NamedTuple):
    """A file in an archive."""

    name: str  # in the archive
    open: Callable[[], io.RawIOBase]  # its bytes, which must be read before the next member. Raises FileFault
    no_text: str = ""  # reason why it has no text, such as a link


def members(archive: str, file: WatchedFile, stream: io.BufferedReader) -> Iterator[Member]:
    """The files of a `zip` or `tar` by position, without folders. Raises FileFault if the rest of the archive is unreliable."""
    try:
        for member in _zip_members(file, stream) if archive == "zip" else _tar_members(file, stream):
            name = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in member.name)
            yield member._replace(name=name or "(no name)")
    except DAMAGE as error:
        raise FileFault("unreadable", f"a damaged {archive}: {error}") from error


class _Bounded:
    """A zip file whose table of contents has a bounded size."""

    def __init__(self, stream: io.BufferedReader):
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            position = self._stream.tell()
            size = self._stream.seek(0, io.SEEK_END) - position
            self._stream.seek(position)
        if size > MAX_TABLE_BYTES:
            raise FileFault("unreadable", f"the zip has a table of {size} bytes, at most {MAX_TABLE_BYTES} are held: split it")
        return self._stream.read(size)


def _zip_members(file: WatchedFile, packed: io.BufferedReader) -> Iterator[Member]:
    with file.spooled(packed) as stream, zipfile.ZipFile(_Bounded(stream)) as archive:  # pyright: ignore[reportArgumentType]  # it reads, seeks and tells
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        end = 0
        for info in [*infos, None]:
            start = archive.start_dir if info is None else info.header_offset
            if start - end > MAX_UNLISTED_BYTES:
                raise FileFault("unreadable", f"{start - end} bytes of the zip from byte {end} on belong to no member of its table")
            if info is None:
                return
            stream.seek(info.header_offset)
            head = stream.read(LOCAL_HEAD.size)
            if len(head) < LOCAL_HEAD.size:
                raise FileFault("truncated", f"the file ends inside {info.filename!r}")
            _, name_bytes, extra_bytes = LOCAL_HEAD.unpack(head)
            end = info.header_offset + LOCAL_HEAD.size + name_bytes + extra_bytes + info.compress_size
            if not info.is_dir() or info.file_size:
                yield Member(info.filename, partial(_open_zipped, file, archive, info))


def _open_zipped(file: WatchedFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> io.RawIOBase:
    if info.flag_bits & ENCRYPTED:
        raise FileFault("other format", "it is encrypted")
    try:
        member = archive.open(info)
    except DAMAGE as error:
        raise FileFault("unreadable", str(error)) from error

    def read(size: int) -> bytes:
        try:
            return member.read(size)
        except EOFError as error:
            raise FileFault("truncated", "the file ends inside it") from error
        except DAMAGE as error:
            raise FileFault("unreadable", str(error)) from error

    return Measured(file, read)


class _TarHead(tarfile.TarInfo):
    """The header of a member. A damaged or truncated header is a fault, which `tarfile` takes for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header and reject names and records that need much memory."""
        try:
            head = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) in (0, BLOCK_BYTES) and not any(buf):
                raise  # the end of the archive
            if len(buf) < BLOCK_BYTES:
                raise FileFault("truncated", "the file ends inside the head of a member") from error
            raise FileFault("unreadable", f"a damaged tar: {error}") from error
        if head.type in ABOUT_THE_NEXT and head.size > MAX_NAME_BYTES:
            raise FileFault("unreadable", f"a name of {head.size} bytes, at most {MAX_NAME_BYTES} are held")
        return head


def _tar_members(file: WatchedFile, stream: io.BufferedReader) -> Iterator[Member]:
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_TarHead, encoding="utf-8", errors="surrogateescape") as archive:
            for info in archive:
                if info.size < 0:
                    raise FileFault("unreadable", f"{info.name!r} has a size of {info.size} bytes")
                if not info.isdir():
                    yield _tar_member(file, archive, info)
            rest: Any = archive.fileobj
            while content := rest.read(2**16):
                if content.strip(b"\0"):
                    raise FileFault("unreadable", "there is more behind the end of the tar: unpack archives that were put together")
    except tarfile.ReadError as error:
        raise FileFault("truncated", f"the file ends inside a member: {error}") from error


def _tar_member(file: WatchedFile, archive: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
    def read(size: int) -> bytes:  # `extractfile` loses the bytes before a cut
        nonlocal position
        stream.seek(position)
        found = stream.read(min(size, end - position))
        if not found and position < end:
            raise FileFault("truncated", "the file ends inside this member")
        position += len(found)
        return found

    def refuse() -> io.RawIOBase:
        raise FileFault("unreadable", f"a tar member of type {info.type!r}, whose bytes are not there as they are")

    stream: Any = archive.fileobj
    position, end = info.offset_data, info.offset_data + info.size
    if info.issym() or info.islnk():
        return Member(info.name, refuse, "a link within its archive")
    if info.isdev():
        return Member(info.name, refuse, "a device or a pipe, of which the archive has the name alone")
    if info.type not in FILES or info.issparse():
        return Member(info.name, refuse)
    return Member(info.name, partial(Measured, file, read))
