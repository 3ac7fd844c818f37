"""A source's files as documents: split into pieces, read with bounded memory, every fault named.

Memory is bounded by the longest document (32 MiB), a page of Parquet or a record batch of Arrow, and the buffers in between, whatever the
size of the file. What cannot be used is always reported and never raises: it is a `Fault`, and reading goes on after it, unless the
rest of the file cannot be trusted. Only what says nothing about the data raises: a file that is gone, a store that does not answer.

The leakage scan has a reader of its own (`tasks/validation/scan_files.py`): it takes every string of a row, and what is damaged as well.
"""

import lzma
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from io import SEEK_END, BufferedReader
from typing import cast

import pyarrow as pa

from phasewise.tasks.data.archives import MAX_LAYERS, members, unpack
from phasewise.tasks.data.conversation_text import build_compose, rendered
from phasewise.tasks.data.filters import build_sift, field_keys
from phasewise.tasks.data.findings import Fault, FileFault, Finding, LeftOut, Reason, Record, Sift, Taken, sample_of
from phasewise.tasks.data.source import WITHOUT_FIELDS, Piece, Source
from phasewise.tasks.data.streams import Recognised, WatchedFile, is_packed, open_watched, raise_failure, recognise
from phasewise.tasks.data.tables import read_records, read_texts
from phasewise.tasks.data.text_files import Take, read_json_lines, read_paragraphs, read_plain, take_text
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import code_digest
from phasewise.trainer.data.manifest import SourceFile

__all__ = ["PIECE_BYTES", "READER", "Fault", "Finding", "LeftOut", "Reason", "Record", "pieces_of", "read_piece"]
PIECE_BYTES = 256 * 2**20
WHOLE = "file"
"""Where a finding is that is about a whole file."""
DAMAGE = (FileFault, OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError, pa.ArrowException, OverflowError, RecursionError)
_DECISIVE = ("archives", "filters", "findings", "reading", "streams", "table_process", "tables", "text_files")
READER_CODE = tuple(f"tasks/data/{name}.py" for name in _DECISIVE)
READER = f"documents-2+{code_digest(*READER_CODE)}+unicode-{unicodedata.unidata_version}"
"""Version of the code that turns files into documents, and of the Unicode tables by which filters tell letters from digits."""


def pieces_of(source: Source, files: Iterable[SourceFile]) -> tuple[Piece, ...]:
    """What is read by one worker each, in the order of the files: plain JSON lines by ranges of 256 MiB, all else by files."""
    return tuple(piece for file in files for piece in _pieces(source, file))


def read_piece(source: Source, piece: Piece) -> Iterator[Finding]:
    """Every document of a piece, in order: its text as it is in the file, or why it is not taken.

    Raises:
        ConfigError: a filter asks for fields where a file is one document, or a chat template cannot be used.
        DataError: the file is gone, must not be read, or is shorter than it was when it was listed; or a chat template fails.
        OSError: the file system fails; trying again may help.
        MemoryError: this worker is short of memory.
    """
    if source.format in WITHOUT_FIELDS and field_keys(source.filters):
        raise ConfigError(
            f"{source.url}: filters by {', '.join(field_keys(source.filters))} need documents with fields, but those of format "
            f"{source.format} have none. Remove these filters."
        )
    with open_watched(piece.url) as file:
        try:
            yield from _layer(source, piece, file, layer=recognise(file), depth=0)
        except DAMAGE as error:
            yield _end_of(piece, file, error, WHOLE)


def _layer(source: Source, piece: Piece, file: WatchedFile, *, layer: Recognised, depth: int) -> Iterator[Finding]:
    """What a file, a member of it or what it unpacks to holds. Of a packed file the piece that begins it reads all."""
    kind, stream = layer
    if piece.start and kind.nature != "text":
        return
    if kind.nature in ("packed", "archive") and depth == MAX_LAYERS:
        raise FileFault("other format", f"it is packed more than {MAX_LAYERS} times, one in the other: unpack it")
    if kind.nature == "packed":
        yield from _layer(source, piece, file, layer=recognise(unpack(file, stream, kind.name)), depth=depth + 1)
    elif kind.nature == "archive":
        is_empty = True
        for member in members(kind.name, file, stream):
            if member.no_text:
                continue
            is_empty = False
            try:
                findings = _layer(source, piece, file, layer=recognise(member.open()), depth=depth + 1)
                yield from (finding._replace(where=f"{member.name}: {finding.where}") for finding in findings)
            except DAMAGE as error:
                yield _end_of(piece, file, error, member.name)
        if is_empty:
            raise FileFault("empty file", f"the {kind.name} has no file")
    else:
        yield from _findings(source, piece, file, layer=layer, is_whole=depth > 0)


