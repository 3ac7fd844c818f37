"""Files that break readers, through every reader of data plane and scan: how each ends, how long it takes, how much memory.

    python -m tests.hostile_files --folder DIR --mutations 5000

A reader must end a file as read, quarantined (what can't be used is counted) or refused – by name –, in 30 seconds and 1 GiB, and never
with an exception that nobody caught. Files are those of the folder, those that break readers by design (`tests/hostile_makers.py`), and
mutations of good ones by seed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

MAX_SECONDS = 30.0
MAX_BYTES = 2**30
START_SECONDS = 300.0
FORMATS = ("jsonl", "text", "parquet", "arrow")
Outcome = Literal["read", "listed as no text", "quarantined", "refused", "exception", "too slow", "killed"]
BAD: tuple[Outcome, ...] = ("exception", "too slow", "killed")
SHOWN = 10


class End(NamedTuple):
    """How a reader ended a file.

    Attributes:
        reader: `scan`, or the source's format on the data plane.
        peak_bytes: the process's resident memory at its most.
    """

    file: str
    reader: str
    outcome: Outcome
    seconds: float
    peak_bytes: int
    said: str


def read_as_source(path: Path, file_format: str) -> tuple[Outcome, str]:
    """The data plane: a source of this one file."""
    from phasewise.tasks.data.listing import fingerprint
    from phasewise.tasks.data.reading import Fault, pieces_of, read_piece
    from phasewise.tasks.data.source import Source
    from phasewise.trainer.base.errors import DataError

    text_key = _text_key(path, file_format)
    source = Source.model_validate({"url": str(path.parent), "include": (path.name,), "format": file_format, "text_key": text_key})
    records = 0
    faults = list[Fault]()
    try:
        listing = fingerprint(source)
        if listing.rejected:
            return "refused", listing.rejected[0].reason
        for finding in (finding for piece in pieces_of(source, listing.files) for finding in read_piece(source, piece)):
            if isinstance(finding, Fault):
                faults = [*faults[:SHOWN], finding]
            else:
                records += 1
    except DataError as error:
        return "refused", str(error)
    if any(fault.reason == "other format" for fault in faults):
        return "refused", faults[-1].sample
    return ("quarantined", f"{faults[-1].reason}: {faults[-1].sample}") if faults else ("read", f"{records} documents")


def _text_key(path: Path, file_format: str) -> str:
    """A column that holds text, if the file says that it has one: a column that is not there is refused before anything is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string_view)
    if file_format not in ("parquet", "arrow") or not path.is_file():
        return "text"
    try:
        if file_format == "parquet":
            schema = pq.read_schema(path)
        else:
            schema = (pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream)(path.read_bytes()).schema
        names = [column.name for column in schema if any(is_kind(column.type) for is_kind in is_text)]
    except (OSError, ValueError, pa.ArrowException):
        return "text"
    return "text" if "text" in names or not names else names[0]


def read_as_scan(path: Path, index: Path) -> tuple[Outcome, str]:
    """The scan, with the search for items."""
    from phasewise.tasks.validation.scan_pieces import scan_pieces, select
    from phasewise.validations.limits import LeakageLimits

    limits = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
    selection = select([str(path)])
    scanned = scan_pieces(selection.pieces, index, limits, workers=1)
    unread = [*selection.unread, *scanned.unread]
    documents = sum(scan.documents for scan in scanned.scans.values())
    if faults := [one for one in unread if one.is_fault]:
        return ("quarantined" if documents else "refused"), faults[0].reason
    return ("listed as no text", unread[0].reason) if unread and not documents else ("read", f"{documents} documents")


def ends(files: Iterable[Path], readers: Sequence[str]) -> Iterator[End]:
    """How each file ends under each reader, in a process of its own that is replaced when it dies or hangs."""
    with tempfile.TemporaryDirectory() as folder:
        index = _index(Path(folder))
        worker = _Worker(index)
        for file in files:
            for reader in readers:
                yield worker.end(file, reader)
        worker.stop()


