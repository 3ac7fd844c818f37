"""`phasewise scan`."""

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, shown_on_terminal
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.tasks.validation.index_store import index_of_folder, index_store, keep_index, open_index
from phasewise.tasks.validation.scan_files import Unread
from phasewise.tasks.validation.scan_pieces import Scanned, scan_pieces, select
from phasewise.trainer.base.errors import ConfigError, DataError, PhasewiseError
from phasewise.trainer.base.wording import megabytes, name_some
from phasewise.validations.evidence.caches import names_like_tests
from phasewise.validations.limits import LeakageLimits

MIN_WORDS = 13
SHOWN_HITS, SHOWN_NAMES = 20, 5
HIT_FIELDS = ("file", "document", "id", "benchmark", "item", "part", "score", "start", "end", "excerpt")


@dataclass(frozen=True)
class ScanOptions:
    """How to scan.

    Attributes:
        exclude: globs over the names of files and of members of archives.
        suite: only the items of this suite's benchmarks, as lm-eval puts them to a model; None is all that the folder has.
        home: has the tokenizers of caches that lie elsewhere, and keeps the index; None takes the user's cache folder.
    """

    min_score: float
    tokenizer: str | None
    workers: int | None
    home: str | None
    exclude: tuple[str, ...] = ()
    suite: str | None = None


def scan_paths(paths: tuple[str, ...], benchmarks: str, options: ScanOptions) -> dict[str, Any]:
    """What of the benchmarks is in the files and caches, in the shape of `--json`.

    Raises:
        ConfigError: a path names nothing, or the benchmarks have no items.
        DataError: nothing of what is named is text.
    """
    given = options.home or os.environ.get("PHASEWISE_HOME")
    home = Home.open(given) if given else None
    with shown_on_terminal():
        homes = (home.root,) if home else ()
        tokenizer = Path(options.tokenizer) if options.tokenizer else None
        selection = select(paths, tokenizer=tokenizer, homes=homes, exclude=options.exclude)
        names = names_like_tests(selection.names)
        if names:
            say(f"names that say test, dev or validation: {name_some(names, SHOWN_NAMES)}")
        began = time.perf_counter()
        store = index_store(home)
        index, not_searched = (
            _index_of_suite(options.suite, benchmarks, store) if options.suite else (index_of_folder(benchmarks, store), {})
        )
        indexed = time.perf_counter()
        limits = LeakageLimits(min_words=MIN_WORDS, min_score=options.min_score, min_copy_share=0.8, max_items=0)
        scanned = scan_pieces(selection.pieces, index, limits, workers=options.workers)
        unread = [*selection.unread, *scanned.unread]
        excluded = {glob: sum(found.excluded_by == glob for found in unread) for glob in options.exclude}
        for glob in (glob for glob, count in excluded.items() if not count):
            say(f"--exclude {glob} took nothing out")
    documents = sum(scan.documents for scan in scanned.scans.values())
    if not documents:
        raise _nothing_read(unread, paths)
    return {
        "documents": documents,
        "bytes": sum(scan.bytes for scan in scanned.scans.values()),
        "seconds": round(time.perf_counter() - indexed, 3),
        "index_seconds": round(indexed - began, 3),
        "limits": {"min_words": limits.min_words, "min_score": limits.min_score},
        "benchmarks": open_index(index).items_per_benchmark,
        "not_searched": not_searched,
        "names_like_tests": names,
        "unread": [found._asdict() for found in unread],
        "excluded": excluded,
        "hits": _hits(scanned),
    }


def passes(report: dict[str, Any]) -> bool:
    """No item was found, nothing was left unread in which one might be, and every benchmark that was asked for was searched for."""
    return not report["hits"] and not report["not_searched"] and not any(found["is_fault"] for found in report["unread"])


def print_report(report: dict[str, Any]) -> None:
    """The same for people: which benchmarks are in which files, and the first hits."""
    console, errors = Console(highlight=False), Console(highlight=False, file=sys.stderr)
    for found in report["unread"]:
        errors.print(f"not scanned: {found['file']}: {found['reason']}", soft_wrap=True, markup=False)
    if report["hits"]:
        print_table(console, _table(report))
        for hit in report["hits"][:SHOWN_HITS]:
            where = f"{_place(hit)}, document {hit['document']}, bytes {hit['start']}–{hit['end']}"
            console.print(f"{where}: {hit['benchmark']} {hit['item']}, {hit['part']} {hit['score']:.2f}", soft_wrap=True, markup=False)
            console.print(f"    {' '.join(hit['excerpt'].split())}", soft_wrap=True, markup=False)
        if (more := len(report["hits"]) - SHOWN_HITS) > 0:
            console.print(f"and {more:,} more hits: --json has all.")
    items, benchmarks = sum(report["benchmarks"].values()), len(report["benchmarks"])
    found = len({(hit["benchmark"], hit["item"]) for hit in report["hits"]})
    console.print(
        f"{found:,} of {items:,} items of {benchmarks} benchmarks found in {report['documents']:,} documents "
        f"({megabytes(report['bytes'])}, {report['seconds']:.1f} s)."
    )
    for name, reason in report["not_searched"].items():
        console.print(f"The scan fails: {name} was not searched for: {reason}.", soft_wrap=True, markup=False)
    if faults := sum(found["is_fault"] for found in report["unread"]):
        what = "file or member of an archive was" if faults == 1 else "files or members of archives were"
        console.print(f"The scan fails: {faults:,} {what} not read, or not to the end.")


def _index_of_suite(suite: str, benchmarks: str, store: Path) -> tuple[Path, dict[str, str]]:
    from phasewise.tasks.evaluation.benchmark_definitions import find_suite
    from phasewise.tasks.evaluation.leakage_items import find_items

    found = find_items(find_suite(suite), Path(benchmarks))
    return keep_index(found.key, lambda: found.items, store), found.missing


def _table(report: dict[str, Any]) -> Table:
    items: dict[tuple[str, str], set[str]] = {}
    documents: dict[tuple[str, str], set[int]] = {}
    for hit in report["hits"]:
        place = _place(hit), hit["benchmark"]
        items.setdefault(place, set()).add(hit["item"])
        documents.setdefault(place, set()).add(hit["document"])
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("file", overflow="fold")
    table.add_column("benchmark", no_wrap=True)
    for name in ("items", "of it", "documents"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, _ in Counter({place: len(found) for place, found in items.items()}).most_common(SHOWN_HITS):
        share = 100 * len(items[place]) / report["benchmarks"][place[1]]
        table.add_row(*place, f"{len(items[place]):,}", f"{share:.1f} %", f"{len(documents[place]):,}")
    return table


def _place(hit: dict[str, Any]) -> str:
    return f"{hit['cache']}: {hit['file']}" if hit["cache"] else hit["file"]


def _hits(scanned: Scanned) -> list[dict[str, Any]]:
    places = sorted(scanned.scans, key=lambda place: str(place or ""))
    return [
        {**{name: getattr(hit, name) for name in HIT_FIELDS}, "cache": str(place) if place else None}
        for place in places
        for hit in scanned.scans[place].hits
    ]


def _nothing_read(unread: list[Unread], paths: tuple[str, ...]) -> PhasewiseError:
    where = ", ".join(paths)
    if unread:
        first = next((found for found in unread if found.is_fault), unread[0])
        return DataError(f"nothing could be scanned in {where}: {first.file}: {first.reason}.")
    return ConfigError(f"{where} holds no text: give files or token caches with documents.")
