"""Peak memory of a worker while it builds documents and token caches, over inputs of different size."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from dask.distributed import Client

from experiments.bench.builds import plan_build, two_workers, write_documents_and_tokenizer
from experiments.bench.measure import Options, Row
from experiments.bench.real_text import write_json_lines
from phasewise.tasks.data.prepare import build_missing_caches

SMALL_BYTES, NUM_FILES = 100 * 10**6, 4
STATUS = Path("/proc/self/status")


def rows(options: Options) -> Iterator[Row]:
    if not STATUS.exists():
        yield Row("peak memory of a worker", None, note=f"needs Linux's {STATUS}, not there on {sys.platform}")
        return
    large_bytes = int(options.gigabytes * 1e9)
    small = peak_bytes(SMALL_BYTES)
    large = peak_bytes(large_bytes)
    sizes = f"{large_bytes / 1e6:,.0f} MB over {SMALL_BYTES / 1e6:,.0f} MB"
    note = f"{large / 2**20:.0f} and {small / 2**20:.0f} MiB"
    yield Row(f"peak memory of a worker, {sizes}", large / small, at_least=0.9, at_most=1.1, note=note)


def peak_bytes(input_bytes: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_json_lines(Path(folder) / "sources", input_bytes, num_files=NUM_FILES, packed=True)
        with two_workers() as client:
            plan = plan_build(Path(folder) / "sources", Path(folder) / "home")
            workers = set(_peaks(client))
            write_documents_and_tokenizer(plan)
            build_missing_caches(plan)
            peaks = _peaks(client)
        if set(peaks) != workers:
            raise RuntimeError(f"a worker died or was replaced: {workers} before, {set(peaks)} after")
        return max(peaks.values())


def _peaks(client: Client) -> dict[str, int]:
    return cast(dict[str, int], client.run(peak_of_this_process))


def peak_of_this_process() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
