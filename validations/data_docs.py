"""The report of a run's verdicts: what fails and what to do, the evidence, and what Great Expectations says of it.

One process builds it at a time. Every page keeps its name and is replaced whole, the index last: a reader meanwhile finds a page as it
was or as it is, never a part of one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd

from phasewise.trainer.base.file_lock import locked
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path, file_system_of, write_atomically
from phasewise.validations.evidence.tables import read_tables
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.outcomes import CheckOutcome
from phasewise.validations.report.evidence import ShownTable, show_rows, show_table
from phasewise.validations.report.judged_again import Judge, JudgedAgain, judge_again
from phasewise.validations.report.pages import STYLE_SHEET, Card, TableLinks, evidence_page, index_page, judged_page, style_sheet
from phasewise.validations.report.words import SHOWN_CASES
from phasewise.validations.verdict import Verdict

INDEX = "index.html"
_LOCK = ".lock"
_NAME_CHARACTERS = 60

Pages = dict[str, str]
"""Path below the report's folder → what is there."""


def build_data_docs(folder: str | Path, verdicts: Sequence[Verdict]) -> Path:
    """Write the report of these verdicts, in place of the one that the folder holds.

    Of several verdicts on one subject by one suite, the last counts. Evidence that is gone or cannot be judged again is said to be so.

    Returns:
        The path of the index page.
    """
    folder = as_path(folder)
    latest = {f"{verdict.subject} {verdict.suite}": verdict for verdict in verdicts}
    with _held(folder):
        pages: Pages = {STYLE_SHEET: style_sheet()}
        judge = Judge.open()
        cards = [_add_pages(pages, judge, name, verdict) for name, verdict in latest.items()]
        pages[INDEX] = index_page(cards)
        for path, content in pages.items():
            write_atomically(folder / path, content.encode())
        _remove_others(folder, pages)
    return folder / INDEX


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Builders on one machine wait for each other; on an object store, the last one's pages stay."""
    if file_system_of(folder) is not None:
        yield
        return
    with locked(folder / _LOCK, wait=True):
        yield


def _add_pages(pages: Pages, judge: Judge, name: str, verdict: Verdict) -> Card:
    """Add the pages of a verdict's tables; its card on the index."""
    anchor = f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)[:_NAME_CHARACTERS].strip('-')}-{digest_of_bytes(name.encode())[:8]}"
    tables = _read_tables(verdict)
    judged = judge_again(judge, verdict, tables)
    links = tuple(_links(anchor, table, tables, judged) for table in _tables_of(verdict))
    card = Card(anchor, verdict, links, _first_particulars(tables, judged), _note(verdict, judged))
    for link in links:
        if link.evidence:
            table = tables[link.table]
            failing = judged.failing_rows(link.table)
            accepted = judged.accepted_rows(link.table)
            pages[link.evidence] = evidence_page(card, show_table(link.table, table, failing, accepted))
        if link.judged:
            pages[link.judged] = judged_page(card, link.table, judged.tables[link.table])
    return card


def _tables_of(verdict: Verdict) -> list[str]:
    """The tables of the verdict's suite, in its order, then those that only its checks name."""
    suite = SUITES.get(verdict.suite)
    return list(dict.fromkeys([*(suite.tables if suite else ()), *(check.table for check in verdict.checks)]))


def _read_tables(verdict: Verdict) -> dict[str, pd.DataFrame]:
    tables: dict[str, pd.DataFrame] = {}
    for name in _tables_of(verdict):
        with suppress(OSError, ValueError, KeyError):  # gone, or changed: the index says that it is not there
            tables |= read_tables(verdict.evidence, {name: verdict.tables[name]})
    return tables


def _links(anchor: str, table: str, tables: Mapping[str, pd.DataFrame], judged: JudgedAgain) -> TableLinks:
    file = re.sub(r"[^\w-]+", "-", table)
    return TableLinks(
        table=table,
        rows=len(tables.get(table, ())),
        failing=len(judged.failing_rows(table)),
        accepted=len(judged.accepted_rows(table)),
        evidence=f"{anchor}/{file}.html" if table in tables else "",
        judged=f"{anchor}/{file}-expectations.html" if table in judged.tables else "",
    )


def _first_particulars(tables: Mapping[str, pd.DataFrame], judged: JudgedAgain) -> dict[tuple[str, str], ShownTable]:
    return {
        check: show_rows(found.table, tables[found.table], found.rows[:SHOWN_CASES], found.rows)
        for check, found in judged.particulars.items()
    }


def _note(verdict: Verdict, judged: JudgedAgain) -> str:
    """Where the pages cannot say what the verdict says, the reader must know."""
    if judged.problem:
        return f"Great Expectations' pages are missing, and no row is marked: the evidence cannot be judged again ({judged.problem})."
    if _by_table(verdict.checks) != {name: (table.passes, table.is_settled) for name, table in judged.tables.items()}:
        return "The suite or the evidence has changed since the verdict was given: the tables do not say the same as the verdict."
    return ""


def _by_table(checks: Sequence[CheckOutcome]) -> dict[str, tuple[bool, bool]]:
    """Table → whether all its checks passed, and whether they did or found only what the recipe accepts."""
    found: dict[str, tuple[bool, bool]] = {}
    for check in checks:
        passes, is_settled = found.get(check.table, (True, True))
        found[check.table] = (passes and check.kind == "passed", is_settled and check.kind in ("passed", "accepted"))
    return found


def _remove_others(folder: Path, pages: Pages) -> None:
    """Remove what an earlier report left and the index no longer names."""
    kept = {folder / path for path in (*pages, _LOCK)}
    kept |= {parent for path in kept for parent in path.parents}
    for path in sorted(folder.rglob("*"), key=str, reverse=True):
        if path not in kept:
            path.rmdir() if path.is_dir() else path.unlink()
