"""Files that break readers, made here: under every reader of data plane and scan each ends as read, quarantined or refused, by name.

A reader takes at most 30 seconds and 1 GiB, and never ends with an exception that nobody caught.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile_makers import designed, mutations

pytestmark = pytest.mark.timeout(180)  # a guard against hanging
MAX_SECONDS = 30.0
MAX_BYTES = 2**30
START_SECONDS = 120.0
MUTATIONS = 30
READERS = ("scan", "jsonl", "parquet")
DESIGNED_MIB = 120  # just above what is free to unfold
EXPECTED = {
    "bomb.gz": "quarantined", "bomb.gz.gz": "quarantined", "bomb.zst": "quarantined", "bombs.zip": "quarantined",
    "lists of indices.parquet": "refused", "page.parquet": "refused", "deep.json": "read", "bomb.json": "read",
    "encrypted.zip": "refused", "two.zip": "refused", "outside.tar": "read", "links.tar": "listed as no text", "sparse.tar": "refused",
    "two.tar": "quarantined", "cut.tar": "quarantined", "garbage behind.gz": "quarantined", "empty.jsonl": "read", "zeros": "refused",
    "numbers.npy": "listed as no text", "texts.npy": "refused", "image.jsonl": "listed as no text", "pipe.jsonl": "refused",
    "socket.jsonl": "refused", "to nowhere.jsonl": "refused", "link.jsonl": "read", "folder.jsonl": "read", "twice.parquet": "read",
    "pointer.parquet": "refused", "b10b": "read", "utf-16.jsonl": "read", "one huge line.jsonl": "read", "long.warc": "refused",
}  # fmt: skip
"""How the scan ends them."""


class End(NamedTuple):
    """How a reader, `scan` or a source's format on the data plane, ended a file; `peak_bytes` is the process's resident memory."""

    file: str
    reader: str
    outcome: str
    seconds: float
    peak_bytes: int
    said: str

    @property
    def is_bad(self) -> bool:
        return self.outcome in ("exception", "too slow", "killed") or self.seconds > MAX_SECONDS or self.peak_bytes > MAX_BYTES


def read_as_source(path: Path, file_format: str) -> tuple[str, str]:
    """A source of this one file. Its text is in a column that is there: another one is refused before anything is read."""
    from phasewise.tasks.data.listing import fingerprint
    from phasewise.tasks.data.reading import Fault, pieces_of, read_piece
    from phasewise.tasks.data.source import Source
    from phasewise.trainer.base.errors import DataError

    text_key = "text"
    if file_format in ("parquet", "arrow") and path.is_file():
        try:
            if file_format == "parquet":
                schema = pq.read_schema(path)
            else:
                content = path.read_bytes()
                schema = (pa.ipc.open_file if content[:6] == b"ARROW1" else pa.ipc.open_stream)(content).schema
            names = [column.name for column in schema if str(column.type).removeprefix("large_") in ("string", "binary", "string_view")]
            text_key = "text" if "text" in names or not names else names[0]
        except (OSError, ValueError, pa.ArrowException):
            pass
    source = Source.model_validate({"url": str(path.parent), "include": (path.name,), "format": file_format, "text_key": text_key})
    try:
        listing = fingerprint(source)
        if listing.rejected:
            return "refused", listing.rejected[0].reason
        records, faults = 0, deque[Fault](maxlen=10)
        for finding in (finding for piece in pieces_of(source, listing.files) for finding in read_piece(source, piece)):
            if isinstance(finding, Fault):
                faults.append(finding)
            else:
                records += 1
    except DataError as error:
        return "refused", str(error)
    if any(fault.reason == "other format" for fault in faults):
        return "refused", faults[-1].sample
    return ("quarantined", f"{faults[-1].reason}: {faults[-1].sample}") if faults else ("read", f"{records} documents")


def read_as_scan(path: Path, index: Path) -> tuple[str, str]:
    from phasewise.tasks.validation.scan_pieces import scan_pieces, select
    from phasewise.validations.limits import LeakageLimits

    selection = select([str(path)])
    limits = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
    scanned = scan_pieces(selection.pieces, index, limits, workers=1)
    unread = [*selection.unread, *scanned.unread]
    documents = sum(scan.documents for scan in scanned.scans.values())
    if faults := [one for one in unread if one.is_fault]:
        return ("quarantined" if documents else "refused"), faults[0].reason
    return ("listed as no text", unread[0].reason) if unread and not documents else ("read", f"{documents} documents")


def end_of(file: Path, reader: str, index: Path) -> End:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    began = time.perf_counter()
    try:
        outcome, said = read_as_scan(file, index) if reader == "scan" else read_as_source(file, reader)
    except Exception as error:
        outcome, said = "exception", f"{type(error).__name__}: {error}"
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return End(file.name, reader, outcome, time.perf_counter() - began, 1024 * int(peak.split()[1]), said)


def ends(files: Iterable[Path], readers: Sequence[str], folder: Path) -> Iterator[End]:
    """How each file ends under each reader, in a process of its own that is replaced when it dies or hangs."""
    from experiments.leakage_recall.made_items import made_items
    from phasewise.tasks.validation.scan_pieces import index_of_folder

    (folder / "benchmarks" / "made").mkdir(parents=True)
    rows = [{"id": item.id, "question": item.question, "answer": item.solutions[0]} for item in made_items(20, seed=4) if item.solutions]
    (folder / "benchmarks" / "made" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = index_of_folder(str(folder / "benchmarks"), folder)
    (warm_up := folder / "warm-up.txt").write_text("a few words\n")
    process: ProcessPoolExecutor | None = None
    for file in files:
        for reader in readers:
            if process is None:
                process = ProcessPoolExecutor(1, get_context("spawn"))
                process.submit(end_of, warm_up, "scan", index).result(START_SECONDS)
            try:
                yield process.submit(end_of, file, reader, index).result(MAX_SECONDS)
            except (TimeoutError, BrokenProcessPool) as error:
                yield End(file.name, reader, "too slow" if isinstance(error, TimeoutError) else "killed", MAX_SECONDS, 0, "")
                process.shutdown(wait=False, cancel_futures=True)
                process = None
    if process:
        process.shutdown()


@pytest.fixture(scope="module")
def every_end(tmp_path_factory: pytest.TempPathFactory) -> list[End]:
    folder = tmp_path_factory.mktemp("hostile")
    made = (path for path in designed(folder / "designed", DESIGNED_MIB) if not is_bomb(path.name))
    return list(ends(chain(made, mutations(folder / "mutations", MUTATIONS, seed=1)), READERS, folder))


def is_bomb(name: str) -> bool:
    return name.startswith("bomb")


def scanned(made: list[End]) -> dict[str, str]:
    assert [end for end in made if end.is_bad] == []
    return {end.file: end.outcome for end in made if end.reader == "scan" and end.file in EXPECTED}


@pytest.mark.long
def test_bombs_end_well(tmp_path: Path):
    made = list(ends((path for path in designed(tmp_path / "designed", DESIGNED_MIB) if is_bomb(path.name)), READERS, tmp_path))
    assert scanned(made) == {name: outcome for name, outcome in EXPECTED.items() if is_bomb(name)}
    assert {end.reader for end in made if end.outcome == "read"} == {"scan"}


def test_what_is_made_to_break_readers_ends_well(every_end: list[End]):
    made = every_end[: -MUTATIONS * len(READERS)]
    assert scanned(made) == {name: outcome for name, outcome in EXPECTED.items() if not is_bomb(name)}
    taken = {reader: {end.file for end in made if end.reader == reader and end.outcome == "read"} for reader in READERS}
    empty = {"empty.jsonl", "empty.gz", "devices.tar", "links.tar"}  # counted as without text
    assert taken["jsonl"] == {"bom.jsonl", "link.jsonl", "outside.tar"} | empty
    assert {"b10b"} <= taken["parquet"] - empty <= {"b10b", "indices.parquet", "deltas.parquet"}


def test_mutations_of_good_files_end_well(every_end: list[End]):
    mutated = every_end[-MUTATIONS * len(READERS) :]
    assert [end for end in mutated if end.is_bad] == []
    counts = Counter((end.reader == "scan", end.outcome) for end in mutated)
    assert min(counts[True, "read"], counts[True, "quarantined"], counts[True, "refused"], counts[False, "read"]) >= 1
