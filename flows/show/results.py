"""What the record reported of its phases, printed for people."""

from typing import Any

from rich.console import Console

from phasewise.flows.recipes.reported import Reported
from phasewise.flows.show.page import print_values
from phasewise.flows.show.table import title_of


def print_results(description: dict[str, Any]) -> None:
    """A group a phase: what was reported, and where."""
    console = Console(highlight=False)
    console.print(title_of(description), markup=False)
    shown = [phase for phase in description["phases"] if phase["reported"]]
    for phase in shown:
        by_source: dict[str, list[dict[str, Any]]] = {}
        for found in phase["reported"]:
            by_source.setdefault(found["source"], []).append(found)
        for source, rows in by_source.items():
            print_values(console, f"{phase['name']}: {source}", {row["what"]: Reported.model_validate(row).in_words for row in rows})
    if not shown:
        console.print("Nothing is reported of it.")
