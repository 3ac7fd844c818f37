"""What preparing data would take, before it starts: bytes, tokens, hours and dollars.

The speed is measured here, in about ten seconds, on text of this Python installation: documents are read, normalised, written and
tokenized by the code that does it later, in one process. Workers are taken to add up. The network is not measured, nor is how packed
files are read.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

from phasewise.tasks.data.budget import assumed_tokens
from phasewise.tasks.data.deduplicate import find_copies, num_buckets, ranges_of
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import finish_documents
from phasewise.tasks.data.encode import encode_part
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.parts import bundles_of, read_to_parts
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.python_text import roots
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.trainer.data.manifest import Split, read_manifest

MEASURE_SECONDS = 10.0
ROUND_BYTES = 500_000
DOCUMENT_CHARACTERS = 2000
SAMPLE_VOCABULARY = 8192


@dataclass(frozen=True)
class Speed:
    """Of one process: tokens a second from files to shards, and by which tokenizer; how long that was measured."""

    tokens_per_second: float
    seconds: float
    tokenizer: str


def measure_speed(tokenizer: Path, seconds: float = MEASURE_SECONDS) -> Speed:
    """Prepare text of this installation again and again for about so many seconds.

    Args:
        tokenizer: the recipe's, if it is there; else one is trained on the sample, which is no part of what is measured.
    """
    with tempfile.TemporaryDirectory(prefix="phasewise-speed-") as name:
        folder = Path(name)
        source = _write_sample(folder / "sample")
        words = "the recipe's tokenizer"
        if not tokenizer.exists():
            tokenizer, words = folder / "tokenizer.json", f"a tokenizer of {SAMPLE_VOCABULARY:,} entries, because the recipe's is not here"
            train_tokenizer([_texts(folder / "sample")], SAMPLE_VOCABULARY, tokenizer)
        _prepare(source, folder / "first", tokenizer)  # what is loaded once is not measured
        began, tokens = time.monotonic(), 0
        for number in count():
            tokens += _prepare(source, folder / str(number), tokenizer)
            if (elapsed := time.monotonic() - began) >= seconds:
                return Speed(tokens / elapsed, elapsed, words)
    raise AssertionError


def project(plan: DataPlan, speed: Speed, *, workers: int, price_per_hour: float | None) -> dict[str, object]:
    """What is left to do for the caches that are not built, in the shape of `data prepare --plan --json`."""
    components = [_of_component(component) for component in plan.components.values()]
    tokens = sum(one["tokens_left"] for one in components)
    bytes_left = sum(one["bytes_left"] for one in components)
    seconds = tokens / (speed.tokens_per_second * workers)
    return {
        "components": components,
        "tokens": tokens,
        "bytes": bytes_left,
        "tokens_per_second": speed.tokens_per_second,
        "measured_seconds": speed.seconds,
        "measured_with": speed.tokenizer,
        "workers": workers,
        "hours": seconds / 3600,
        "bytes_per_second": bytes_left / seconds if seconds else 0.0,
        "price_per_hour": price_per_hour,
        "dollars": None if price_per_hour is None else price_per_hour * seconds / 3600,
    }


def _of_component(component: ComponentPlan) -> dict[str, Any]:
    budget = component.listing.budget
    size = sum(file.size_bytes for file in component.files)
    built = component.train.is_built and component.held_out.is_built
    tokens = round(sum(assumed_tokens(component.source, file.name, file.size_bytes) for file in component.files))
    return {
        "name": component.name,
        "files": len(component.files),
        "of_files": budget.of_files if budget else len(component.files),
        "bytes": size,
        "of_bytes": budget.of_bytes if budget else size,
        "tokens": read_manifest(component.train.folder).tokens if built else tokens,
        "is_built": built,
        "tokens_left": 0 if built else tokens,
        "bytes_left": 0 if built else size,
    }


def _write_sample(folder: Path) -> Source:
    """Half a megabyte of Python files as JSON lines."""
    folder.mkdir(parents=True)
    found = 0
    with (folder / "sample.jsonl").open("w", encoding="utf-8") as lines:
        for path in sorted(roots()["stdlib"].glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            cut = (text[at : at + DOCUMENT_CHARACTERS] for at in range(0, len(text), DOCUMENT_CHARACTERS))
            lines.writelines(json.dumps({"text": document}) + "\n" for document in cut)
            found += len(text)
            if found >= ROUND_BYTES:
                break
    return Source(url=folder.as_uri(), include=("*.jsonl",), format="jsonl")


def _texts(folder: Path) -> Iterator[str]:
    with (folder / "sample.jsonl").open(encoding="utf-8") as lines:
        yield from (json.loads(line)["text"] for line in lines)


def _prepare(source: Source, folder: Path, tokenizer: Path) -> int:
    """Everything from files to shards in this process; tokens to train on."""
    listing = fingerprint(source, KnownDigests())
    documents, targets = folder / "documents", cast(dict[Split, Path], {"train": folder / "train"})
    records = [read_to_parts(bundle, 2**24, documents) for bundle in bundles_of("sample", source, listing.files)]
    buckets = num_buckets(sum(part.documents for record in records for part in record.parts))
    kept = [find_copies(documents, ranges_of(records, bucket, buckets), bucket) for bucket in range(buckets)]
    manifest = finish_documents("sample", source, listing, records, kept, documents)
    for number in range(len(manifest.parts)):
        encode_part(documents, number, tokenizer, targets)
    return sum(json.loads(path.read_text())["shard"]["tokens"] for path in (folder / "train").glob("shard-*.json"))
