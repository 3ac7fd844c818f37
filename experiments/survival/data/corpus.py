"""Some megabytes of real text, this Python's own library, in all the ways in which a source may hold it."""

import gzip
import json
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from phasewise.tasks.data.filters import FieldFilter
from phasewise.tasks.data.source import Source

VOCAB_SIZE = 600
DOCUMENT_CHARACTERS = 3000
ROWS_PER_GROUP = 20
BROKEN_LINE = b'{"text": "this line ends too\n'


def write_corpus(folder: Path) -> None:
    """Three components: JSON lines of every kind, Parquet, and many small files. Documents repeat within a file and across files."""
    documents = library_documents()
    library = list(islice(documents, 640))
    _write(folder / "library/a.jsonl", _lines(library[:200]) + BROKEN_LINE + _lines(library[:10]))
    _write(folder / "library/b.jsonl.gz", gzip.compress(_lines(library[190:580]), mtime=0))
    _write(folder / "library/c.jsonl.zst", zstandard.compress(_lines(library[570:610])))
    _write(folder / "library/more/d.jsonl", _lines([*library[:30], *library[610:]]))
    tables = list(islice(documents, 110))
    for number in range(4):
        _write_table(folder / f"tables/{number}.parquet", tables[25 * number : 25 * number + 35])
    notes = list(islice(documents, 100))
    for number in range(6):
        _write(folder / f"notes/{number}.jsonl", _lines(notes[16 * number : 16 * number + 20]))


def corpus_sources(url: str) -> dict[str, Source]:
    return {
        "library": Source(url=f"{url}/library", include=("*.jsonl*",), format="jsonl", max_bad_fraction=0.01),
        "tables": Source(url=f"{url}/tables", include=("*.parquet",), format="parquet", text_key="content"),
        "notes": Source(
            url=f"{url}/notes", include=("*",), format="jsonl", filters=(FieldFilter(key="meta.kind", keep=("python",)),), exclude=("*.md",)
        ),
    }


def library_documents() -> Iterator[str]:
    """The modules of the standard library, cut at line ends."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        document = ""
        for line in lines:
            document += line
            if len(document) >= DOCUMENT_CHARACTERS:
                yield document
                document = ""
        if document:
            yield document


def _lines(documents: list[str]) -> bytes:
    rows = ({"text": text, "meta": {"kind": "python"}} for text in documents)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _write_table(path: Path, documents: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"content": documents, "length": [len(text) for text in documents]}), path, row_group_size=ROWS_PER_GROUP)
