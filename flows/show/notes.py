"""Where the record's code and its reports differ, and what neither states."""

from typing import Any

from rich.console import Console

from flows.show.page import print_values


def print_notes(phase: dict[str, Any], console: Console) -> None:
    """The discrepancies of a phase, the weightiest first, and its notes."""
    for found in phase["discrepancies"]:
        values = {"code": found["code"], "retrospective": found["retrospective"], "source": found["source"]}
        print_values(console, f"{phase['name']}, {found['field']}", values)
