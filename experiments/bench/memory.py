"""Documents and token caches from inputs of different size: peak memory of a worker, and the rate over the bare tokenizer."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from dask.distributed import Client

from experiments.bench.builds import VOCAB_SIZE, WORKERS, encode_bare, plan_build, two_workers
from experiments.bench.measure import Options, Row, on_cores, seconds
from experiments.bench.real_text import real_texts, write_json_lines
from experiments.bench.tokenization import MIN_PREPARED
from phasewise.tasks.data.prepare import SPLITS, build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.trainer.data.manifest import read_manifest

SMALL_BYTES, NUM_FILES = 100 * 10**6, 4
STATUS = Path("/proc/self/status")


def rows(options: Options) -> Iterator[Row]:
    if not STATUS.exists():
        yield Row("peak memory of a worker", None, note=f"needs Linux's {STATUS}, not there on {sys.platform}")
        return
    large_bytes = int(options.gigabytes * 1e9)
    small = _built(SMALL_BYTES)
    large = _built(large_bytes)
    sizes = f"{large_bytes / 1e6:,.0f} MB over {SMALL_BYTES / 1e6:,.0f} MB"
    note = f"{large.peak_bytes / 2**20:.0f} and {small.peak_bytes / 2**20:.0f} MiB"
    yield Row(f"peak memory of a worker, {sizes}", large.peak_bytes / small.peak_bytes, at_least=0.95, at_most=1.05, note=note)
    rate = large.text_bytes / large.seconds
    note = f"{rate / 1e6:.1f} MB/s; bare before and after {' and '.join(f'{bare / 1e6:.1f}' for bare in large.bare_rates)} MB/s"
    share = rate / (sum(large.bare_rates) / len(large.bare_rates))
    yield Row(f"files → token cache, {large_bytes / 1e6:,.0f} MB, share of bare encode_batch", share, at_least=MIN_PREPARED, note=note)


class _Build(NamedTuple):
    """A build from files to token caches. Rates are in bytes a second."""

    peak_bytes: int
    text_bytes: int
    seconds: float
    bare_rates: list[float]


def _built(input_bytes: int) -> _Build:
    with tempfile.TemporaryDirectory() as folder, on_cores(WORKERS):
        write_json_lines(Path(folder) / "sources", input_bytes, num_files=NUM_FILES, packed=True)
        plan = plan_build(Path(folder) / "sources", Path(folder) / "home")
        with two_workers() as client:
            workers = set(_peaks(client))
            documents = seconds(lambda: write_missing_documents(plan))
            make_missing_tokenizer(plan, VOCAB_SIZE, None)
            texts = list(real_texts(SMALL_BYTES))
            bare_bytes = sum(len(text.encode()) for text in texts)
            before = bare_bytes / encode_bare(plan, texts)
            caches = seconds(lambda: build_missing_caches(plan))
            after = bare_bytes / encode_bare(plan, texts)
            peaks = _peaks(client)
        if set(peaks) != workers:
            raise RuntimeError(f"a worker died or was replaced: {workers} before, {set(peaks)} after")
        text_bytes = sum(read_manifest(cache).text_bytes for split in SPLITS for cache in plan.folders(split).values())
        return _Build(max(peaks.values()), text_bytes, documents + caches, [before, after])


def _peaks(client: Client) -> dict[str, int]:
    return cast(dict[str, int], client.run(peak_of_this_process))


def peak_of_this_process() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
