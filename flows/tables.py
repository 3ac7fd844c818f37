"""Tables on a terminal of any width: no number is cut, and no line breaks inside a word."""

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

INDENT = "  "


def print_table(console: Console, table: Table) -> None:
    """The table, with columns as wide as their words; where the terminal is too narrow even for those, a row is a list of its cells."""
    cells = [[_text(cell) for cell in column.cells] for column in table.columns]
    heads = [_text(column.header) if table.show_header else "" for column in table.columns]
    columns = list(zip(table.columns, heads, cells, strict=True))
    least = [_width([head, *found], whole=bool(column.no_wrap)) for column, head, found in columns]
    most = [_width([head, *found], whole=True) for _, head, found in columns]
    left, right = table.padding[3], table.padding[1]
    between = len(columns) + (1 if table.show_edge else -1) if table.box else 0
    room = console.width - (left + right) * len(columns) - between
    if sum(least) > room:
        _print_rows(console, table, heads, cells)
        return
    for column, width in zip(table.columns, _shared(least, most, room), strict=True):
        column.width = width
        column.min_width = column.max_width = None
    console.print(table)


def _text(cell: object) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def _width(texts: list[str], *, whole: bool) -> int:
    """Of the longest line, or of the longest word."""
    parts = [part for text in texts for part in (text.splitlines() if whole else text.split())]
    return max(map(cell_len, parts), default=1)


def _shared(least: list[int], most: list[int], room: int) -> list[int]:
    """Widths between the two: what is left goes to the column that lacks most."""
    widths = list(least)
    for _ in range(room - sum(least)):
        lacking = max(range(len(widths)), key=lambda place: most[place] - widths[place])
        if most[lacking] <= widths[lacking]:
            break
        widths[lacking] += 1
    return widths


def _print_rows(console: Console, table: Table, heads: list[str], cells: list[list[str]]) -> None:
    if table.title:
        console.print(table.title, highlight=False, soft_wrap=True)
    for first, *others in zip(*cells, strict=True):
        console.print(first, highlight=False, markup=False, soft_wrap=True)
        for head, text in zip(heads[1:], others, strict=True):
            named = f"{head}: {text}" if head else text
            row = Table.grid(Column(width=len(INDENT)), Column(width=max(console.width - len(INDENT), _width([named], whole=False))))
            row.add_row("", Text(named))
            console.print(row)