def _findings(source: Source, piece: Piece, file: WatchedFile, *, layer: Recognised, is_whole: bool) -> Iterator[Finding]:
    kind, stream = layer
    wanted = source.format if source.format in ("parquet", "arrow") else "text"
    if kind.nature not in (wanted, "empty"):
        found = f"{kind.name.upper()} text" if kind.nature == "wide text" else kind.name
        raise FileFault("other format", f"it is {found}, and the source's format is {source.format}: exclude it, or name its format")
    sift = build_sift(source.filters)
    match source.format:
        case "jsonl" if is_whole:
            yield from _texts(source, piece, sift, read_json_lines(stream, take=_take(source, sift)))
        case "jsonl":
            _check_size(piece, stream)
            lines = read_json_lines(stream, take=_take(source, sift), start=piece.start or 0, stop=piece.stop)
            yield from _texts(source, piece, sift, lines)
        case "text" | "markdown":
            yield from read_plain(stream, sift)
        case "paragraphs":
            yield from read_paragraphs(stream, sift)
        case "parquet" | "arrow":
            with file.spooled(stream) as table:
                yield from _rows(source, piece, sift, table)


def _rows(source: Source, piece: Piece, sift: Sift, table: BufferedReader) -> Iterator[Finding]:
    fields = field_keys(source.filters)
    table_format = "parquet" if source.format == "parquet" else "arrow"
    if source.conversation is None:
        return read_texts(table, table_format, text_key=source.text_key, field_keys=fields, sift=sift)
    compose = build_compose(source.conversation, source.normalization)
    keys = (*source.conversation.columns, *fields)
    records = read_records(table, table_format, keys=keys, leave_out=source.conversation.leave_out, take=compose)
    return _texts(source, piece, sift, records)


def _texts(source: Source, piece: Piece, sift: Sift, found: Iterator[Taken]) -> Iterator[Finding]:
    if source.conversation is None:
        return cast("Iterator[Finding]", found)
    return rendered(found, source.conversation, sift, piece.name)


def _take(source: Source, sift: Sift) -> Take:
    if source.conversation is None:
        return take_text(source.text_key, sift)
    compose = build_compose(source.conversation, source.normalization)

    def take(document: object, where: str, line: bytes) -> Taken:
        return compose(document, where) if isinstance(document, dict) else Fault("wrong type", where, sample_of(line))

    return take


def _end_of(piece: Piece, file: WatchedFile, error: Exception, where: str) -> Fault | LeftOut:
    """What ended the reading of a file or a member, unless it says nothing about the data. That nothing is in it is no fault."""
    if isinstance(error, pa.ArrowMemoryError):  # an ArrowException, but it is about this machine and not about the file
        raise error
    if file.failure is not None:
        raise_failure(piece.url, file.failure)
    reason = error.reason if isinstance(error, FileFault) else "unreadable"
    if reason == "empty file":
        return LeftOut(reason, where, whole_file=where == WHOLE)
    return Fault(reason, where, sample_of((str(error) or type(error).__name__).encode(errors="replace")), whole_file=True)


def _pieces(source: Source, file: SourceFile) -> Iterator[Piece]:
    url = f"{source.root.rstrip('/')}/{file.name}"
    if source.format != "jsonl" or is_packed(file.name):
        yield Piece(name=file.name, url=url)
        return
    for start in range(0, max(1, file.size_bytes), PIECE_BYTES):
        yield Piece(name=file.name, url=url, start=start, stop=min(start + PIECE_BYTES, file.size_bytes))


def _check_size(piece: Piece, lines: BufferedReader) -> None:
    if piece.stop is None or not lines.seekable():
        return
    size = lines.seek(0, SEEK_END)
    if size < piece.stop:
        raise DataError(f"{piece.url} has {size} bytes, at least {piece.stop} were listed: it changed meanwhile. Start again.")
    lines.seek(0)
