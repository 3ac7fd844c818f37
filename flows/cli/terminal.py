"""Tables and JSON on standard output. Log lines and progress bars on standard error."""

import logging
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import rich.box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from phasewise.tasks.progress import LOGGER, PROGRESS_LOGGER, Milestones
from phasewise.trainer.base import wording

INDENT = "  "


def print_table(console: Console, table: Table) -> None:
    """Print a table with columns at least as wide as their words. On a narrower terminal, print each row as a list of cells."""
    written = [[column.header if table.show_header else "", *column.cells] for column in table.columns]
    plain = [[Text.from_markup(cell).plain if isinstance(cell, str) else str(cell) for cell in cells] for cells in written]
    heads, cells = [texts[0] for texts in plain], [texts[1:] for texts in plain]
    columns = list(zip(table.columns, heads, cells, strict=True))
    least = [_width([head, *found], whole=bool(column.no_wrap)) for column, head, found in columns]
    most = [_width([head, *found], whole=True) for _, head, found in columns]
    left, right = table.padding[3], table.padding[1]
    between = len(columns) + (1 if table.show_edge else -1) if table.box else 0
    room = console.width - (left + right) * len(columns) - between
    if sum(least) > room:
        if table.title:
            console.print(table.title, highlight=False, soft_wrap=True)
        for first, *others in zip(*cells, strict=True):
            console.print(first, highlight=False, markup=False, soft_wrap=True)
            for head, text in zip(heads[1:], others, strict=True):
                named = f"{head}: {text}" if head else text
                row = Table.grid(Column(width=len(INDENT)), Column(width=max(console.width - len(INDENT), _width([named], whole=False))))
                row.add_row("", Text(named))
                console.print(row)
        return
    widths = list(least)
    for _ in range(room - sum(least)):
        lacking = max(range(len(widths)), key=lambda place: most[place] - widths[place])
        if most[lacking] <= widths[lacking]:
            break
        widths[lacking] += 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
        column.min_width = column.max_width = None
    console.print(table)


def _width(texts: list[str], *, whole: bool) -> int:
    parts = [part for text in texts for part in (text.splitlines() if whole else text.split())]
    return max(map(cell_len, parts), default=1)


AT_WORK = "at work"
MIN_BAR_SECONDS = 2.0


class _KnownSize(ProgressColumn):
    def render(self, task: Task) -> Any:
        return super().render(task) if task.total else Text("")


class Bar(_KnownSize, BarColumn):
    """A bar for work of known size."""


class Count(_KnownSize, MofNCompleteColumn):
    """`140/660` for work of known size."""


class Times(ProgressColumn):
    """The elapsed time, and an estimate of the remaining time."""

    def render(self, task: Task) -> Text:
        """Render `0:12, 40 s left`. The estimate starts after two seconds."""
        minutes, seconds = divmod(int(task.elapsed or 0), 60)
        left = task.time_remaining if task.total and (task.elapsed or 0) > MIN_BAR_SECONDS else None
        return Text(f"{minutes}:{seconds:02}" + (f", {wording.about(left).removeprefix('about ')} left" if left else ""))


class TerminalHandler(logging.Handler):
    """Draws log records of `tasks.progress`. Without a terminal, a bar becomes lines at milestones."""

    def __init__(self, console: Console, bars: Progress) -> None:
        super().__init__()
        self._console, self._bars = console, bars
        self._tasks: dict[str, TaskID] = {}
        self._milestones = Milestones()
        self._at_work = bars.add_task(AT_WORK, total=None, note="")

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line, or update a bar."""
        progress = getattr(record, "progress", None)
        if progress is None:
            print_words(self._console, record.getMessage())
            self._bars.reset(self._at_work, total=None)
        elif self._console.is_terminal:
            self._bars.update(self._at_work, visible=False)
            if progress.work not in self._tasks:
                self._tasks[progress.work] = self._bars.add_task(progress.work, total=progress.total, note="")
            self._bars.update(self._tasks[progress.work], completed=progress.done, total=progress.total, note=progress.note)
            if progress.done >= progress.total:
                self._bars.remove_task(self._tasks.pop(progress.work))
                print_words(self._console, progress.line)
            if not self._tasks:
                self._bars.reset(self._at_work, total=None, visible=True)
        elif words := self._milestones.line(progress):
            print_words(self._console, words)


def print_words(console: Console, text: str, *, indent: str = "  ") -> None:
    """Print lines wrapped at spaces, with continuation lines indented. Without a terminal, nothing is wrapped."""
    for line in text.splitlines() or [""]:
        lead = line[: len(line) - len(line.lstrip())]
        broken = textwrap.wrap(
            line, console.width, subsequent_indent=lead + indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        for part in broken if console.is_terminal and broken else [line]:
            console.print(part, highlight=False, markup=False, soft_wrap=True)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns. If the terminal is narrow, only the bar shrinks: no line wraps, and no number is cut."""
    whole = partial(Column, no_wrap=True)
    return (
        TextColumn("{task.description}", table_column=whole()),
        Bar(bar_width=20),
        Count(table_column=whole()),
        Times(table_column=whole()),
        TextColumn("{task.fields[note]}", table_column=whole()),
    )


@contextmanager
def shown_on_terminal() -> Iterator[Console]:
    """Show log lines and progress bars within the context."""
    console = Console(stderr=True)
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as bars:
        # Warnings of libraries, without Prefect and Dask: commands print the same errors. Without a handler of the root logger, absl
        # installs a handler for all levels when Orbax is imported.
        warnings = logging.StreamHandler()
        warnings.setLevel(logging.WARNING)
        warnings.addFilter(lambda record: not record.name.startswith(("prefect", "distributed")))
        logging.getLogger().addHandler(warnings)
        handler = TerminalHandler(console, bars)
        for logger in (LOGGER, PROGRESS_LOGGER):
            logger.addHandler(handler)
        LOGGER.propagate = False
        try:
            yield console
        finally:
            for logger in (LOGGER, PROGRESS_LOGGER):
                logger.removeHandler(handler)
            logging.getLogger().removeHandler(warnings)
            LOGGER.propagate = True


def print_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print the table at the end of a run."""
    title = f"{summary['recipe']} · {summary['scale']}"
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title=title, title_justify="left")
    table.add_column("phase", no_wrap=True)
    for name in ("steps", "tokens", "learning rate", "loss", "bits/byte"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")  # two lines on a narrow terminal
    for phase in summary["phases"]:
        table.add_row(
            phase["name"],
            f"{phase['steps']:,}",
            f"{phase['tokens']:,}",
            " → ".join(map(wording.rate, phase["learning_rate"])),
            wording.decimal(phase["final_loss"], places=3),
            wording.decimal(phase["bits_per_byte"], places=3),
            phase["standing"] or phase["state"],
        )
    print_table(console, table)
    print_words(console, f"{summary['told']}.")
    for words in summary["unused"]:
        print_words(console, f"Accepted by the recipe, and not found: {words}.")
    if over := summary["bits_per_byte_over"]:
        print_words(console, f"Bits per byte: of the {wording.plural(len(over), 'component')} on which all phases were measured.")
    baselines = ", ".join(f"{name} {value:.3f}" for name, value in summary["baselines"].items())
    if baselines:
        print_words(console, f"For comparison, held-out bits per byte of {baselines}.")
