"""Files as documents to be scanned: what their first bytes say that they are is read, whatever they are called.

A document is a line of JSON lines, an element of a JSON list, a row of a table, a record of a WARC, or a whole text; packed files and
archives are looked into. Its text is every string of the line or row. What does not parse is scanned as it is, so that a damaged line
hides nothing; what was not read is named.

This is a second reader of files, beside `tasks/data/reading.py`: training takes one key of a row and refuses what is damaged, the scan
takes every string and leaves nothing out. Kinds, packings, archives, footers and bounds are the same code (`tasks/data/formats`).
"""

import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from phasewise.tasks.data.archives import MAX_LAYERS, Member, members, unpack
from phasewise.tasks.data.findings import FileFault
from phasewise.tasks.data.listing import matches
from phasewise.tasks.data.streams import BUFFER_BYTES, Kind, Recognised, WatchedFile, open_watched, recognise
from phasewise.tasks.validation.scan_tables import NoText, table_texts
from phasewise.tasks.validation.scan_texts import PEEK_BYTES, Transcoded, begins_with_json, read_json, read_lines, read_text, warc_records
from phasewise.tasks.validation.scan_values import Text
from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.scan import Document

DAMAGE = (FileFault, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException, OverflowError, RecursionError)
INSIDE = "!/"
MAX_UNREAD = 1000
LINE_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")


class FilePiece(NamedTuple):
    """A stretch of a file that one worker scans.

    Attributes:
        name: for people.
        below: below what was given, which globs look at.
        start, stop: of plain JSON lines those that begin in these bytes; otherwise the whole file (`stop` is None).
        exclude: globs over the names of files and of members of archives that are not to be scanned.
    """

    name: str
    url: str
    below: str
    size_bytes: int
    start: int = 0
    stop: int | None = None
    exclude: tuple[str, ...] = ()


class Unread(NamedTuple):
    """What was not read, and why: nothing is passed over in silence. What holds no text, or is excluded (by which glob), is no fault."""

    file: str
    reason: str
    is_fault: bool
    excluded_by: str | None = None


def excluded(name: str, below: str, globs: Sequence[str]) -> Unread | None:
    """What to say of a file that one of the globs takes out."""
    glob = next((glob for glob in globs if matches(glob, below)), None)
    return Unread(name, f"excluded by {glob}", is_fault=False, excluded_by=glob) if glob else None


@dataclass
class Reading:
    """Goes through the documents of a piece once; numbers count from its start.

    Attributes:
        documents: how many there were so far.
        unread: what of it was not read, the first `MAX_UNREAD` and a last one for the others.
    """

    piece: FilePiece
    documents: int = 0
    unread: list[Unread] = field(default_factory=list)
    _more: int = 0

    def __iter__(self) -> Iterator[Document]:
        piece = self.piece
        try:
            with open_watched(piece.url) as file:
                yield from self._guarded(file, piece.name, lambda: self._documents(file, piece.name, recognise(file), 0))
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            self._say(piece.name, str(error))

    def _guarded(self, file: WatchedFile, name: str, read: Callable[[], Iterator[Document]]) -> Iterator[Document]:
        """What `read` gives; what ends it is said by name, unless it says nothing about the file."""
        try:
            yield from read()
        except NoText as found:
            self._say(name, str(found), is_fault=False)
        except DAMAGE as error:
            if isinstance(error, pa.ArrowMemoryError) or file.failure is not None:
                raise
            self._say(name, str(error) or type(error).__name__)

    def _documents(self, file: WatchedFile, name: str, layer: Recognised, depth: int) -> Iterator[Document]:
        kind, stream = layer
        if self.piece.stop is not None:
            yield from self._numbered(name, read_lines(stream, self.piece.start, self.piece.stop))
        elif kind.nature in ("packed", "archive", "warc") and depth == MAX_LAYERS:
            raise FileFault("other format", f"it is packed more than {MAX_LAYERS} times, one in the other: unpack it")
        elif kind.nature == "packed":
            yield from self._documents(file, name, recognise(unpack(file, stream, kind.name)), depth + 1)
        elif kind.nature in ("archive", "warc"):
            is_empty = True
            for member in members(kind.name, file, stream) if kind.nature == "archive" else warc_records(file, stream):
                is_empty = False
                yield from self._member(file, name, member, depth + 1)
            if is_empty:
                raise NoText(f"the {kind.name} has no file in it")
        else:
            yield from self._leaf(file, name, kind, stream)

    def _member(self, file: WatchedFile, name: str, member: Member, depth: int) -> Iterator[Document]:
        inner = f"{name}{INSIDE}{member.name}"
        below = f"{self.piece.below}{inner.removeprefix(self.piece.name)}"
        if is_out := excluded(inner, below, self.piece.exclude):
            self._add(is_out)
        elif member.no_text:
            self._say(inner, member.no_text, is_fault=False)
        else:
            yield from self._guarded(file, inner, lambda: self._documents(file, inner, recognise(member.open()), depth))

    def _leaf(self, file: WatchedFile, name: str, kind: Kind, stream: io.BufferedReader) -> Iterator[Document]:
        match kind.nature:
            case "empty":
                return
            case "text" | "wide text":
                yield from self._numbered(name, _texts(name, kind, stream))
            case "parquet" | "arrow":
                with file.spooled(stream) as table:
                    yield from self._numbered(name, table_texts(table, kind.nature))
            case "no text":
                raise NoText(f"{kind.name} holds no text")
            case _:
                raise FileFault("other format", f"not read: it is {kind.name}. Unpack or convert it, or exclude it with --exclude")

    def _numbered(self, name: str, texts: Iterator[Text]) -> Iterator[Document]:
        """Texts as documents of the piece; what of them is no text, and that there is none in any of them, is said."""
        garbled = with_text = count = 0
        for text in texts:
            yield Document(name, self.documents, text.id, text.text)
            self.documents += 1
            count += 1
            garbled += not text.readable
            with_text += bool(text.text)
        if garbled:
            self._say(name, f"{garbled} of its {count} documents are neither text nor anything else that is known: scanned as they stand")
        if count and not with_text:
            self._say(name, f"none of its {count} documents has any text", is_fault=False)

    def _say(self, name: str, reason: str, *, is_fault: bool = True) -> None:
        self._add(Unread(name, reason, is_fault))

    def _add(self, unread: Unread) -> None:
        if len(self.unread) < MAX_UNREAD:
            self.unread.append(unread)
            return
        self._more += 1
        is_fault = unread.is_fault or (self._more > 1 and self.unread[-1].is_fault)
        self.unread[MAX_UNREAD:] = [Unread(self.piece.name, f"{self._more} more of its members", is_fault)]


def _texts(name: str, kind: Kind, stream: io.BufferedReader) -> Iterator[Text]:
    """Of a text the name tells lines from a text that looks like them, and nothing else."""
    if kind.nature == "wide text":
        stream = io.BufferedReader(Transcoded(stream, kind.name), BUFFER_BYTES)
    if is_called_lines(name):
        return read_lines(stream)
    return read_json(stream) if begins_with_json(stream.peek(PEEK_BYTES)) else read_text(stream)


def is_called_lines(name: str) -> bool:
    """Whether a name says that the file holds JSON lines."""
    parts = name.lower().rsplit("/", 1)[-1].split(".")
    return any(f".{part}" in LINE_ENDINGS for part in parts[1:][-2:])
