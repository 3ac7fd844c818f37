"""Token caches that are written by hand, and the verdict that lets a run read them."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.trainer.base.identity import digest_of_bytes, write_sealed
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, Shard, read_manifest, write_manifest

BEGIN, END = 0, 1


def write_conversations(folder: Path, shards: Sequence[Sequence[tuple[np.ndarray, Sequence[tuple[int, int]]]]], **fields: Any) -> Path:
    """A cache of conversations: each document with its answers, as spans of its own tokens."""
    write_token_cache(folder, [[document for document, _ in shard] for shard in shards])
    manifest = read_manifest(folder)
    written: list[Shard] = []
    for shard, of_shard in zip(manifest.shards, shards, strict=True):
        starts = np.cumsum([0, *(len(document) for document, _ in of_shard)])
        spans = [(start + first, start + stop) for start, (_, answers) in zip(starts, of_shard, strict=False) for first, stop in answers]
        content = np.array(spans, "<i8").tobytes()
        write_atomically(folder / f"{shard.name}.spans", content)
        written.append(shard.but(spans=len(spans), spans_digest=digest_of_bytes(content)))
    write_manifest(folder, manifest.but(shards=tuple(written), template="made up", **fields))
    return folder


def write_token_cache(
    folder: Path,
    shards: Sequence[Sequence[np.ndarray]],
    *,
    source_files: Sequence[Sequence[str]] | None = None,
    dtype: str = "uint16",
    begin_of_text: int = BEGIN,
) -> Path:
    """Write a cache as data preparation does: shards, their index, the manifest last. `source_files`: of each document of each shard."""
    files = source_files or [["by hand"] * len(documents) for documents in shards]
    written = [
        _write_shard(folder, f"shard-{number:05d}", documents, of_shard, dtype)
        for number, (documents, of_shard) in enumerate(zip(shards, files, strict=True))
    ]
    manifest = Manifest.model_validate(
        {
            "format_version": FORMAT_VERSION, "component": folder.name, "split": "train", "key": f"key of {folder.name}", "source": {},
            "sources": (), "reader": "by hand", "normalizer": "none", "encoder": "none", "tokenizer_digest": "none",
            "begin_of_text": begin_of_text, "end_of_text": END, "dtype": dtype, "shards": written,
            "documents": sum(shard.documents for shard in written), "tokens": sum(shard.tokens for shard in written), "text_bytes": 0,
            "left_out": {},
        }
    )  # fmt: skip
    write_manifest(folder, manifest)
    return folder


def write_passing_verdict(run: RunConfig, **changes: Any) -> None:
    """Write the verdict that a run asks for: it passes, unless a change says otherwise."""
    judged = {name: read_manifest(folder).digest for name, folder in run.caches.items()}
    write_sealed(run.verdict, {"passes": True, "judged": judged, **changes})


def _write_shard(folder: Path, name: str, documents: Sequence[np.ndarray], files: Sequence[str], dtype: str) -> Shard:
    lengths = np.array([len(document) for document in documents], np.int64)
    tokens = np.concatenate([np.empty(0, np.uint16), *documents]).astype(dtype)
    columns = {
        "id": pa.array([f"{name} {number}" for number in range(len(documents))], pa.string()), "source_file": pa.array(files, pa.string()),
        "offset": pa.array(np.cumsum(lengths) - lengths, pa.int64()), "length": pa.array(lengths, pa.int64()),
    }  # fmt: skip
    index = io.BytesIO()
    pq.write_table(pa.table(columns), index)
    write_atomically(folder / f"{name}.bin", tokens.tobytes())
    write_atomically(folder / f"{name}.parquet", index.getvalue())
    return Shard(
        name=name, tokens=len(tokens), documents=len(documents), digest=digest_of_bytes(tokens.tobytes()),
        index_digest=digest_of_bytes(index.getvalue()),
    )  # fmt: skip
