"""A process that builds an index of benchmark items or scans files with an index, to measure its peak memory.

python -m experiments.bench.scan_process build INDEX [BENCHMARKS]
python -m experiments.bench.scan_process scan INDEX FILES
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.bench.memory import peak_of_this_process
from experiments.leakage_recall.made_items import made_items
from phasewise.tasks.validation.scan_pieces import open_index, scan_pieces, select
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.item_files import read_benchmarks
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
MADE_PER_BENCHMARK = 2000


@dataclass(frozen=True)
class Built:
    items_of: str
    items: int
    index_bytes: int
    read_seconds: float
    build_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Scanned:
    """Scan, and return the amount and the peak resident memory after the imports and at the end."""

    bytes: int
    hits: int
    before_bytes: int
    peak_bytes: int


def build(folder: Path, benchmarks: Path | None) -> Built:
    start = time.perf_counter()
    items = read_benchmarks(benchmarks) if benchmarks else made_items(MADE_PER_BENCHMARK, seed=0)
    read = time.perf_counter()
    index = LeakageIndex.build(items)
    built = time.perf_counter()
    index.save(folder)
    items_of = f"all of {benchmarks.parent.name}/{benchmarks.name}" if benchmarks else "made items"
    num_bytes = sum(array.nbytes for array in vars(index).values() if isinstance(array, np.ndarray))
    return Built(items_of, sum(index.items_per_benchmark.values()), num_bytes, read - start, built - read, peak_of_this_process())


def scan(index: Path, files: Path) -> Scanned:
    before = peak_of_this_process()
    open_index(index)
    found = scan_pieces(select([str(files)]).pieces, index, LIMITS, workers=1)
    return Scanned(found.scans[None].bytes, len(found.scans[None].hits), before, peak_of_this_process())


def main() -> None:
    work, index, *rest = sys.argv[1:]
    paths = list(map(Path, rest))
    done = scan(Path(index), *paths) if work == "scan" else build(Path(index), paths[0] if paths else None)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
