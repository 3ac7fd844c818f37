"""What people see on the terminal while a recipe runs: lines, and a bar for what is under way. Everything goes to standard error."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rich.box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tasks.progress import LOGGER, PROGRESS_LOGGER, Milestones
from trainer.base import wording


class TerminalHandler(logging.Handler):
    """Draws the records of `tasks.progress`. Where standard error is no terminal, a bar becomes a line at its milestones."""

    def __init__(self, console: Console, bars: Progress) -> None:
        super().__init__()
        self._console, self._bars = console, bars
        self._tasks: dict[str, TaskID] = {}
        self._milestones = Milestones()

    def emit(self, record: logging.LogRecord) -> None:
        """A line, or a step of a bar."""
        progress = getattr(record, "progress", None)
        if progress is None:
            self._console.print(record.getMessage(), highlight=False, markup=False, soft_wrap=True)
        elif self._console.is_terminal:
            self._draw(progress)
        else:
            self._print_milestone(progress)

    def _draw(self, progress: Any) -> None:
        if progress.work not in self._tasks:
            self._tasks[progress.work] = self._bars.add_task(progress.work, total=progress.total, note="")
        self._bars.update(self._tasks[progress.work], completed=progress.done, total=progress.total, note=progress.note)
        if progress.done >= progress.total:
            self._bars.remove_task(self._tasks.pop(progress.work))
            self._console.print(progress.line, highlight=False, markup=False)

    def _print_milestone(self, progress: Any) -> None:
        if self._milestones.is_one(progress):
            self._console.print(progress.line, highlight=False, markup=False)


@contextmanager
def shown_on_terminal() -> Iterator[Console]:
    """Show what the steps say for as long as the context lasts."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=True) as bars:
        handler = TerminalHandler(console, bars)
        for logger in (LOGGER, PROGRESS_LOGGER):
            logger.addHandler(handler)
        LOGGER.propagate = False
        try:
            yield console
        finally:
            for logger in (LOGGER, PROGRESS_LOGGER):
                logger.removeHandler(handler)
            LOGGER.propagate = True


def print_summary(console: Console, summary: dict[str, Any]) -> None:
    """The table at the end of a run."""
    title = f"{summary['recipe']} · {summary['scale']}"
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title=title, title_justify="left")
    table.add_column("phase", no_wrap=True)
    for name in ("steps", "tokens", "learning rate", "loss", "bits/byte"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")  # in two lines where the terminal is narrow
    for phase in summary["phases"]:
        rate = phase["learning_rate"]
        table.add_row(
            phase["name"],
            f"{phase['steps']:,}",
            f"{phase['tokens']:,}",
            f"{wording.rate(rate['from'])} → {wording.rate(rate['to'])}",
            wording.decimal(phase["final_loss"], places=3),
            wording.decimal(phase["bits_per_byte"], places=3),
            phase["standing"] or "not reached",
        )
    console.print(table)
    console.print(f"{summary['told']}.", highlight=False, markup=False, soft_wrap=True)
    for words in summary["unused"]:
        console.print(f"Accepted by the recipe, and not found: {words}.", highlight=False, markup=False, soft_wrap=True)
    baselines = ", ".join(f"{name} {value:.3f}" for name, value in summary["baselines"].items())
    if baselines:
        console.print(f"For comparison, held-out bits per byte of {baselines}.", highlight=False)
