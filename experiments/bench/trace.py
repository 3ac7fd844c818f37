"""How long a question of `phasewise trace` takes at full scale: Marin 8B's phases over caches of 10^9 rows whose indices are made up.

`python -m experiments.bench.trace FOLDER [DOCUMENTS]` writes the caches and measures. The shards' tokens are files with holes.
"""

import io
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.flows.cli.trace import Question, trace
from phasewise.flows.plan import data_plan
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.trace import trace_query
from phasewise.tasks.data.caches import INDEX_ROWS, INDEX_SCHEMA, shard_name
from phasewise.tasks.data.documents import DIGEST, DocumentsManifest, Part, write_model
from phasewise.tasks.data.findings import Tally
from phasewise.tasks.data.plan import ComponentPlan
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.data.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, Shard, write_manifest

ROWS = 10**9
SHARDS = 4
"""Of each component."""
FILES_A_SHARD = 5
SHORT_DOCUMENTS, SHORT_TOKENS = 10, 5_000
"""The first documents of each shard; all others have any length."""


def write_world(root: Path, *, documents: int, rows: int = ROWS) -> tuple[Path, dict[str, list[str]]]:
    written = load_recipe("marin-8b", "full").model_dump(mode="json")
    main_line = [phase for phase in written["phases"] if not phase["branch"]]
    components = sorted({name for phase in main_line for _, shares in phase["mixture"] for name in shares})
    sources: dict[str, Any] = {}
    for name in components:
        write_atomically(root / "text" / name / "a.jsonl", b'{"text": "made up"}\n')
        sources[name] = {"url": (root / "text" / name).as_uri(), "include": ["*.jsonl"], "format": "jsonl"}
    raw = written | {"name": "made-8b", "phases": main_line, "sources": sources, "accepts": [], "pins": []}
    raw["tokenizer"] = {"name": "made-up/tokenizer", "vocab_size": written["tokenizer"]["vocab_size"], "components": None}
    recipe = Recipe.model_validate(raw)
    (root / "recipe.json").write_text(recipe.model_dump_json())
    plan = data_plan(recipe, Home.open(str(root / "home")))
    train_tokenizer([["a few words"]], 300, plan.tokenizer)
    tokenizer = digest_of_file(plan.tokenizer)
    seq_len = recipe.phases[0].model.seq_len
    ids: dict[str, list[str]] = {}
    for number, component in enumerate(plan.components.values()):
        tokens = (rows // len(plan.components) + (number < rows % len(plan.components))) * seq_len
        ids[component.name] = write_component(component, tokens, documents // len(plan.components), tokenizer)
    return root / "recipe.json", ids


def write_component(component: ComponentPlan, tokens: int, documents: int, tokenizer: str) -> list[str]:
    parts = [write_shard(component.train.folder, number, tokens // SHARDS, documents // SHARDS) for number in range(SHARDS)]
    write_cache(component, "train", [shard for shard, _ in parts], tokenizer)
    held_out, _ = write_shard(component.held_out.folder, 0, 10**5, 10)
    write_cache(component, "held_out", [held_out], tokenizer)
    folder = component.documents.folder
    for number, (_, raw) in enumerate(parts):
        table = np.empty(len(raw), DIGEST)
        table["digest"], table["row"] = np.sort(raw), np.arange(len(raw))
        write_atomically(folder / f"part-{number:05d}-0000.digests", table.tobytes())
    named = tuple(
        Part(name=f"part-{number:05d}-0000", documents=len(raw), text_bytes=0, digest="", ids_digest="")
        for number, (_, raw) in enumerate(parts)
    )
    manifest = DocumentsManifest(
        key=component.documents.key,
        source={},
        sources=(),
        parts=named,
        copies=(0,) * SHARDS,
        copies_digest="",
        tally=Tally(),
        train=documents,
        held_out=10,
    )
    write_model(folder / MANIFEST_NAME, manifest)
    return [bytes(digest).ljust(32, b"\0").hex() for _, raw in parts for digest in raw[:SHORT_DOCUMENTS]]


def write_shard(folder: Path, number: int, tokens: int, documents: int) -> tuple[Shard, np.ndarray]:
    """A sparse shard of zeros with an index of documents of all lengths, and the digests."""
    name, draw = shard_name(number), np.random.default_rng(number)
    short = np.arange(min(SHORT_DOCUMENTS, documents)) * SHORT_TOKENS
    offsets = np.unique(
        np.concatenate([short, draw.integers(SHORT_DOCUMENTS * SHORT_TOKENS // 2, tokens // 2, documents - len(short)) * 2])
    )
    documents = len(offsets)
    raw = np.frombuffer(os.urandom(32 * documents), "S32")
    text, ends = raw.tobytes().hex().encode(), np.arange(0, 64 * documents + 1, 64, dtype=np.int32)
    ids = pa.StringArray.from_buffers(documents, pa.py_buffer(ends.tobytes()), pa.py_buffer(text))
    files = [f"folder/file-{number:05d}-{at * FILES_A_SHARD // documents:05d}.jsonl.gz" for at in range(documents)]
    lengths = np.diff(offsets, append=tokens)
    table = pa.table([ids, pa.array(files), pa.array(offsets), pa.array(lengths)], schema=INDEX_SCHEMA)
    content = io.BytesIO()
    with pq.ParquetWriter(content, INDEX_SCHEMA, compression="zstd") as writer:
        for batch in table.to_batches(INDEX_ROWS):
            writer.write_batch(batch)
    write_atomically(folder / f"{name}.parquet", content.getvalue())
    with open(folder / f"{name}.bin", "wb") as holes:
        holes.truncate(2 * tokens)
    index_digest = digest_of_bytes(content.getvalue())
    return Shard(name=name, tokens=tokens, documents=documents, digest="", index_digest=index_digest), raw


def write_cache(component: ComponentPlan, split: str, shards: list[Shard], tokenizer: str) -> None:
    folder = component.train.folder if split == "train" else component.held_out.folder
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "component": component.name,
        "split": split,
        "key": component.train.key if split == "train" else component.held_out.key,
        "source": {},
        "sources": (),
        "reader": "",
        "normalizer": "",
        "encoder": "",
        "tokenizer_digest": tokenizer,
        "begin_of_text": 0,
        "end_of_text": 1,
        "dtype": "uint16",
        "shards": tuple(shards),
        "documents": sum(shard.documents for shard in shards),
        "tokens": sum(shard.tokens for shard in shards),
        "text_bytes": 0,
        "left_out": {},
    }
    write_manifest(folder, Manifest.model_validate(values))


def ask(recipe: Path, target: str, **question: Any) -> tuple[dict[str, Any], float, float]:
    clock, processor = time.monotonic(), time.process_time()
    with patch.object(trace_query, "check_begins"):  # documents never start in the gaps
        answer = trace(f"{recipe}{target}", "full", str(recipe.parent / "home"), Question(**question))
    return answer, time.monotonic() - clock, time.process_time() - processor


def main() -> None:
    folder, documents = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10**7
    started = time.monotonic()
    recipe, ids = write_world(folder, documents=documents)
    print(f"{ROWS:,} rows and {documents:,} documents of {len(ids)} components written in {time.monotonic() - started:.0f} s")
    one = next(iter(ids.values()))[0]
    for _ in range(2):
        for target, question in (
            ("/kestrel", {"step": 600_000, "row": 7}),
            ("/phoenix", {"step": 1_000_000, "row": 3071}),
            ("", {"document": one}),
            ("", {"document": one[:12]}),
            ("/kestrel", {"step": 600_000}),
        ):
            answer, clock, processor = ask(recipe, target, **question)
            print(
                f"{target or 'all phases'} {question}: {len(answer['rows']):,} pieces, {clock:.2f} s ({processor:.2f} s of the processor)"
            )
    clock = time.monotonic()
    with suppress(DataError):
        ask(recipe, "", source_file="folder/file-00002-00003.jsonl.gz")
    print(f"a source file with a twentieth of the rows is refused after {time.monotonic() - clock:.2f} s")
    print(f"memory at its highest: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
