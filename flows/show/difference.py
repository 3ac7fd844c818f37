"""The differences between two phases: every field with both values."""

from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasewise.flows.cli.terminal import print_table
from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.show.describe import describe_phase
from phasewise.trainer.base.wording import in_words

NOT_COMPARED = ("name", "discrepancies", "notes", "changes")
ABSENT = "not there"


def describe_difference(target: str, scale: Scale, names: tuple[str, str]) -> dict[str, Any]:
    """The differing fields of two phases of the target, or of `RECIPE/PHASE`, stage by stage. Raises ConfigError for unknown names."""
    recipe_name = split_target(target)[0]
    described: list[dict[str, Any]] = []
    for name in names:
        of, phase = split_target(name) if "/" in name else (recipe_name, name)
        recipe = load_record(of, scale, phase)
        described.append(describe_phase(recipe, recipe.phase(phase or "")))
    first, second = (fields_of(one) for one in aligned(described[0], described[1]))
    groups: dict[str, list[dict[str, Any]]] = {}
    for field in {**first, **second}:
        if first.get(field, ABSENT) != second.get(field, ABSENT):
            group = field.partition(".")[0].removesuffix(" from step")
            groups.setdefault(group, []).append({"field": field, "values": [first.get(field), second.get(field)]})
    fields = [one for group in groups.values() for one in group]
    return {"recipe": recipe_name, "scale": scale, "phases": list(names), "fields": fields}


def aligned(*values: Any) -> tuple[Any, ...]:
    """All values with equal numbers of stages. Missing stages repeat the last value, without a step."""
    if all(isinstance(value, dict) for value in values):
        found: list[dict[str, Any]] = [dict(value) for value in values]
        for name in {name: None for value in found for name in value}:
            having = [value for value in found if name in value]
            for value, part in zip(having, aligned(*(value[name] for value in having)), strict=True):
                value[name] = part
        return tuple(found)
    if all(_is_by_steps(value) for value in values):
        length = max(map(len, values))
        return tuple(entries + [[None, entries[-1][1]]] * (length - len(entries)) for entries in values)
    return values


def fields_of(phase: dict[str, Any]) -> dict[str, Any]:
    """Path → value, for all values of a described phase. Stages and segments count from 1."""
    found: dict[str, Any] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                add(f"{path}.{name}", part)
        elif _is_by_steps(value):
            for stage_number, (step, part) in enumerate(value, 1):
                stage = f"{path} {stage_number}" if len(value) > 1 else path
                if stage_number > 1:
                    found[f"{stage} from step"] = step
                add(stage, part)
        elif path == "learning_rate":
            for segment_number, segment in enumerate(value, 1):
                add(f"{path} {segment_number}", segment)
        else:
            found[path] = value

    for name, value in phase.items():
        if name not in NOT_COMPARED:
            add(name, value)
    return found


def _is_by_steps(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, list) for entry in cast(list[Any], value))


def print_difference(description: dict[str, Any]) -> None:
    """A line per field."""
    console = Console(highlight=False)
    first, second = description["phases"]
    console.print(f"{first} and {second} of {description['recipe']} {scale_in_words(description['scale'])}", style="bold", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("field", first, second):
        table.add_column(title, overflow="fold", no_wrap=title == "field")
    for row in description["fields"]:
        table.add_row(Text(row["field"]), *(Text(cell_of(value, row["field"])) for value in row["values"]))
    print_table(console, table)
    if not description["fields"]:
        console.print("They differ in nothing but their names.")


def cell_of(value: Any, field: str) -> str:
    """The value of a field as text. Shares are in percent."""
    if value is None and (field.startswith("mixture") or field.endswith("from step")):
        return "–"
    return f"{value:.2f} %" if isinstance(value, float) and field.startswith("mixture") else in_words(value)
