"""Near copies: share of planted copies found, share of template pages kept apart, and throughput.

`python -m experiments.near_copies TEXT_FILE …` plants copies and pages into the text. `--gigabytes N` measures the throughput on N GB that
are made from the same words.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from phasewise.tasks.data.documents import bucket_ranges, bundles_of, find_copies, finish_documents, read_to_parts
from phasewise.tasks.data.listing import fingerprint, part_bytes
from phasewise.tasks.data.near_copies import REMOVED_NAME, find_near_copies
from phasewise.tasks.data.source import Source
from phasewise.trainer.data.manifest import MANIFEST_NAME

SHARES = (0.05, 0.1, 0.2)
Row = tuple[str, str]  # name and text of a document


def one_by_one(_: str, function: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> None:
    for call in calls:
        function(*call)


def search(rows: Iterable[Row], folder: Path) -> tuple[dict[str, str], dict[str, float]]:
    """Prepare documents, one per line of `rows`. Return the removed document → the kept one, and the seconds of each stage."""
    seconds, start = dict[str, float](), time.monotonic()
    texts = folder / "texts"
    texts.mkdir(parents=True)
    names: dict[str, str] = {}
    with (texts / "all.jsonl").open("w") as file:
        for name, text in rows:
            file.write(json.dumps({"text": text, "name": name}) + "\n")
    source = Source(url=texts.as_uri(), include=("*.jsonl",), format="jsonl", deduplicate="near")
    listing = fingerprint(source)
    documents, evidence = folder / "documents", folder / "evidence"

    def lap(stage: str) -> None:
        nonlocal start
        seconds[stage], start = time.monotonic() - start, time.monotonic()

    lap("write")
    records = [read_to_parts(bundle, part_bytes(listing.files), documents) for bundle in bundles_of("web", source, listing.files)]
    lap("read")
    kept = [find_copies(documents, ranges, bucket) for bucket, ranges in enumerate(bucket_ranges(records))]
    lap("exact copies")

    def run(stage: str, function: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> None:
        one_by_one(stage, function, calls)
        lap(stage)

    kept.append(find_near_copies("web", records, documents, evidence=evidence, num_buckets=len(kept), run=run))
    finish_documents("web", source, listing, records, kept, documents)
    lap("evidence")
    from hashlib import sha256

    with (texts / "all.jsonl").open() as file:
        for line in file:
            row = json.loads(line)
            names[sha256(row["text"].encode()).hexdigest()] = row["name"]
    removed = pq.read_table(evidence / REMOVED_NAME).to_pylist()
    assert (documents / MANIFEST_NAME).exists()
    return {names[row["id"]]: names[row["kept_id"]] for row in removed}, seconds


def changed(rng: random.Random, words: Sequence[str], share: float, vocabulary: Sequence[str]) -> str:
    return " ".join(rng.choice(vocabulary) if rng.random() < share else word for word in words)


def planted(vocabulary: Sequence[str], sizes: Sequence[int], each: int, seed: int = 0) -> list[Row]:
    """Documents of these numbers of words, `text 0.05 200 17`, and copies with a share of their words replaced, `copy 0.05 200 17`."""
    rng, at, rows = random.Random(seed), 0, list[Row]()
    for share in SHARES:
        for size in sizes:
            for number in range(each):
                words = vocabulary[at : at + size]
                at = (at + size) % (len(vocabulary) - max(sizes))
                rows.append((f"text {share} {size} {number}", " ".join(words)))
                at_least_one = [changed(rng, words[:1], 1, vocabulary), changed(rng, words[1:], share, vocabulary)]
                rows.append((f"copy {share} {size} {number}", " ".join(at_least_one)))
    rng.shuffle(rows)
    return rows


def templates(vocabulary: Sequence[str], shares: Sequence[float], pages: Sequence[int], words: int = 300, seed: int = 1) -> list[Row]:
    """Pages of one template, whose frame is a share of their words, around different text: `page 0.5 20 7`."""
    rng, at, rows = random.Random(seed), 0, list[Row]()
    for share in shares:
        for count in pages:
            at = rng.randrange(len(vocabulary) - words * (count + 1))
            frame = vocabulary[at : at + int(share * words)]
            for number in range(count):
                at += words
                body = vocabulary[at : at + words - len(frame)]
                half = len(frame) // 2
                rows.append((f"page {share} {count} {number}", " ".join([*frame[:half], *body, *frame[half:]])))
    rng.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--gigabytes", type=float, default=0)
    asked = parser.parse_args()
    vocabulary = " ".join(path.read_text(encoding="utf-8", errors="replace") for path in asked.texts).split()
    sizes, shares, pages = (50, 100, 200, 500, 1000), (0.3, 0.5, 0.6, 0.7, 0.8, 0.9), (4, 20, 100)
    with tempfile.TemporaryDirectory() as folder:
        rows = planted(vocabulary, sizes, asked.each)
        removed, _ = search(rows, Path(folder))
        for share in SHARES:
            for size in sizes:
                of = [f"{share} {size} {number}" for number in range(asked.each)]
                found = sum(removed.get(f"copy {one}") == f"text {one}" or removed.get(f"text {one}") == f"copy {one}" for one in of)
                print(f"{share:.0%} of {size} words changed: {found / len(of):.1%} found")
    with tempfile.TemporaryDirectory() as folder:
        rows = templates(vocabulary, shares, pages)
        removed, _ = search(rows, Path(folder))
        for share in shares:
            for count in pages:
                apart = sum(f"page {share} {count} {number}" not in removed for number in range(count))
                print(f"{count} pages with {share:.0%} of their words in common: {apart / count:.1%} kept apart")
    if asked.gigabytes:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            rng = random.Random(2)

            def made() -> Iterable[Row]:
                """Half new orders of sentences, a quarter pages of templates, a quarter near copies."""
                size, number = 0, 0
                while size < asked.gigabytes * 1e9:
                    text = " ".join(
                        changed(rng, vocabulary[(at := rng.randrange(len(vocabulary) - 40)) : at + 40], 0.3, vocabulary) for _ in range(10)
                    )
                    for copy in range(1 + (number % 4 == 0)):
                        text = changed(rng, text.split(), 0.05, vocabulary) if copy else text
                        size += len(text)
                        yield f"{number} {copy}", text
                    number += 1

            removed, seconds = search(made(), Path(folder))
            print(len(removed), {stage: round(one, 1) for stage, one in seconds.items()})
            print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
