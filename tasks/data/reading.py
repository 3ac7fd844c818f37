"""Documents of a source: its files are split into pieces and read with bounded memory, and each fault has a reason.

The longest document (32 MiB), a page of Parquet or a record batch of Arrow, and the buffers bound the memory. Unusable data become a
`Fault`, and reading continues after it unless the rest of the file is unreliable. Only failures of the file system raise.

The leakage scan has its own reader (`tasks/validation/scan_files.py`), which takes every string of a row, also of damaged rows.
"""

import lzma
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from io import SEEK_END
from typing import cast

import pyarrow as pa

from phasewise.tasks.data.archives import MAX_LAYERS, members, unpack
from phasewise.tasks.data.conversation_text import build_compose, rendered
from phasewise.tasks.data.filters import build_sift, field_keys
from phasewise.tasks.data.findings import Fault, FileFault, Finding, LeftOut, Reason, Record, Taken, sample_of
from phasewise.tasks.data.source import WITHOUT_FIELDS, Piece, Source
from phasewise.tasks.data.streams import Recognised, WatchedFile, is_packed, open_watched, raise_failure, recognise
from phasewise.tasks.data.tables import read_records, read_texts
from phasewise.tasks.data.text_files import read_json_lines, read_paragraphs, read_plain, take_text
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import code_digest
from phasewise.trainer.data.manifest import SourceFile

__all__ = ["PIECE_BYTES", "READER", "Fault", "Finding", "LeftOut", "Reason", "Record", "pieces_of", "read_piece"]
PIECE_BYTES = 256 * 2**20
WHOLE = "file"  # place of a finding about a whole file
DAMAGE = (FileFault, OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError, pa.ArrowException, OverflowError, RecursionError)
_DECISIVE = ("archives", "filters", "findings", "reading", "streams", "table_process", "tables", "text_files")
READER_CODE = tuple(f"tasks/data/{name}.py" for name in _DECISIVE)
READER = f"documents-2+{code_digest(*READER_CODE)}+unicode-{unicodedata.unidata_version}"
"""Version of the code that reads documents, and of the Unicode tables of the filters."""


def pieces_of(source: Source, files: Iterable[SourceFile]) -> tuple[Piece, ...]:
    """The pieces in the order of the files: ranges of 256 MiB of plain JSON lines, and other files as a whole."""
    pieces: list[Piece] = []
    for file in files:
        url = f"{source.root.rstrip('/')}/{file.name}"
        if source.format != "jsonl" or is_packed(file.name):
            pieces.append(Piece(name=file.name, url=url))
            continue
        for start in range(0, max(1, file.size_bytes), PIECE_BYTES):
            pieces.append(Piece(name=file.name, url=url, start=start, stop=min(start + PIECE_BYTES, file.size_bytes)))
    return tuple(pieces)


def read_piece(source: Source, piece: Piece) -> Iterator[Finding]:
    """Every document of a piece in order: its original text, or the reason against it.

    Raises ConfigError if a filter needs fields and the format has none, or a chat template is unusable. Raises DataError if the file is
    missing, unreadable, or shorter than listed, or a chat template fails. Raises OSError if the file system fails. A retry may help. Raises
    MemoryError if this worker has too little memory.
    """
    if source.format in WITHOUT_FIELDS and field_keys(source.filters):
        raise ConfigError(
            f"{source.url}: filters by {', '.join(field_keys(source.filters))} need documents with fields, but those of format "
            f"{source.format} have none. Remove these filters."
        )
    with open_watched(piece.url) as file:
        try:
            yield from _read_layer(source, piece, file, layer=recognise(file), depth=0)
        except DAMAGE as error:
            yield _end_of(piece, file, error, WHOLE)


def _read_layer(source: Source, piece: Piece, file: WatchedFile, *, layer: Recognised, depth: int) -> Iterator[Finding]:
    """The findings of a file, a member of an archive, or an unpacked stream. Only the first piece of a packed file reads it."""
    kind, stream = layer
    if piece.start and kind.nature != "text":
        return
    if kind.nature in ("packed", "archive") and depth == MAX_LAYERS:
        raise FileFault("other format", f"it is packed more than {MAX_LAYERS} times, one in the other: unpack it")
    if kind.nature == "packed":
        yield from _read_layer(source, piece, file, layer=recognise(unpack(file, stream, kind.name)), depth=depth + 1)
        return
    if kind.nature != "archive":
        yield from _read_documents(source, piece, file, layer=layer, is_whole=depth > 0)
        return
    is_empty = True
    for member in members(kind.name, file, stream):
        if member.no_text:
            continue
        is_empty = False
        try:
            findings = _read_layer(source, piece, file, layer=recognise(member.open()), depth=depth + 1)
            yield from (finding._replace(where=f"{member.name}: {finding.where}") for finding in findings)
        except DAMAGE as error:
            yield _end_of(piece, file, error, member.name)
    if is_empty:
        raise FileFault("empty file", f"the {kind.name} has no file")


def _read_documents(source: Source, piece: Piece, file: WatchedFile, *, layer: Recognised, is_whole: bool) -> Iterator[Finding]:
    kind, stream = layer
    table_format = "parquet" if source.format == "parquet" else "arrow" if source.format == "arrow" else None
    if kind.nature not in (table_format or "text", "empty"):
        found = f"{kind.name.upper()} text" if kind.nature == "wide text" else kind.name
        raise FileFault("other format", f"it is {found}, and the source's format is {source.format}: exclude it, or name its format")
    sift = build_sift(source.filters)
    how = source.conversation
    if source.format in ("text", "markdown"):
        yield from read_plain(stream, sift)
    elif source.format == "paragraphs":
        yield from read_paragraphs(stream, sift)
    elif table_format is not None:
        fields = field_keys(source.filters)
        with file.spooled(stream) as table:
            if how is None:
                yield from read_texts(table, table_format, text_key=source.text_key, field_keys=fields, sift=sift)
            else:
                compose = build_compose(how, source.normalization)
                rows = read_records(table, table_format, keys=(*how.columns, *fields), leave_out=how.leave_out, take=compose)
                yield from rendered(rows, how, sift, piece.name)
    else:
        start, stop = (0, None) if is_whole else (piece.start or 0, piece.stop)
        if stop is not None and stream.seekable():
            size = stream.seek(0, SEEK_END)
            if size < stop:
                raise DataError(f"{piece.url} has {size} bytes, and {stop} were listed: the file changed meanwhile. Start again.")
            stream.seek(0)
        if how is None:
            found = read_json_lines(stream, take=take_text(source.text_key, sift), start=start, stop=stop)
            yield from cast("Iterator[Finding]", found)
            return
        compose = build_compose(how, source.normalization)

        def take(document: object, where: str, line: bytes) -> Taken:
            return compose(document, where) if isinstance(document, dict) else Fault("wrong type", where, sample_of(line))

        yield from rendered(read_json_lines(stream, take=take, start=start, stop=stop), how, sift, piece.name)


def _end_of(piece: Piece, file: WatchedFile, error: Exception, where: str) -> Fault | LeftOut:
    """The finding about an error that ended a file or a member, unless the file system failed."""
    if isinstance(error, pa.ArrowMemoryError):  # an ArrowException about this machine
        raise error
    if file.failure is not None:
        raise_failure(piece.url, file.failure)
    reason = error.reason if isinstance(error, FileFault) else "unreadable"
    if reason == "empty file":
        return LeftOut(reason, where, whole_file=where == WHOLE)
    return Fault(reason, where, sample_of((str(error) or type(error).__name__).encode(errors="replace")), whole_file=True)
