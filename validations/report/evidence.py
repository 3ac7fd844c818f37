"""An evidence table as a person reads it: the rows that fail first, no more of them than a page bears."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

Mark = Literal["failed", "accepted", ""]
MAX_ROWS = 300
MAX_CELL_CHARACTERS = 400


@dataclass(frozen=True)
class Row:
    """`number` is the row's place in the Parquet file, from 0."""

    number: int
    mark: Mark
    cells: tuple[str, ...]


@dataclass(frozen=True)
class ShownTable:
    """What is shown of a table. `is_numeric` says of every column whether its cells are numbers."""

    name: str
    columns: tuple[str, ...]
    is_numeric: tuple[bool, ...]
    rows: tuple[Row, ...]
    total_rows: int
    total_failing: int
    total_accepted: int


def show_table(name: str, table: pd.DataFrame, failing: Collection[int], accepted: Collection[int] = ()) -> ShownTable:
    """The first rows of the table: those that fail, those that the recipe accepts, the others."""
    order = sorted(range(len(table)), key=lambda row: (row not in failing, row not in accepted))
    return show_rows(name, table, order[:MAX_ROWS], failing, accepted)


def show_rows(name: str, table: pd.DataFrame, order: Sequence[int], failing: Collection[int], accepted: Collection[int] = ()) -> ShownTable:
    """These rows of the table, in this order."""

    def mark(row: int) -> Mark:
        return "failed" if row in failing else "accepted" if row in accepted else ""

    cells = [[as_text(value) for value in table.iloc[list(order), column].tolist()] for column in range(table.shape[1])]
    return ShownTable(
        name=name,
        columns=tuple(str(column) for column in table.columns),
        is_numeric=tuple(pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype) for dtype in table.dtypes),
        rows=tuple(Row(row, mark(row), tuple(column[place] for column in cells)) for place, row in enumerate(order)),
        total_rows=len(table),
        total_failing=len(failing),
        total_accepted=len(accepted),
    )


def as_text(value: Any) -> str:
    """A cell: numbers as short as they can be said, nothing as a dash, long text cut off."""
    if isinstance(value, list | tuple | np.ndarray):
        text = ", ".join(as_text(part) for part in value) or "–"
    elif isinstance(value, bool | np.bool_):
        text = "yes" if value else "no"
    elif isinstance(value, float | np.floating):
        text = "–" if math.isnan(value) else f"{value:.6g}"
    else:
        text = "–" if value is None or value is pd.NA or value is pd.NaT or value == "" else str(value)
    return text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 1] + "…"
