"""Scanning pieces of files and caches for benchmark items, here or side by side: the report is the same however the work is shared out.

A piece is what one worker scans at a time. Documents count as neighbours within a piece.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.data.streams import raise_failure
from phasewise.tasks.progress import advance
from phasewise.tasks.validation.detokenizers import open_detokenizer
from phasewise.tasks.validation.index_store import open_index
from phasewise.tasks.validation.scan_files import FilePiece, Reading, Unread
from phasewise.tasks.validation.scan_paths import CachePiece, ScanPiece
from phasewise.trainer.base.frozen import Frozen
from phasewise.validations.evidence.leakage.scan import Hit, Scan, cache_documents, merge_scans, scan_documents
from phasewise.validations.limits import LeakageLimits

STAGE = "leakage scan"
MIN_CLUSTER_BYTES = 128 * 2**20
PIECES_AT_ONCE = 1024


class PieceScan(Frozen):
    """What became of a piece. `numbers`: how many documents it had, by which those after it in the file are counted on."""

    scan: Scan
    numbers: int
    unread: tuple[Unread, ...] = ()


class Scanned(NamedTuple):
    """All files as one scan, under `None`, and each token cache as one, by its folder; and what could not be read."""

    scans: dict[Path | None, Scan]
    unread: list[Unread]


def scan_piece(piece: ScanPiece, index: Path, limits: LeakageLimits) -> PieceScan:
    """Scan one piece for the items of a kept index; runs in a worker."""
    if isinstance(piece, CachePiece):
        documents = cache_documents(piece.folder, open_detokenizer(piece.tokenizer), piece.shard)
        scan = scan_documents(documents, open_index(index), limits)
        return PieceScan(scan=scan, numbers=scan.documents)
    reading = Reading(piece)
    try:
        scan = scan_documents(reading, open_index(index), limits)
    except OSError as error:
        raise_failure(piece.url, error)
    return PieceScan(scan=scan, numbers=reading.documents, unread=tuple(reading.unread))


def scan_pieces(pieces: Sequence[ScanPiece], index: Path, limits: LeakageLimits, *, workers: int | None = None) -> Scanned:
    """All pieces scanned. With `workers` None a cluster is started only where it pays."""
    scans, unread, counted = dict[Path | None, Scan](), list[Unread](), dict[str, int]()
    is_here = workers == 1 or len(pieces) == 1 or (workers is None and sum(piece.size_bytes for piece in pieces) < MIN_CLUSTER_BYTES)
    left, done = iter(pieces), 0
    while some := list(islice(left, PIECES_AT_ONCE)):
        found = _scan_here(some, index, limits, done, len(pieces)) if is_here else _scan_side_by_side(some, index, limits, workers)
        done += len(some)
        unread += [one for of_piece in found for one in of_piece.unread]
        by_place: dict[Path | None, list[Scan]] = {}
        for piece, scan in zip(some, _numbered(some, found, counted), strict=True):
            by_place.setdefault(piece.folder if isinstance(piece, CachePiece) else None, []).append(scan)
        for place, new in by_place.items():
            scans[place] = merge_scans([*([scans[place]] if place in scans else []), *new])
    return Scanned(scans, unread)


def _scan_here(some: Sequence[ScanPiece], index: Path, limits: LeakageLimits, done: int, total: int) -> list[PieceScan]:
    found: list[PieceScan] = []
    for piece in some:
        found.append(scan_piece(piece, index, limits))
        advance(STAGE, done + len(found), total)
    return found


def _scan_side_by_side(some: Sequence[ScanPiece], index: Path, limits: LeakageLimits, workers: int | None) -> list[PieceScan]:
    from phasewise.tasks.data.cluster import WORKERS_VARIABLE, run_all  # it takes seconds to import

    if workers is not None:
        os.environ[WORKERS_VARIABLE] = str(workers)
    return run_all(STAGE, scan_piece, [(piece, index, limits) for piece in some])


def _numbered(pieces: Sequence[ScanPiece], found: Iterable[PieceScan], counted: dict[str, int]) -> list[Scan]:
    """The scans with documents numbered through their files; `counted` holds how many each file had in pieces before."""
    scans: list[Scan] = []
    for piece, of_piece in zip(pieces, found, strict=True):
        scan = of_piece.scan
        if isinstance(piece, FilePiece):
            before = counted.get(piece.url, 0)
            counted[piece.url] = before + of_piece.numbers
            scan = Scan(documents=scan.documents, bytes=scan.bytes, hits=tuple(_moved(hit, before) for hit in scan.hits))
        scans.append(scan)
    return scans


def _moved(hit: Hit, before: int) -> Hit:
    """A hit with its document's number in the whole file; a document without an id is named by it."""
    if not before and hit.id:
        return hit
    number = hit.document + before
    return replace(hit, document=number, id=hit.id or f"#{number}")
