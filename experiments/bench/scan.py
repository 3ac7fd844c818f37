"""The leakage scan: its rate compared with peers, the gain of a second worker, and the memory of index and scan.

The scan searches for real benchmark items if they are available, otherwise for synthetic items. Rows name the kind.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from experiments.bench.builds import WORKERS, two_workers
from experiments.bench.measure import Options, Row, in_turns, on_cores, seconds
from experiments.bench.memory import STATUS
from experiments.bench.peers import Place
from experiments.bench.real_text import write_json_lines
from experiments.bench.scan_peers import compared, demanded
from experiments.bench.scan_process import LIMITS, Built, Scanned
from experiments.bench.slopes import exponent_row
from phasewise.tasks.validation.scan_pieces import ScanPiece, scan_pieces, select
from tests.shared_data import ROOT

REAL = ROOT / "benchmarks"
MIN_SPEED_UP, MAX_INDEX_MIB, MAX_GROWTH = 1.8, 1024, 1.1
FIRST_BYTES, MAX_FIRST_SECONDS = 2 * 10**6, 5
FILES = 2 * WORKERS
SMALL_BYTES = 100 * 10**6
GROWTH_BYTES = (40 * 10**6, 160 * 10**6, 640 * 10**6)


def rows(options: Options) -> Iterator[Row]:
    """Every demand on the scan."""
    if not STATUS.exists():
        yield Row("leakage scan", None, note=f"needs Linux's {STATUS}, not there on {sys.platform}")
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        index = place / "index"
        built = Built(**_process("build", index, *([REAL] if REAL.is_dir() else [])))
        if (peers := Place.found()) is not None:
            with on_cores(1):
                yield from compared(peers, index, built.items_of, options)
        else:
            yield from demanded(built.items_of)
        with on_cores(WORKERS):
            yield from _two_workers(place, built, options)
            yield _growth(place, options)
        yield from _memory(place, built, int(options.gigabytes * 1e9))


def first_rows(options: Options) -> Iterator[Row]:
    """The first scan of a user, who has neither an index nor compiled code, and a second scan."""
    name = f"first scan of a user, {FIRST_BYTES / 1e6:.0f} MB, index of GSM8K included, seconds"
    if not (REAL / "gsm8k").is_dir():
        yield Row(name, None, note="needs the items of GSM8K")
        return
    first, second = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        write_json_lines(Path(folder) / "text", FIRST_BYTES, num_files=1)
        command = [sys.executable, "-m", "phasewise.flows.cli.main", "scan", f"{folder}/text", "--benchmarks", str(REAL / "gsm8k")]
        for turn in range(options.repeats):
            environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache-{turn}"}
            for found in (first, second):
                scan = partial(subprocess.run, command, env=environment, check=True, capture_output=True)
                found.append(seconds(scan))
    yield Row(name, statistics.median(first), at_most=MAX_FIRST_SECONDS, note=f"{min(first):.1f} to {max(first):.1f}")
    yield Row("the second scan", statistics.median(second), note=f"{min(second):.1f} to {max(second):.1f}")


def _process(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "experiments.bench.scan_process", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"scan_process {arguments[0]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _two_workers(place: Path, built: Built, options: Options) -> Iterator[Row]:
    size = WORKERS * options.megabytes * 10**6
    write_json_lines(place / "two", size, num_files=FILES)
    pieces = select([str(place / "two")]).pieces

    def scan(workers: int) -> float:
        return seconds(lambda: scan_pieces(pieces, place / "index", LIMITS, workers=workers))

    with two_workers():
        sides = {"one": lambda: scan(1), "two": lambda: scan(WORKERS)}
        in_turns(sides, 1)  # maps the index and the compiled code into every process
        medians = in_turns(sides, options.repeats)
    one = medians["one"]
    two = medians["two"]
    with_start = _with_start(pieces, place / "index")
    rates = f"{size / one / 1e6:.1f} and {size / two / 1e6:.1f} MB/s, {size / 1e6:.0f} MB in {FILES} files, cluster running"
    yield Row(f"scan of files for {built.items_of}, two workers over one", one / two, at_least=MIN_SPEED_UP, note=rates)
    yield Row("the same with start and end of the cluster", one / with_start, note=f"{with_start - two:.1f} s more")


def _growth(place: Path, options: Options) -> Row:
    """Growth of a scan by two running workers with the text."""
    pieces: dict[int, tuple[ScanPiece, ...]] = {}
    for size in GROWTH_BYTES:
        write_json_lines(place / f"text-{size}", size, num_files=FILES)
        pieces[size] = select([str(place / f"text-{size}")]).pieces

    def scan(size: int) -> float:
        return seconds(lambda: scan_pieces(pieces[size], place / "index", LIMITS, workers=WORKERS))

    with two_workers():
        sides = {str(size): lambda size=size: scan(size) for size in GROWTH_BYTES}
        in_turns(sides, 1)  # maps the index and the compiled code into every process
        medians = in_turns(sides, options.repeats)
    return exponent_row("a scan of n bytes of text", GROWTH_BYTES, [medians[str(size)] for size in GROWTH_BYTES])


def _with_start(pieces: tuple[ScanPiece, ...], index: Path) -> float:
    def scan() -> None:
        with two_workers():
            scan_pieces(pieces, index, LIMITS, workers=WORKERS)

    return seconds(scan)


def _memory(place: Path, built: Built, large_bytes: int) -> Iterator[Row]:
    note = f"{built.items:,} items, read in {built.read_seconds:.0f} s, indexed in {built.build_seconds:.0f} s"
    yield Row(f"index of {built.items_of}, MiB", _mib(built.index_bytes), at_most=MAX_INDEX_MIB, note=note)
    yield Row("peak memory of the process that builds it, MiB", _mib(built.peak_bytes))
    small, large = (_scanned(place / name, place / "index", size) for name, size in (("small", SMALL_BYTES), ("large", large_bytes)))
    note = f"{_mib(large.before_bytes):.0f} before the index and the first document"
    yield Row("peak memory of a process that scans with it, MiB", _mib(large.peak_bytes), at_most=MAX_INDEX_MIB, note=note)
    sizes = f"{large_bytes / 1e6:,.0f} MB over {SMALL_BYTES / 1e6:,.0f} MB"
    note = f"{_mib(large.peak_bytes):.0f} and {_mib(small.peak_bytes):.0f} MiB"
    yield Row(f"peak memory of a scan, {sizes}", large.peak_bytes / small.peak_bytes, at_most=MAX_GROWTH, note=note)


def _scanned(files: Path, index: Path, size: int) -> Scanned:
    write_json_lines(files, size, num_files=FILES)
    return Scanned(**_process("scan", index, files))


def _mib(size: int) -> float:
    return size / 2**20
