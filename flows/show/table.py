"""The phases of a recipe as a table that fits a screen."""

from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasewise.flows.recipes.recipe import scale_in_words
from phasewise.flows.show.words import arrows, bias_in_words, mixture_in_a_word, rate_ends, rows_in_words
from phasewise.trainer.base.wording import tokens
from phasewise.validations.accepted import AcceptedWarning

COLUMNS = ("phase", "steps", "tokens", "batch", "rate", "mixture", "slice", "model", "verdict")
UNBROKEN = ("phase", "steps", "tokens")
MIN_WIDTHS = {"batch": 7, "rate": 11, "slice": 8, "mixture": 10, "model": 7, "verdict": 7}
"""The longest word of a column, at least. Between words a line may break, within a number it may not."""


def print_table(description: dict[str, Any], console: Console, *, branches: bool) -> None:
    """A line a phase: the main line, and with `branches` all."""
    shown = [phase for phase in description["phases"] if branches or not phase["branch"]] or description["phases"]
    console.print(title_of(description), style="bold")
    _print_own_data(description, console)
    if console.width >= _needed_width(shown):
        _print_lines(shown, console)
    else:
        _print_pairs_of_lines(shown, console)
    _print_rows_and_documents(shown, console)
    for phase in shown:
        if phase["verdict"]["why"]:
            console.print(f"{phase['name']} {phase['verdict']['state']} here: {phase['verdict']['why']}", markup=False)
    if any(phase["verdict"]["state"] for phase in shown):
        console.print(
            f"Verdicts as they were last given. Whether they hold for what is there now: status {description['recipe']}", style="dim"
        )
    hidden = len(description["phases"]) - len(shown)
    beside = f"{hidden} branches beside it: --branches. " if hidden else ""
    console.print(
        f"{beside}One phase: show {description['recipe']}/{shown[0]['name']}. Where code and reports differ: --notes.", style="dim"
    )


def title_of(description: dict[str, Any]) -> str:
    """Recipe and scale, and where the record's own numbers are."""
    more = "; --scale full has the record's own numbers" if description["scale"] not in ("full", "own") and description.get("full") else ""
    return f"{description['recipe']} {scale_in_words(description['scale'])}{more}"


def print_accepted(console: Console, accepts: list[dict[str, Any]]) -> None:
    """The warnings that the recipe accepts, each with its reason."""
    for one in map(AcceptedWarning.model_validate, accepts):
        phases = f"in {', '.join(one.phases)}" if one.phases else "in every phase"
        console.print(f"accepts a warning of {one.table}: {one.words}, {phases}. {one.reason} ({one.source})", markup=False)


def _row(phase: dict[str, Any]) -> dict[str, str]:
    state = phase["verdict"]["state"]
    return {
        "phase": phase["name"],
        "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
        "tokens": tokens(phase["tokens"]),
        "batch": arrows(phase["batch"]),
        "rate": rate_ends(phase["learning_rate"], phase["start_step"], phase["stop_step"]),
        "mixture": mixture_in_a_word(phase["mixture"]),
        "slice": arrows(phase["slice"]),
        "model": _model(phase),
        "verdict": "–" if state is None else f"{state} here" if state == "refused" else state,
    }


def _model(phase: dict[str, Any]) -> str:
    """Its weights, and of a sparse model those that a token meets."""
    if phase["model"]["experts"]:
        return f"{tokens(phase['parameters'])}, {tokens(phase['active_parameters'])} active"
    return f"{tokens(phase['parameters'])}{', QK-norm' if phase['model']['qk_norm'] else ''}"


def _needed_width(shown: list[dict[str, Any]]) -> int:
    """So many columns take a phase in one line of the table; with fewer, its mixture, slice, model and verdict go below it."""
    rows = [_row(phase) for phase in shown]
    return sum(MIN_WIDTHS.get(name) or max(len(row[name]) for row in rows) for name in COLUMNS) + len(COLUMNS)


def _print_lines(shown: list[dict[str, Any]], console: Console) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=name in UNBROKEN, min_width=MIN_WIDTHS.get(name), overflow="fold")
    for phase in shown:
        table.add_row(*map(Text, _row(phase).values()))
    console.print(table)


def _print_pairs_of_lines(shown: list[dict[str, Any]], console: Console) -> None:
    """The numbers in a line, and what does not fit beside them in the next."""
    width = max(len(phase["name"]) for phase in shown)
    console.print(Text(f"{'phase':<{width}}  {'steps':<21}  {'tokens':<7}  batch; rate"), style="bold", soft_wrap=True)
    for phase in shown:
        row = _row(phase)
        numbers = f"{row['phase']:<{width}}  {row['steps']:<21}  {row['tokens']:<7}  {row['batch']}; {row['rate']}"
        console.print(Text(numbers))
        console.print(Text(f"  {row['mixture']}; {row['slice']}; {row['model']}; verdict {row['verdict']}", style="dim"))


def _print_rows_and_documents(shown: list[dict[str, Any]], console: Console) -> None:
    """What a phase reads where that is not all text, cut one document after the other; nothing where it is."""
    lines = [f"{phase['name']}: {rows}" for phase in shown if (rows := rows_in_words(phase["packing"], phase["loss_on"]))]
    taken = {name: bias for phase in shown for name, bias in phase["length_bias"].items()}
    lines += [f"documents of {name} by their length: {bias_in_words(bias)}" for name, bias in sorted(taken.items())]
    for line in lines:
        console.print(line, markup=False)


def _print_own_data(description: dict[str, Any], console: Console) -> None:
    own = [f"source of {name}: {source['url']}" for name, source in description.get("sources", {}).items()]
    own += [f"pin of {pin['component']} ({pin['split']}): {pin['digest'][:16]} at {pin['url']}" for pin in description.get("pins", [])]
    for line in own:
        console.print(line, markup=False)
