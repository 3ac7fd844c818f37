"""Documents to token cache, two workers, against the bare tokenizer and `datasets.map` on the same texts and the same two cores."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson

from experiments.bench.builds import (
    WORKERS,
    encode_bare,
    num_tokens,
    plan_build,
    prepare_again,
    rebuild_caches,
    texts_of,
    two_workers,
    write_documents_and_tokenizer,
)
from experiments.bench.measure import Options, Row, in_turns, on_cores, seconds
from experiments.bench.real_text import write_json_lines
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.storage import write_atomically

MIN_SHARE_OF_BARE, MIN_PREPARED, MIN_PREPARED_NEAR = 0.85, 0.95, 0.8
FILE_MEGABYTES = 8


def rows(options: Options) -> Iterator[Row]:
    """Shares of the bare throughput, with and without the start of the cluster, and the lead over `datasets.map`."""
    with tempfile.TemporaryDirectory() as folder, on_cores(WORKERS):
        place = Path(folder)
        write_json_lines(place / "sources", options.megabytes * 10**6, num_files=max(2, options.megabytes // FILE_MEGABYTES))
        plan = plan_build(place / "sources", place / "home")
        with two_workers():
            write_documents_and_tokenizer(plan)
        yield from _compared(plan, place, options)


def _compared(plan: DataPlan, place: Path, options: Options) -> Iterator[Row]:
    texts = texts_of(plan)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6

    def build_with_new_cluster() -> None:
        with two_workers():
            rebuild_caches(plan)

    texts_path = place / "texts.jsonl"
    with texts_path.open("wb") as file:
        file.writelines(orjson.dumps({"text": text}) + b"\n" for text in texts)
    with_start = seconds(build_with_new_cluster)
    with two_workers():
        rebuild_caches(plan)
        near = plan_build(place / "sources", place / "near", "near")
        write_atomically(near.tokenizer, plan.tokenizer.read_bytes())
        sides = {
            "bare": lambda: encode_bare(plan, texts),
            "build": lambda: rebuild_caches(plan),
            "datasets": lambda: map_datasets(plan, texts_path),
            "exact": lambda: prepare_again(plan),
            "near": lambda: prepare_again(near),
        }
        medians = in_turns(sides, options.repeats)
        kept = sum(len(text.encode()) for text in texts_of(near)) / 1e6
    for name, side, at_least, size in (
        ("near-duplicate removal off", "exact", MIN_PREPARED, megabytes),
        ("near-duplicate removal on", "near", MIN_PREPARED_NEAR, kept),
    ):
        note = f"{size:.0f} MB kept: {size / medians[side]:.1f} MB/s"
        share = medians["bare"] * size / megabytes / medians[side]
        yield Row(f"files → token cache, {name}, share of bare encode_batch", share, at_least=at_least, note=note)
    bare, built = medians["bare"], medians["build"]
    rates = f"{megabytes:.0f} MB: {megabytes / built:.1f} against {megabytes / bare:.1f} MB/s"
    yield Row("documents → token cache, share of bare encode_batch", bare / built, at_least=MIN_SHARE_OF_BARE, note=rates)
    yield Row("the same with start and end of the cluster", bare / with_start, note=f"{with_start - built:.1f} s more")
    yield Row("documents → token cache, times as fast as datasets.map(num_proc=2)", medians["datasets"] / built, at_least=1)


def map_datasets(plan: DataPlan, texts_path: Path) -> float:
    with tempfile.TemporaryDirectory(dir=texts_path.parent) as cache:
        command = [sys.executable, "-m", "experiments.bench.datasets_map", texts_path, plan.tokenizer, cache]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"datasets.map failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    expected = num_tokens(plan)
    if found["tokens"] != expected:
        raise RuntimeError(f"datasets.map gave {found['tokens']} tokens, the caches have {expected}: they did not do the same work")
    return found["seconds"]
