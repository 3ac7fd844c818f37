"""What two phases differ in: every field with both values."""

from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasewise.flows.cli.terminal import print_table
from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.show.describe import describe_phase
from phasewise.trainer.base.wording import in_words, number

NOT_COMPARED = ("name", "discrepancies", "notes", "changes")
ABSENT = "not there"


def describe_difference(target: str, scale: Scale, names: tuple[str, str]) -> dict[str, Any]:
    """The fields in which two phases differ. Either may be of another recipe, as `RECIPE/PHASE`; the target's is meant else.

    Values that change at steps are compared stage by stage, because two phases rarely begin at the same step: `mixture 2.flan` is the share
    of flan in a phase's second mixture.

    Raises:
        ConfigError: no such recipe or phase.
    """
    recipe_name = split_target(target)[0]
    described: list[dict[str, Any]] = []
    for name in names:
        of, phase = split_target(name) if "/" in name else (recipe_name, name)
        recipe = load_record(of, scale, phase)
        described.append(describe_phase(recipe, recipe.phase(phase or "")))
    first, second = (fields_of(one) for one in aligned(described[0], described[1]))
    differing = [field for field in {**first, **second} if first.get(field, ABSENT) != second.get(field, ABSENT)]
    groups = list(dict.fromkeys(_group(field) for field in differing))
    differing.sort(key=lambda field: groups.index(_group(field)))
    fields = [{"field": field, "values": [first.get(field), second.get(field)]} for field in differing]
    return {"recipe": recipe_name, "scale": scale, "phases": list(names), "fields": fields}


def _group(field: str) -> str:
    return field.partition(".")[0].removesuffix(" from step")


def aligned(first: Any, second: Any) -> tuple[Any, Any]:
    """Both with as many stages: where one has fewer, its last value goes on, from no step of its own."""
    if isinstance(first, dict) and isinstance(second, dict):
        pairs = {name: aligned(first[name], second[name]) for name in first if name in second}
        return {**first, **{name: pair[0] for name, pair in pairs.items()}}, {**second, **{name: pair[1] for name, pair in pairs.items()}}
    if _is_by_steps(first) and _is_by_steps(second):
        length = max(len(cast(list[Any], first)), len(cast(list[Any], second)))
        return _lengthened(cast(list[Any], first), length), _lengthened(cast(list[Any], second), length)
    return first, second


def _lengthened(entries: list[Any], length: int) -> list[Any]:
    return entries + [[None, entries[-1][1]]] * (length - len(entries))


def fields_of(phase: dict[str, Any]) -> dict[str, Any]:
    """Path → value of every single value of a described phase; stages and segments are counted from 1."""
    found: dict[str, Any] = {}
    for name, value in phase.items():
        if name not in NOT_COMPARED:
            _add(found, name, value)
    return found


def _add(found: dict[str, Any], path: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            _add(found, f"{path}.{name}", part)
    elif _is_by_steps(value):
        for number_of_stage, (step, part) in enumerate(value, 1):
            stage = f"{path} {number_of_stage}" if len(value) > 1 else path
            if number_of_stage > 1:
                found[f"{stage} from step"] = step
            _add(found, stage, part)
    elif path == "learning_rate":
        for number_of_segment, segment in enumerate(value, 1):
            _add(found, f"{path} {number_of_segment}", segment)
    else:
        found[path] = value


def _is_by_steps(value: Any) -> bool:
    """`[[step, value], …]`."""
    return isinstance(value, list) and bool(value) and all(isinstance(entry, list) for entry in cast(list[Any], value))


def print_difference(description: dict[str, Any]) -> None:
    """For people: a line a field."""
    console = Console(highlight=False)
    first, second = description["phases"]
    console.print(f"{first} and {second} of {description['recipe']} {scale_in_words(description['scale'])}", style="bold", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("field", first, second):
        table.add_column(title, overflow="fold", no_wrap=title == "field")
    for row in description["fields"]:
        table.add_row(Text(row["field"]), *(Text(_short(value, row["field"])) for value in row["values"]))
    print_table(console, table)
    if not description["fields"]:
        console.print("They differ in nothing but their names.")


def _short(value: Any, field: str) -> str:
    if value is None:
        return "–" if field.startswith("mixture") or field.endswith("from step") else "off"
    if isinstance(value, float):
        return f"{value:.2f} %" if field.startswith("mixture") else number(value)
    return in_words(value)
