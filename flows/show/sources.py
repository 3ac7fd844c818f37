"""Where values come from, printed for people."""

from typing import Any

from rich.console import Console

from phasewise.flows.show.page import print_values
from phasewise.flows.show.table import title_of
from phasewise.flows.show.words import mixture_in_a_word
from phasewise.trainer.base.wording import in_words

KINDS = {
    "code": "the record's code",
    "default": "a library's default",
    "prose": "a report's prose, where no stored code has it",
    "notes": "public notes, of lesser authority than the report",
    "ours": "this project",
}


def print_sources(description: dict[str, Any]) -> None:
    """Of each phase, by kind: field, value and place. Of a phase after the first, only what differs from the first one's."""
    console = Console(highlight=False)
    console.print(title_of(description), markup=False)
    first: dict[str, Any] = {}
    for phase in description["phases"]:
        shown = {field: one for field, one in phase["sources"].items() if first.get(field) != one}
        more = ", where it is otherwise" if first else ""
        first = first or phase["sources"]
        for kind, words in KINDS.items():
            fields = {field: one for field, one in shown.items() if one["kind"] == kind}
            values = {field: f"{_value(phase, field)}  ({one['place']})" for field, one in fields.items()}
            print_values(console, f"{phase['name']}: {words}{more}", values)
    if not first:
        console.print("No source is named: this recipe is no record, and every value is the one that its file has.")


def _value(phase: dict[str, Any], field: str) -> str:
    """The value in few words; what is long is on the page of the phase."""
    if field == "mixture":
        return mixture_in_a_word(phase["mixture"])
    texts = list(dict.fromkeys(in_words(value) for value in _values(phase, field.split("."))))
    text = "; ".join(texts[:3]) + ("; …" if len(texts) > 3 else "")
    return text if len(text) <= 60 else f"{text[:57]}…"


def _values(value: Any, path: list[str]) -> list[Any]:
    """Every value at a path; steps and segments are not counted."""
    if isinstance(value, list) and value and all(isinstance(part, list) and len(part) == 2 for part in value):
        return [one for _, part in value for one in _values(part, path)]
    if isinstance(value, list) and path:
        return [one for part in value for one in _values(part, path)]
    if not path:
        return [value]
    return _values(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []
