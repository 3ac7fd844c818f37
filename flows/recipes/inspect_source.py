"""What text lies in a folder, as the source of a component: how its files are read, and how long its documents are."""

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
    """How to read a folder.

    Attributes:
        include: globs that take its files.
        text_key: the field of the text in JSON lines; None for plain text.
        left_out: endings of the files that are text too, and are not taken.
        median_characters: half of the sampled documents are at least so long; None where there is none.
        documents: how many were sampled.
        beside: the other fields with text in the sampled documents: none is trained on.
    """

    include: tuple[str, ...]
    text_key: str | None
    left_out: tuple[str, ...]
    median_characters: int | None
    documents: int
    beside: tuple[str, ...] = ()


def inspect_folder(folder: Path) -> InspectedFolder:
    """The text of a folder, of which there may be none yet: plain text, or JSON lines where those are more."""
    by_ending: defaultdict[str, list[Path]] = defaultdict(list)
    for path in islice(_files(folder), MAX_FILES):
        by_ending[_ending(path)].append(path)
    texts = {ending: files for ending, files in sorted(by_ending.items()) if ending and _is_text(files[0])}
    lines = {ending: files for ending, files in texts.items() if ending.startswith(JSON_LINES)}
    plain = {ending: files for ending, files in texts.items() if ending not in lines}
    chosen = lines if _size(lines) > _size(plain) else plain
    if not chosen:
        return InspectedFolder(("*.txt",), None, (), None, 0)
    include = tuple(f"*{ending}" for ending in chosen)
    key = _text_key(next(iter(chosen.values()))[0]) if chosen is lines else None
    documents = _documents(folder, include, key, [path for files in chosen.values() for path in files])
    lengths = [length for length, _ in documents]
    beside = tuple(sorted({name for _, names in documents for name in names}))
    left_out = tuple(ending for ending in texts if ending not in chosen)
    return InspectedFolder(include, key, left_out, int(median(lengths)) if lengths else None, len(lengths), beside)


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in sorted(files) if not name.startswith("."))


def _ending(path: Path) -> str:
    return "".join(path.suffixes[-2:]) if path.suffix in PACKED else path.suffix


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


def _size(files: dict[str, list[Path]]) -> int:
    return sum(path.stat().st_size for paths in files.values() for path in paths)


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


def _documents(folder: Path, include: tuple[str, ...], key: str | None, files: list[Path]) -> list[tuple[int, tuple[str, ...]]]:
    reading = {"format": "jsonl", "text_key": key} if key else {"format": "paragraphs"}
    source = Source.model_validate({"url": str(folder), "include": include, **reading})
    every = max(1, len(files) // SAMPLED_FILES)
    documents: list[tuple[int, tuple[str, ...]]] = []
    for path in files[::every]:
        try:
            found = read_piece(source, Piece(name=path.name, url=str(path), start=0, stop=path.stat().st_size))
            documents += [(len(one.text), one.beside) for one in islice(found, SAMPLED_DOCUMENTS) if isinstance(one, Record)]
        except (PhasewiseError, OSError):  # the run says it, with the reason
            continue
    return documents
