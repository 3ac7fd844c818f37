"""Evidence tables as a page shows them: sorted, filtered and cut in pages here, so that a browser gets no more than it bears."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from phasewise.flows.site.files import Files
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.report.judged_again import as_text
from phasewise.validations.verdict import Verdict

PAGE_ROWS = 100
MAX_FILTER = 200


@dataclass(frozen=True)
class Asked:
    """What a reader asks of the tables of a verdict; nothing is the first rows of each.

    Attributes:
        table: the one that is asked about.
        sort: a column, with `-` before it for the greatest first.
        text: only rows in which it occurs, capitals or not.
        page: counted from 1.
    """

    table: str = ""
    sort: str = ""
    text: str = ""
    page: int = 1


@dataclass(frozen=True)
class EvidenceTable:
    """A table, and the rows of it that are shown.

    Attributes:
        is_numeric: of each column.
        sort: the column that it is sorted by and whether the greatest is first; None is the order of the file, what fails first.
        matching: rows that the filter lets through.
        first: place of the first shown row among them, from 0.
        problem: why there are no rows, in words.
    """

    name: str
    columns: tuple[str, ...] = ()
    is_numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    total: int = 0
    matching: int = 0
    first: int = 0
    sort: tuple[str, bool] | None = None
    text: str = ""
    page: int = 1
    pages: int = 1
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether every row is shown, so that the browser can sort and filter by itself."""
        return len(self.rows) == self.total

    @property
    def sort_value(self) -> str:
        """As a query has it."""
        return "" if self.sort is None else f"{'-' if self.sort[1] else ''}{self.sort[0]}"


def tables_of(files: Files, verdict: Verdict, folder: Path, asked: Asked) -> list[EvidenceTable]:
    """The evidence of a verdict, table by table, in the order of its suite; first those in which something is wrong."""
    suite = SUITES.get(verdict.suite)
    others = sorted(path.stem for path in folder.glob("*.parquet"))
    names = list(dict.fromkeys([*(suite.tables if suite else ()), *(check.table for check in verdict.checks), *others]))
    wrong = {check.table for check in verdict.checks if check.kind in ("failed", "warned", "broken")}
    telling = _telling_columns(files, verdict, folder)
    shown = [_shown(files, name, folder, asked if asked.table == name else Asked(), telling.get(name)) for name in names]
    return sorted(shown, key=lambda table: (table.name not in wrong, not table.total))


def _telling_columns(files: Files, verdict: Verdict, folder: Path) -> dict[str, str]:
    """Table → the column that a check which did not pass measures, or that orders its particulars: the greatest tell most."""
    suite = SUITES.get(verdict.suite)
    if suite is None:
        return {}
    tables = {name: frame for name in suite.tables if (frame := _frame(files, folder, name)) is not None}
    try:
        checks = suite.checks(verdict.thresholds, tables)
    except Exception:  # whatever an older verdict lacks: its tables keep the order of their files
        return {}
    wrong = {(check.table, check.asks) for check in verdict.checks if check.kind in ("failed", "warned")}
    found: dict[str, str] = {}
    for check in checks:
        if (check.table, check.asks) in wrong:
            if "column" in check.arguments:
                found.setdefault(check.table, str(check.arguments["column"]))
            if check.details:
                found.setdefault(check.details.table, check.details.order_by)
    return found


def _frame(files: Files, folder: Path, name: str) -> Any:
    def read(path: Path) -> Any:
        import pandas as pd  # the first page comes without

        try:
            return pd.read_parquet(path)
        except ValueError:
            return None

    return files.read("parquet", folder / f"{name}.parquet", read)


def _shown(files: Files, name: str, folder: Path, asked: Asked, telling: str | None) -> EvidenceTable:
    frame = _frame(files, folder, name)
    if frame is None:
        return EvidenceTable(name, problem="This table is not there, or does not read.")
    import pandas as pd

    numeric = [pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind) for kind in frame.dtypes]
    total = len(frame)
    frame = _filtered(frame, asked.text)
    sort = _sort_of(frame, asked.sort)
    frame = _sorted(frame, sort, telling)
    pages = max(1, ceil(len(frame) / PAGE_ROWS))
    page = min(max(1, asked.page), pages)
    part = frame.iloc[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    columns = [[as_text(value) for value in part.iloc[:, place].tolist()] for place in range(part.shape[1])]
    table = EvidenceTable(name, tuple(map(str, frame.columns)), tuple(numeric), tuple(zip(*columns, strict=True)), total, len(frame))
    return replace(table, first=(page - 1) * PAGE_ROWS, sort=sort, text=asked.text, page=page, pages=pages)


def _filtered(frame: Any, text: str) -> Any:
    words = text[:MAX_FILTER].casefold().split()
    if not words:
        return frame
    cells = frame.astype(str).agg(" ".join, axis=1).str.casefold() if len(frame) else frame
    for word in words:
        frame = frame[cells.str.contains(word, regex=False)] if len(frame) else frame
        cells = cells[frame.index] if len(frame) else cells
    return frame


def _sort_of(frame: Any, sort: str) -> tuple[str, bool] | None:
    name = sort.removeprefix("-")
    return (name, sort.startswith("-")) if name in map(str, frame.columns) else None


def _sorted(frame: Any, sort: tuple[str, bool] | None, telling: str | None) -> Any:
    """By the column that is asked for; else what does not pass first, then the greatest of what a failing check measures."""
    if sort is None and "passes" in frame.columns:
        return frame.sort_values("passes", kind="stable")
    if sort is None and (telling is None or telling not in frame.columns):
        return frame
    name, is_falling = sort or (str(telling), True)
    try:
        return frame.sort_values(name, ascending=not is_falling, kind="stable")
    except TypeError:  # cells of several kinds
        return frame.sort_values(name, ascending=not is_falling, kind="stable", key=lambda column: column.astype(str))


def asked_of(query: Mapping[str, str]) -> Asked:
    """What a query asks; what does not read is left out."""
    page = query.get("page", "1")
    return Asked(query.get("table", ""), query.get("sort", ""), query.get("q", ""), int(page) if page.isdecimal() and len(page) < 7 else 1)
