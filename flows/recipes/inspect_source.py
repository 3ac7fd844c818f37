"""The text of a folder as the source of a component: the format of its files, and the length of its documents."""

import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from phasewise.tasks.data.findings import Record
from phasewise.tasks.data.reading import read_piece
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.storage import parse_json

PACKED = (".gz", ".zst", ".xz", ".bz2", ".lz4")
JSON_LINES = (".jsonl", ".ndjson")
MAX_FILES, SAMPLED_FILES, SAMPLED_DOCUMENTS, SNIFFED_BYTES = 100_000, 50, 2_000, 1 << 16


class InspectedFolder(NamedTuple):
    """The source settings of a folder.

    Attributes:
        text_key: the text field of JSON lines. None for plain text.
        left_out: endings of other text files.
        median_characters: median length of the sampled documents. None without documents.
        beside: further text fields of the sampled documents, which are not trained on.
    """

    include: tuple[str, ...]
    text_key: str | None
    left_out: tuple[str, ...]
    median_characters: int | None
    documents: int
    beside: tuple[str, ...] = ()


def inspect_folder(folder: Path) -> InspectedFolder:
    """Inspect a folder, which may be empty. Plain text is selected, unless the folder has more bytes of JSON lines."""
    by_ending: defaultdict[str, list[Path]] = defaultdict(list)
    for path in islice(_files(folder), MAX_FILES):
        by_ending["".join(path.suffixes[-2:]) if path.suffix in PACKED else path.suffix].append(path)
    texts = {ending: files for ending, files in sorted(by_ending.items()) if ending and _is_text(files[0])}
    lines = {ending: files for ending, files in texts.items() if ending.startswith(JSON_LINES)}
    plain = {ending: files for ending, files in texts.items() if ending not in lines}
    line_bytes, plain_bytes = (sum(path.stat().st_size for paths in one.values() for path in paths) for one in (lines, plain))
    chosen = lines if line_bytes > plain_bytes else plain
    if not chosen:
        return InspectedFolder(("*.txt",), None, (), None, 0)
    files = [path for paths in chosen.values() for path in paths]
    key = _text_key(files[0]) if chosen is lines else None
    reading = {"format": "jsonl", "text_key": key} if key else {"format": "paragraphs"}
    source = Source.model_validate({"url": str(folder), "include": tuple(f"*{ending}" for ending in chosen), **reading})
    lengths: list[int] = []
    beside: set[str] = set()
    for path in files[:: max(1, len(files) // SAMPLED_FILES)]:
        try:
            found = read_piece(source, Piece(name=path.name, url=str(path), start=0, stop=path.stat().st_size))
            for one in islice(found, SAMPLED_DOCUMENTS):
                if isinstance(one, Record):
                    lengths.append(len(one.text))
                    beside.update(one.beside)
        except (PhasewiseError, OSError):  # the run reports unreadable files
            continue
    return InspectedFolder(
        include=source.include,
        text_key=key,
        left_out=tuple(ending for ending in texts if ending not in chosen),
        median_characters=int(median(lengths)) if lengths else None,
        documents=len(lengths),
        beside=tuple(sorted(beside)),
    )


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(place) / name for name in sorted(files) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())  # a link may lead nowhere


def _is_text(path: Path) -> bool:
    if path.suffix in PACKED:
        return len(path.suffixes) > 1
    with path.open("rb") as file:
        start = file.read(SNIFFED_BYTES)
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start > len(start) - 4 > 0 and b"\0" not in start
    return bool(start) and b"\0" not in start


def _text_key(path: Path) -> str:
    if path.suffix in PACKED:
        return "text"
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            first: Any = parse_json(file.readline())
        except ValueError:
            return "text"
    texts = {name: value for name, value in first.items() if isinstance(value, str)} if isinstance(first, dict) else {}
    return "text" if "text" in texts or not texts else max(texts, key=lambda name: len(texts[name]))