class _Worker:
    """A process that reads a file at a time."""

    def __init__(self, index: Path):
        self._index = index
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._index), daemon=True)
        self._process.start()
        other.close()
        if not self._pipe.poll(START_SECONDS):
            raise RuntimeError(f"the reading process was to be ready within {START_SECONDS} seconds")
        self._pipe.recv()

    def end(self, file: Path, reader: str) -> End:
        """Read a file; a process that does not answer is ended and replaced."""
        self._pipe.send((str(file), reader))
        try:
            if self._pipe.poll(MAX_SECONDS):
                return End(file.name, reader, *self._pipe.recv())
            outcome, said = "too slow", f"no answer within {MAX_SECONDS} seconds"
        except (EOFError, ConnectionError):
            outcome, said = "killed", "the process died"
        self.stop()
        self._start()
        return End(file.name, reader, outcome, MAX_SECONDS, 0, said)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, index: Path) -> None:
    """Answer with outcome, seconds, peak bytes and what was said."""
    warm_up = index.parent / "warm-up.txt"
    warm_up.write_text("a few words\n")
    read_as_scan(warm_up, index)
    pipe.send("ready")
    while True:
        try:
            file, reader = pipe.recv()
        except EOFError:
            return
        _forget_peak()
        began = time.perf_counter()
        try:
            outcome, said = read_as_scan(Path(file), index) if reader == "scan" else read_as_source(Path(file), reader)
        except Exception as error:  # it is what is looked for
            outcome = "exception"
            said = f"{type(error).__name__}: {error}"
        pipe.send((outcome, time.perf_counter() - began, _peak_bytes(), said))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def _index(folder: Path) -> Path:
    """Some made items; few, for what is measured is the reading."""
    from experiments.leakage_recall.made_items import made_items
    from phasewise.tasks.validation.index_store import index_of_folder

    (folder / "benchmarks" / "made").mkdir(parents=True)
    rows = ({"id": item.id, "question": item.question, "answer": item.solutions[0]} for item in made_items(20, seed=4) if item.solutions)
    (folder / "benchmarks" / "made" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return index_of_folder(str(folder / "benchmarks"), folder)


def report(found: Sequence[End]) -> str:
    """Counts by outcome, the worst time and memory, for each reader."""
    lines: list[str] = []
    for reader in dict.fromkeys(end.reader for end in found):
        of_reader = [end for end in found if end.reader == reader]
        counts = ", ".join(f"{outcome} {count}" for outcome, count in Counter(end.outcome for end in of_reader).most_common())
        slow = max(of_reader, key=lambda end: end.seconds)
        large = max(of_reader, key=lambda end: end.peak_bytes)
        lines.append(f"{reader}: {len(of_reader)} files: {counts}")
        lines.append(f"    worst time {slow.seconds:.2f} s ({slow.file}), worst memory {large.peak_bytes / 2**20:.0f} MiB ({large.file})")
    lines += [f"BAD: {end}" for end in bad(found)]
    return "\n".join(lines)


def bad(found: Iterable[End]) -> list[End]:
    """The ends that must not be."""
    return [end for end in found if end.outcome in BAD or end.seconds > MAX_SECONDS or end.peak_bytes > MAX_BYTES]


def main() -> int:
    """Read everything, print the counts; 1 if something ended as it must not."""
    from tests.hostile_makers import designed, mutations

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="files that break readers; all below it")
    parser.add_argument("--mutations", type=int, default=0, help="how many mutations of good files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ends", type=Path, help="write every end there, as JSON lines")
    options: Any = parser.parse_args()
    kinds: dict[str, Iterable[Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.folder:
            kinds["hostile files"] = sorted(path for path in options.folder.rglob("*") if path.is_file())
        kinds["made by design"] = designed(Path(folder) / "designed")
        kinds["mutations"] = mutations(Path(folder) / "mutations", options.mutations, options.seed)
        found: dict[str, list[End]] = {}
        for kind, files in kinds.items():
            found[kind] = list(ends(files, ("scan", *FORMATS)))
            print(f"== {kind}\n{report(found[kind])}", flush=True)
    if options.ends:
        options.ends.write_text("".join(json.dumps({"kind": kind, **end._asdict()}) + "\n" for kind in found for end in found[kind]))
    return 1 if any(bad(of_kind) for of_kind in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
