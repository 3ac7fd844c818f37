"""Where the record's code and its reports differ, and what neither states."""

from typing import Any

from rich.console import Console

from phasewise.flows.show.page import print_values

SEVERITIES = ("high", "medium", "low")


def print_notes(phase: dict[str, Any], console: Console) -> None:
    """The discrepancies of a phase, the weightiest first, and then what nobody states."""
    for found in sorted(phase["discrepancies"], key=lambda one: SEVERITIES.index(one["severity"])):
        values = {name: found[name] for name in ("code", "retrospective", "place")}
        print_values(console, f"{phase['name']}, {found['field']}: differs, {found['severity']}", values)
    for note in phase["notes"]:
        print_values(
            console, f"{phase['name']}, {note['field']}: not stated in the reports", {"note": note["text"], "place": note["place"]}
        )
