"""Where each value of a phase comes from: the record's code, a library's default, a report's prose, public notes, or this project."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.frozen import Frozen

Kind = Literal["code", "default", "prose", "notes", "ours"]
EXPLAINING = ("discrepancies", "notes")
"""Fields that say where values come from, and have none themselves."""
SCALED = "computed by the rules of the {scale} scale (docs/reference/recipe.md), or set for this run"
CHANGED = "not the record's value: set for this run"


class Provenance(Frozen):
    """Where a value comes from.

    Attributes:
        kind: the record's experiment code, a library's default that this code left as it is, a report's prose where no stored code has the
            value, public notes of lesser authority than the report, or this project's own choice.
        place: file and lines, issue, section, or what was chosen for.
    """

    kind: Kind
    place: str


Sources = Mapping[str, Provenance]
"""Field, or the part of its path that several begin with → where it comes from. The longest that fits decides."""


class RecordSources(NamedTuple):
    """Of a whole recipe, and what is otherwise in a phase."""

    common: Sources
    by_phase: Mapping[str, Sources]


def sources_of(recipe: Recipe, phase: Phase) -> dict[str, Provenance]:
    """Field → where its value comes from, for every field of a phase of a record; nothing for any other recipe.

    What a scale computes is this project's, wherever the value that it was computed from comes from. So is what is not as the
    record has it.
    """
    written = written_sources(recipe.name)
    if written is None:
        return {}
    from phasewise.flows.recipes.library_values import with_library_values

    folder, own, at_full = written
    sources = with_library_values(own, folder, recipe.name, phase.name)
    full = leaves_of(at_full.phase(phase.name)) if phase.name in {one.name for one in at_full.phases} else {}
    other = Provenance(kind="ours", place=CHANGED if recipe.scale == "full" else SCALED.format(scale=recipe.scale))
    here = leaves_of(phase)
    return {field: provenance_of(field, sources, phase.name) if full.get(field) == values else other for field, values in here.items()}


def provenance_of(field: str, sources: RecordSources, phase: str) -> Provenance:
    """Where one field comes from.

    Raises:
        KeyError: nobody has said so.
    """
    rules = {**sources.common, **sources.by_phase.get(phase, {})}
    fitting = [prefix for prefix in rules if fits(prefix, field)]
    if not fitting:
        raise KeyError(f"no source is named for {field} of {phase}")
    return rules[max(fitting, key=len)]


def fits(prefix: str, field: str) -> bool:
    """Whether the field is that one, or lies below it."""
    return field == prefix or field.startswith(prefix + ".")


def leaves_of(phase: Phase) -> dict[str, list[Any]]:
    """Field → its values, in order. Steps and segments are not counted, and a mixture is one field: `learning_rate.end`, `mixture`."""
    found: dict[str, list[Any]] = {}
    for name, value in phase.model_dump(mode="json").items():
        if name not in EXPLAINING:
            _collect(found, name, value)
    return found


def _collect(found: dict[str, list[Any]], path: str, value: Any) -> None:
    if isinstance(value, dict) and path != "mixture":
        for name, part in value.items():
            _collect(found, f"{path}.{name}", part)
    elif isinstance(value, list) and any(isinstance(part, list | dict) for part in value) and path != "mixture":
        for part in value:
            _collect_entry(found, path, part)
    else:
        found.setdefault(path, []).append(value)


def _collect_entry(found: dict[str, list[Any]], path: str, entry: Any) -> None:
    """A segment, or a step with its value. Where the value has fields of its own, the step is theirs: `skip_step.sigmas`."""
    if isinstance(entry, dict):
        _collect(found, path, entry)
        return
    step, value = entry
    if isinstance(value, dict):
        for name, part in value.items():
            found.setdefault(f"{path}.{name}", []).append([step, part])
    else:
        found.setdefault(path, []).append(entry)


def written_sources(name: str) -> tuple[str, RecordSources, Recipe] | None:
    """The folder of the record, its sources without those that are a library's, and the recipe as it is written."""
    match name:
        case "marin-8b":
            from phasewise.flows.recipes.marin.sources_8b import SOURCES_8B
            from phasewise.flows.recipes.marin_8b import MARIN_8B

            return "marin", SOURCES_8B, MARIN_8B
        case "marin-32b":
            from phasewise.flows.recipes.marin.sources_32b import SOURCES_32B
            from phasewise.flows.recipes.marin_32b import MARIN_32B

            return "marin", SOURCES_32B, MARIN_32B
        case "trinity-nano":
            from phasewise.flows.recipes.trinity.sources import SOURCES_NANO
            from phasewise.flows.recipes.trinity_nano import TRINITY_NANO

            return "trinity", SOURCES_NANO, TRINITY_NANO
        case "trinity-mini":
            from phasewise.flows.recipes.trinity.sources import SOURCES_MINI
            from phasewise.flows.recipes.trinity_mini import TRINITY_MINI

            return "trinity", SOURCES_MINI, TRINITY_MINI
        case "trinity-large":
            from phasewise.flows.recipes.trinity.sources_large import SOURCES_LARGE
            from phasewise.flows.recipes.trinity_large import TRINITY_LARGE

            return "trinity", SOURCES_LARGE, TRINITY_LARGE
        case _:
            return None
