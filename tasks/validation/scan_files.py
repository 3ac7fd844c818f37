"""Files as documents for the scan. The first bytes of a file decide its format, not its name.

A document is a line of JSON lines, an element of a JSON list, a row of a table, a record of a WARC, or a whole text, also in packed files
and archives. Its text is all strings of the line or row. Unparsable input is scanned unchanged, and unread files are reported.

`tasks/data/reading.py` is another reader, for training: it takes one key of a row and rejects damaged rows. Both share the code for
formats, packing, archives, footers and limits (`tasks/data`).
"""

import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from phasewise.tasks.data.archives import MAX_LAYERS, members, unpack
from phasewise.tasks.data.findings import FileFault
from phasewise.tasks.data.listing import matches
from phasewise.tasks.data.streams import Recognised, WatchedFile, open_watched, recognise
from phasewise.tasks.data.text_files import BYTE_ORDER_MARK
from phasewise.tasks.validation.scan_tables import NoText, table_texts
from phasewise.tasks.validation.scan_texts import PEEK_BYTES, Text, read_json, read_lines, read_text, transcoded, warc_records
from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.scan import Document

DAMAGE = (FileFault, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException, OverflowError, RecursionError)
INSIDE = "!/"
MAX_UNREAD = 1000
LINE_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")


class FilePiece(NamedTuple):
    """A part of a file for one worker."""

    name: str  # for people
    url: str
    below: str  # the path below the given folder, for globs
    size_bytes: int
    start: int = 0  # start, stop: the byte range of plain JSON lines. `stop` is None for a whole file.
    stop: int | None = None
    exclude: tuple[str, ...] = ()  # globs over names of files and of archive members


class Unread(NamedTuple):
    """An unread file or member with the reason. Files without text and excluded files are not faults."""

    file: str
    reason: str
    is_fault: bool
    excluded_by: str | None = None


def excluded(name: str, below: str, globs: tuple[str, ...]) -> Unread | None:
    """Return an `Unread` if one of the globs matches."""
    glob = next((glob for glob in globs if matches(glob, below)), None)
    return Unread(name, f"excluded by {glob}", is_fault=False, excluded_by=glob) if glob else None


def is_called_lines(name: str) -> bool:
    """Return whether a name has an extension of JSON lines."""
    parts = name.lower().rsplit("/", 1)[-1].split(".")
    return any(f".{part}" in LINE_ENDINGS for part in parts[1:][-2:])


@dataclass
class Reading:
    """An iterable of the documents of a piece, which are numbered from its start."""

    piece: FilePiece
    documents: int = 0
    unread: list[Unread] = field(default_factory=list)
    _more: int = 0

    def __iter__(self) -> Iterator[Document]:
        piece = self.piece
        try:
            with open_watched(piece.url) as file:
                yield from self._guarded(file, piece.name, lambda: recognise(file), 0)
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            self._say(Unread(piece.name, str(error), is_fault=True))

    def _guarded(self, file: WatchedFile, name: str, look: Callable[[], Recognised], depth: int) -> Iterator[Document]:
        """Yield the documents of a file or member, and report an error that is a fault of the file."""
        try:
            yield from self._documents(file, name, look(), depth)
        except NoText as found:
            self._say(Unread(name, str(found), is_fault=False))
        except DAMAGE as error:
            if isinstance(error, pa.ArrowMemoryError) or file.failure is not None:
                raise
            self._say(Unread(name, str(error) or type(error).__name__, is_fault=True))

    def _documents(self, file: WatchedFile, name: str, layer: Recognised, depth: int) -> Iterator[Document]:
        (kind, stream), piece = layer, self.piece
        if piece.stop is not None:
            yield from self._numbered(name, read_lines(stream, piece.start, piece.stop))
            return
        if kind.nature in ("packed", "archive", "warc") and depth == MAX_LAYERS:
            raise FileFault("other format", f"it is packed more than {MAX_LAYERS} times, one in the other: unpack it")
        match kind.nature:
            case "packed":
                yield from self._documents(file, name, recognise(unpack(file, stream, kind.name)), depth + 1)
            case "archive" | "warc":
                member = None
                for member in members(kind.name, file, stream) if kind.nature == "archive" else warc_records(file, stream):
                    inner = f"{name}{INSIDE}{member.name}"
                    if is_out := excluded(inner, f"{piece.below}{inner.removeprefix(piece.name)}", piece.exclude):
                        self._say(is_out)
                    elif member.no_text:
                        self._say(Unread(inner, member.no_text, is_fault=False))
                    else:
                        yield from self._guarded(file, inner, lambda member=member: recognise(member.open()), depth + 1)
                if member is None:
                    raise NoText("unreadable", f"the {kind.name} has no file in it")
            case "text" | "wide text":
                stream = transcoded(stream, kind.name) if kind.nature == "wide text" else stream
                texts = read_lines(stream) if is_called_lines(name) else None
                if texts is None:  # JSON may have any name
                    is_json = stream.peek(PEEK_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[")
                    texts = read_json(stream) if is_json else read_text(stream)
                yield from self._numbered(name, texts)
            case "parquet" | "arrow":
                with file.spooled(stream) as table:
                    yield from self._numbered(name, table_texts(table, kind.nature))
            case "empty":
                return
            case "no text":
                raise NoText("unreadable", f"{kind.name} holds no text")
            case _:
                raise FileFault("other format", f"not read: it is {kind.name}. Unpack or convert it, or exclude it with --exclude")

    def _numbered(self, name: str, texts: Iterator[Text]) -> Iterator[Document]:
        """Yield texts as numbered documents of the piece. Report documents that are not readable, and files without any text."""
        garbled = with_text = count = 0
        for text in texts:
            yield Document(name, self.documents, text.id, text.text)
            self.documents += 1
            count += 1
            garbled += not text.readable
            with_text += bool(text.text)
        if garbled:
            what = f"{garbled} of its {count} documents are neither text nor anything else that is known: scanned as they stand"
            self._say(Unread(name, what, is_fault=True))
        if count and not with_text:
            self._say(Unread(name, f"none of its {count} documents has any text", is_fault=False))

    def _say(self, unread: Unread) -> None:
        if len(self.unread) < MAX_UNREAD:
            self.unread.append(unread)
            return
        self._more += 1
        is_fault = unread.is_fault or (self._more > 1 and self.unread[-1].is_fault)
        self.unread[MAX_UNREAD:] = [Unread(self.piece.name, f"{self._more} more of its members", is_fault)]
