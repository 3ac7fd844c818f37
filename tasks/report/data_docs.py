"""Data Docs of a run's verdicts: failures and remedies, evidence, and the content of Great Expectations.

The pages of Great Expectations load styles and scripts from the network, and don't escape data. Phasewise renders only their blocks, by
its own templates. Each page is replaced atomically, the index last. One process builds at a time.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from phasewise.tasks.report.html import STYLE_SHEET, environment, static_files
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path, file_system_of, locked, write_atomically
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.failures import SHOWN_CASES, failures_of
from phasewise.validations.outcomes import STANDINGS, sum_counts, verdicts_in_words
from phasewise.validations.reevaluate import ShownTable, judge_again, show_table
from phasewise.validations.verdict import Verdict, read_tables, unused_of

INDEX, LOCK = "index.html", ".lock"


class TableLinks(NamedTuple):
    """An evidence table and its pages relative to the index. `evidence` is empty for a lost table, `judged` without a check."""

    table: str
    rows: int
    failing: int
    accepted: int
    evidence: str
    judged: str


class Card:
    """A verdict on the index. `particulars` maps (table, expectation) to the first rows of a failure."""

    def __init__(
        self, anchor: str, verdict: Verdict, tables: Sequence[TableLinks] = (),
        particulars: Mapping[tuple[str, str], ShownTable] | None = None, note: str = "",
    ) -> None:  # fmt: skip
        self.anchor, self.verdict, self.tables, self.note = anchor, verdict, tables, note
        self.particulars = particulars or {}
        self.counts, self.failures = verdict.counts, failures_of(verdict)
        self.accepted = [finding for check in verdict.checks for finding in check.accepted]
        self.links = {links.table: links for links in tables}


def build_data_docs(folder: str | Path, verdicts: Sequence[Verdict]) -> Path:
    """Replace the Data Docs in the folder, and return the index page. The last verdict on a subject by a suite counts."""
    folder = as_path(folder)
    latest = {f"{verdict.subject} {verdict.suite}": verdict for verdict in verdicts}
    with locked(folder / LOCK, wait=True) if file_system_of(folder) is None else nullcontext():
        pages = {STYLE_SHEET: static_files()[STYLE_SHEET].decode()}
        pages[INDEX] = index_page([_add_pages(pages, name, verdict) for name, verdict in latest.items()])
        for path, content in pages.items():
            write_atomically(folder / path, content.encode())
        kept = {folder / path for path in (*pages, LOCK)}
        kept |= {parent for path in kept for parent in path.parents}
        for path in sorted(folder.rglob("*"), key=str, reverse=True):  # pages of an earlier build
            if path not in kept:
                path.rmdir() if path.is_dir() else path.unlink()
    return folder / INDEX


def index_page(cards: Sequence[Card]) -> str:
    """Render the index: failures, warnings, then passing verdicts."""
    counts = [card.counts for card in cards]
    in_order = sorted(cards, key=lambda card: STANDINGS.index(card.counts.standing))
    folders = zip(*(card.verdict.subject.split("/")[:-1] for card in cards), strict=False)
    page = environment().get_template("docs_index.html")
    return page.render(
        depth="", cards=in_order, passing=[card for card in in_order if card.counts.standing == "passed"],
        worst=in_order[0].counts.standing if in_order else None, words=verdicts_in_words(counts), shares=sum_counts(counts).shares,
        run="/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)),
        unused=unused_of([card.verdict for card in cards]),
    )  # fmt: skip


def _add_pages(pages: dict[str, str], name: str, verdict: Verdict) -> Card:
    """Add the pages of a verdict's tables, and return its card on the index."""
    anchor = f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)[:60].strip('-')}-{digest_of_bytes(name.encode())[:8]}"
    suite = SUITES.get(verdict.suite)
    tables: dict[str, pd.DataFrame] = {}
    names = list(dict.fromkeys([*(suite.tables if suite else ()), *(check.table for check in verdict.checks)]))
    for table in names:
        with suppress(OSError, ValueError, KeyError):  # the index names a lost or changed table
            tables |= read_tables(verdict.evidence, {table: verdict.tables[table]})
    judged = judge_again(verdict, tables)
    links: list[TableLinks] = []
    for table in names:
        file = f"{anchor}/" + re.sub(r"[^\w-]+", "-", table)
        counts = len(tables.get(table, ())), len(judged.failing_rows(table)), len(judged.accepted_rows(table))
        links.append(TableLinks(table, *counts, f"{file}.html" * (table in tables), f"{file}-expectations.html" * (table in judged.tables)))
    particulars = {
        check: show_table(found.table, tables[found.table], found.rows, order=found.rows[:SHOWN_CASES])
        for check, found in judged.particulars.items()
    }
    outcomes: dict[str, tuple[bool, bool]] = {}
    for check in verdict.checks:
        passes, is_settled = outcomes.get(check.table, (True, True))
        outcomes[check.table] = (passes and check.kind == "passed", is_settled and check.kind in ("passed", "accepted"))
    note = ""
    if judged.problem:
        note = f"Great Expectations' pages are missing, and no row is marked: the evidence cannot be judged again ({judged.problem})."
    elif outcomes != {name: (table.passes, table.is_settled) for name, table in judged.tables.items()}:
        note = "The suite or the evidence has changed since the verdict was given: the tables no longer match the verdict."
    card = Card(anchor, verdict, links, particulars, note)
    rows, expectations = (environment().get_template(f"docs_{kind}.html") for kind in ("evidence", "expectations"))
    for link in links:
        if link.evidence:
            table = show_table(link.table, tables[link.table], judged.failing_rows(link.table), judged.accepted_rows(link.table))
            pages[link.evidence] = rows.render(card=card, table=table, depth="../")
        if link.judged:
            pages[link.judged] = expectations.render(card=card, table=link.table, judged=judged.tables[link.table], depth="../")
    return card
