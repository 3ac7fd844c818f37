"""From files to documents: read, normalise, drop exact copies, choose the held-out split, write Parquet."""

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.data.source import Source
from trainer.config import Frozen
from trainer.data.manifest import MANIFEST_NAME, SourceFile, Split
from trainer.errors import DataError
from trainer.storage import digest_of_bytes, digest_of_json, write_json

READER_VERSION = "documents-1"
NORMALIZER_VERSION = "nfc-lf-1"
HELD_OUT_ONE_IN = 16
SCHEMA = pa.schema({"id": pa.string(), "source_file": pa.string(), "split": pa.string(), "text": pa.string()})


class DocumentsManifest(Frozen):
    """Written last, beside `documents.parquet`."""

    key: str
    sources: tuple[SourceFile, ...]
    train: int
    held_out: int
    copies: int


def documents_key(source: Source, files: tuple[SourceFile, ...]) -> str:
    """Digest of everything that decides the documents."""
    return digest_of_json(
        {
            "reader": READER_VERSION,
            "normalizer": NORMALIZER_VERSION,
            "held_out_one_in": HELD_OUT_ONE_IN,
            "source": source.model_dump(mode="json"),
            "files": [file.model_dump(mode="json") for file in files],
        }
    )


def read_texts(source: Source, url: str) -> Iterator[str]:
    """The texts of one file; `.gz`, `.xz` and the like are opened by their names.

    Raises:
        DataError: the file does not read, a line is not JSON, or its text is missing or not a text.
    """
    rows = _parquet_rows(source, url) if source.format == "parquet" else _json_lines(source, url)
    try:
        for where, text in rows:
            if not isinstance(text, str):
                raise DataError(f"{where}: {source.text_key!r} must be a text, found {type(text).__name__}.")
            if re.search("[\ud800-\udfff]", text):
                raise DataError(f"{where}: {source.text_key!r} must be Unicode text, found half of a surrogate pair.")
            yield text
    except UnicodeDecodeError as error:
        raise DataError(
            f"{url} must be UTF-8, found {error.reason} at byte {error.start}: it may be packed in a way that is not known here."
        ) from None
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(f"{url} does not read: {error}") from None


def _json_lines(source: Source, url: str) -> Iterator[tuple[str, object]]:
    compression = "zstd" if url.endswith(".zstd") else "infer"  # the one ending that fsspec does not know
    with fsspec.open(url, "rt", encoding="utf-8", compression=compression) as lines:
        for number, line in enumerate(lines, start=1):  # pyright: ignore[reportArgumentType]  # fsspec's OpenFile is a file once entered
            if not line.strip():
                continue
            try:
                text = json.loads(line)[source.text_key]
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{url}, line {number}: expected a JSON object with a field {source.text_key!r}.") from None
            yield f"{url}, line {number}", text


def _parquet_rows(source: Source, url: str) -> Iterator[tuple[str, object]]:
    with fsspec.open(url, "rb") as file:
        parquet = pq.ParquetFile(file)  # pyright: ignore[reportArgumentType]  # fsspec's OpenFile is a file once entered
        if source.text_key not in parquet.schema_arrow.names:
            raise DataError(f"{url}: expected a column {source.text_key!r}, found {', '.join(parquet.schema_arrow.names)}.")
        number = 0
        for batch in parquet.iter_batches(columns=[source.text_key]):
            for text in batch.column(0).to_pylist():
                number += 1
                yield f"{url}, row {number}", text


def normalize(text: str) -> str:
    """Unicode NFC and plain line ends."""
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")


def split_of(digest: str) -> Split:
    """One document in sixteen is held out, by its own digest: adding a document moves no other."""
    return "held_out" if int(digest[:8], 16) % HELD_OUT_ONE_IN == 0 else "train"


def write_documents(component: str, source: Source, files: tuple[SourceFile, ...], folder: Path) -> DocumentsManifest:
    """Read a component's files and write its documents; the manifest last.

    Raises:
        DataError: a split is empty.
    """
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    copies = 0
    for file in files:
        for text in map(normalize, read_texts(source, file.url)):
            digest = digest_of_bytes(text.encode())
            copies += digest in seen
            if text.strip() and digest not in seen:
                seen.add(digest)
                rows.append({"id": digest, "source_file": file.url, "split": split_of(digest), "text": text})
    held_out = sum(row["split"] == "held_out" for row in rows)
    if not 0 < held_out < len(rows):
        raise DataError(
            f"component {component}: {len(rows)} documents in {len(files)} files leave {len(rows) - held_out} to train on and "
            f"{held_out} held out; both need at least one. Add documents to {source.url}."
        )
    manifest = DocumentsManifest(
        key=documents_key(source, files), sources=files, train=len(rows) - held_out, held_out=held_out, copies=copies
    )
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".documents.parquet.part"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), temporary)
    temporary.replace(folder / "documents.parquet")
    write_json(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def read_split_texts(folder: Path, split: Split) -> list[str]:
    """The texts of one split, in order."""
    return [str(text) for text in read_documents(folder, split)["text"].to_pylist()]


def read_documents(folder: Path, split: Split) -> pa.Table:
    """The documents of one split, in order: id, source_file, split, text."""
    return pq.read_table(folder / "documents.parquet", filters=pc.field("split") == split)
