"""`phasewise scan`."""

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, shown_on_terminal
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.tasks.validation.evidence_keys import index_store
from phasewise.tasks.validation.scan_pieces import index_of_folder, keep_index, open_index, scan_pieces, select
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.wording import name_some
from phasewise.validations.evidence.caches import names_like_tests
from phasewise.validations.limits import LeakageLimits

MIN_WORDS = 13
SHOWN_HITS, SHOWN_NAMES = 20, 5
HIT_FIELDS = ("file", "document", "id", "benchmark", "item", "part", "score", "start", "end", "excerpt")


def scan_paths(
    paths: tuple[str, ...],
    benchmarks: str,
    *,
    min_score: float,
    tokenizer: str | None,
    workers: int | None,
    home: str | None,
    exclude: tuple[str, ...],
    suite: str | None,
) -> dict[str, Any]:
    """Search files and caches for benchmark items. `home`: with index and tokenizers. `suite`: search only benchmarks of a suite."""
    given = home or os.environ.get("PHASEWISE_HOME")
    opened = Home.open(given) if given else None
    with shown_on_terminal():
        homes = (opened.root,) if opened else ()
        selection = select(paths, tokenizer=Path(tokenizer) if tokenizer else None, homes=homes, exclude=exclude)
        names = names_like_tests(selection.names)
        if names:
            say(f"names that say test, dev or validation: {name_some(names, SHOWN_NAMES)}")
        began = time.perf_counter()
        store = index_store(opened)
        not_searched: dict[str, str] = {}
        if suite:
            from phasewise.tasks.evaluation.benchmark_definitions import find_suite
            from phasewise.tasks.evaluation.leakage_items import find_items

            items = find_items(find_suite(suite), Path(benchmarks))
            index, not_searched = keep_index(items.key, lambda: items.items, store), items.missing
        else:
            index = index_of_folder(benchmarks, store)
        indexed = time.perf_counter()
        limits = LeakageLimits(min_words=MIN_WORDS, min_score=min_score, min_copy_share=0.8, max_items=0)
        scanned = scan_pieces(selection.pieces, index, limits, workers=workers)
        unread = [*selection.unread, *scanned.unread]
        excluded = {glob: sum(found.excluded_by == glob for found in unread) for glob in exclude}
        for glob, count in excluded.items():
            if not count:
                say(f"--exclude {glob} took nothing out")
    documents = sum(scan.documents for scan in scanned.scans.values())
    if not documents:
        where = ", ".join(paths)
        if not unread:
            raise ConfigError(f"{where} holds no text: give files or token caches with documents.")
        first = next((found for found in unread if found.is_fault), unread[0])
        raise DataError(f"nothing could be scanned in {where}: {first.file}: {first.reason}.")
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
        "hits": [
            {**{name: getattr(hit, name) for name in HIT_FIELDS}, "cache": str(cache) if cache else None}
            for cache, scan in sorted(scanned.scans.items(), key=lambda found: str(found[0] or ""))
            for hit in scan.hits
        ],
    }


def print_report(report: dict[str, Any]) -> None:
    """Print skipped files, a table of files and benchmarks, the first hits, and the counts."""
    console, errors = Console(highlight=False, soft_wrap=True), Console(highlight=False, soft_wrap=True, file=sys.stderr)
    for found in report["unread"]:
        errors.print(f"not scanned: {found['file']}: {found['reason']}", markup=False)
    if report["hits"]:
        items: dict[tuple[str, str], set[str]] = {}
        documents: dict[tuple[str, str], set[int]] = {}
        named = [(f"{hit['cache']}: {hit['file']}" if hit["cache"] else hit["file"], hit) for hit in report["hits"]]
        for file, hit in named:
            key = file, hit["benchmark"]
            items.setdefault(key, set()).add(hit["item"])
            documents.setdefault(key, set()).add(hit["document"])
        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("file", overflow="fold")
        table.add_column("benchmark", no_wrap=True)
        for name in ("items", "of it", "documents"):
            table.add_column(name, justify="right", no_wrap=True)
        for key, count in Counter({key: len(found) for key, found in items.items()}).most_common(SHOWN_HITS):
            table.add_row(*key, f"{count:,}", f"{100 * count / report['benchmarks'][key[1]]:.1f} %", f"{len(documents[key]):,}")
        print_table(Console(highlight=False), table)
        for file, hit in named[:SHOWN_HITS]:
            where = f"{file}, document {hit['document']}, bytes {hit['start']}–{hit['end']}"
            console.print(f"{where}: {hit['benchmark']} {hit['item']}, {hit['part']} {hit['score']:.2f}", markup=False)
            console.print(f"    {' '.join(hit['excerpt'].split())}", markup=False)
        if (more := len(report["hits"]) - SHOWN_HITS) > 0:
            console.print(f"and {more:,} more hits: --json has all.")
    total, benchmarks = sum(report["benchmarks"].values()), len(report["benchmarks"])
    found = len({(hit["benchmark"], hit["item"]) for hit in report["hits"]})
    console.print(
        f"{found:,} of {total:,} items of {benchmarks} benchmarks found in {report['documents']:,} documents "
        f"({report['bytes'] / 1e6:,.1f} MB, {report['seconds']:.1f} s)."
    )
    for name, reason in report["not_searched"].items():
        console.print(f"The scan fails: {name} was not searched for: {reason}.", markup=False)
    if faults := sum(found["is_fault"] for found in report["unread"]):
        files = "file or member of an archive was" if faults == 1 else "files or members of archives were"
        console.print(f"The scan fails: {faults:,} {files} not read, or not to the end.")
