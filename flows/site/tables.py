"""Evidence tables of a page. The server sorts, filters and paginates: tables may be too large for a browser."""

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.flows.site.shelf import Files
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.reevaluate import cells_of, numeric_columns
from phasewise.validations.verdict import Verdict

PAGE_ROWS = 100
MAX_COLUMNS, MAX_CELL = 7, 48
"""More columns, and columns with longer cells, are folded: a table fits 1,100 pixels."""
MAX_FILTER = 200


class Asked(NamedTuple):
    """A request for one table of a verdict. The default shows the first rows of each table.

    Attributes:
        sort: a column, with a leading `-` for descending order.
        text: only rows with all of its words, ignoring case.
        page: starts at 1.
    """

    table: str = ""
    sort: str = ""
    text: str = ""
    page: int = 1


def asked_of(query: Mapping[str, str]) -> Asked:
    """Parse a query. Invalid parts have no effect."""
    page = query.get("page", "1")
    return Asked(query.get("table", ""), query.get("sort", ""), query.get("q", ""), int(page) if page.isdecimal() and len(page) < 7 else 1)


class EvidenceTable(NamedTuple):
    """A table and its shown rows.

    Attributes:
        sort: a column, with a leading `-` for descending order. Empty is the order of the file with failing rows first.
        matching: number of rows after the filter.
        first: index of the first shown row among them.
    """

    name: str
    columns: tuple[str, ...] = ()
    is_numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    total: int = 0
    matching: int = 0
    first: int = 0
    sort: str = ""
    text: str = ""
    page: int = 1
    pages: int = 1
    problem: str = ""

    @property
    def shown(self) -> list[int]:
        """The columns outside the folded part, of all columns: short cells, and values that differ before others."""
        every = range(len(self.columns))
        long = {at for at in every if any(len(row[at]) > MAX_CELL for row in self.rows)}
        same = {at for at in every if len({row[at] for row in self.rows}) == 1 and len(self.rows) > 1}
        ranked = sorted(every, key=lambda at: (self.columns[at] != self.sort.removeprefix("-"), at in long, at in same, at))
        return sorted(ranked[:MAX_COLUMNS]) if len(self.columns) > MAX_COLUMNS or len(long) > 1 else list(every)


def tables_of(files: Files, verdict: Verdict, folder: Path, asked: Asked) -> list[EvidenceTable]:
    """Return the evidence of a verdict in the order of its suite, tables with failures first.

    The default order of a table is the column that a failing check measures, or that orders its details.
    """
    suite = SUITES.get(verdict.suite)
    others = sorted(path.stem for path in folder.glob("*.parquet"))
    names = list(dict.fromkeys([*(suite.tables if suite else ()), *(check.table for check in verdict.checks), *others]))
    frames: dict[str, Any] = {name: files.read("parquet", folder / f"{name}.parquet", read_table) for name in names}
    wrong = {(check.table, check.asks) for check in verdict.checks if check.kind in ("failed", "warned")}
    telling: dict[str, str] = {}
    try:
        known = {name: frames[name] for name in suite.tables if frames[name] is not None} if suite else {}
        checks = suite.checks(verdict.thresholds, known) if suite else ()
    except Exception:  # fields that an older verdict lacks: its tables keep the order of their files
        checks = ()
    for check in checks:
        if (check.table, check.asks) in wrong:
            if "column" in check.arguments:
                telling.setdefault(check.table, str(check.arguments["column"]))
            if check.details:
                telling.setdefault(check.details.table, check.details.order_by)
    shown = [_shown(name, frames[name], asked if asked.table == name else Asked(), telling.get(name)) for name in names]
    first = {check.table for check in verdict.checks if check.kind in ("failed", "warned", "broken")}
    return sorted(shown, key=lambda table: (table.name not in first, not table.total))


def read_table(path: Path) -> Any:
    """Read an evidence table, or return None if it is damaged."""
    import pandas as pd  # the first page does not need it

    try:
        return pd.read_parquet(path)
    except ValueError:
        return None


def _shown(name: str, frame: Any, asked: Asked, telling: str | None) -> EvidenceTable:
    if frame is None:
        return EvidenceTable(name, problem="This table is missing or cannot be read.")
    total, columns, numeric = len(frame), tuple(map(str, frame.columns)), numeric_columns(frame)
    words = asked.text[:MAX_FILTER].casefold().split()
    if words and total:
        cells = frame.astype(str).agg(" ".join, axis=1).str.casefold()
        for word in words:
            if len(cells):
                cells = cells[cells.str.contains(word, regex=False)]
        frame = frame.loc[cells.index]
    sort = asked.sort if asked.sort.removeprefix("-") in columns else ""
    if not sort and "passes" in columns:
        frame = frame.sort_values("passes", kind="stable")
    elif sort or telling in columns:
        by, is_falling = (sort.removeprefix("-"), sort.startswith("-")) if sort else (str(telling), True)
        try:
            frame = frame.sort_values(by, ascending=not is_falling, kind="stable")
        except TypeError:  # cells of several types
            frame = frame.sort_values(by, ascending=not is_falling, kind="stable", key=lambda column: column.astype(str))
    pages = max(1, ceil(len(frame) / PAGE_ROWS))
    page = min(max(1, asked.page), pages)
    first = (page - 1) * PAGE_ROWS
    rows = tuple(cells_of(frame.iloc[first : first + PAGE_ROWS]))
    return EvidenceTable(name, columns, numeric, rows, total, len(frame), first, sort, asked.text, page, pages)
