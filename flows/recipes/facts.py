"""Facts about the published runs, from YAML files next to the recipes: results, discrepancies, notes, and the source of each value.

A row names its phases by patterns of `RECIPE/PHASE`. `library_values.yaml` has values that a run left to a library at a commit.
"""

from collections.abc import Iterable
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from phasewise.flows.recipes.phase import Discrepancy, Note, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import read_yaml

FACTS = {
    "marin-8b": "marin/marin_8b.yaml",
    "marin-32b": "marin/marin_32b.yaml",
    "trinity-nano": "trinity/trinity.yaml",
    "trinity-mini": "trinity/trinity.yaml",
    "trinity-large": "trinity/trinity.yaml",
}
SCALED = "computed by the rules of the {scale} scale (docs/reference/recipe.md), or set for this run"
CHANGED = "not the published value: set for this run"
Evidence = Literal["default", "absent", "exists", "argument", "literal", "never_calls"]
Plain = bool | int | float | str | None


class Reported(Frozen):
    """A published result.

    Attributes:
        kind: scores are in percent, losses and loss gaps in `unit`.
        value: a number, or text if the report has no number.
        source: table, section or issue.
    """

    kind: Literal["score", "loss", "count", "date", "hardware", "event"]
    what: str
    value: float | str
    unit: str = ""
    source: str

    @property
    def in_words(self) -> str:
        """The value with its unit, such as `65.3 %`."""
        return self.value if isinstance(self.value, str) else f"{round(self.value, 4):g} {self.unit}".strip()


class Provenance(Frozen):
    """The source of a value.

    `kind`: experiment code, a library's default, a report's prose, public notes with less authority than the report, or this project's
    choice. `place`: file and lines, issue, section, or the reason of the choice.
    """

    kind: Literal["code", "default", "prose", "notes", "ours"]
    place: str


class LibraryVersion(Frozen):
    """The commit at which the values of some phases were checked, and the reason for this commit."""

    library: str
    repository: str
    commit: str
    date: date
    phases: tuple[str, ...]
    why: str


class LibraryValue(Frozen):
    """A value of a library, and the field of a phase that depends on the value.

    Attributes:
        repository, commit: of the file itself, if the library has no version for the phase.
        name: `Class.field`, `function.parameter` or `Class`.
        evidence: `default`: a class or function has this default. `absent`: the class has no such field. `exists`: the file has this class.
            `argument`: a call passes this argument. `literal`: the function contains this number. `never_calls`: the function, the second
            to last part of the name, does not call the last part.
        value: the default, or the number.
        decides: the field of a phase.
        gives: the value of that field, if different from `value`. `gives_none` stands for None.
        how: the rule from `value` to `gives`.
        among: the field has further values, such as the rates of other segments.
    """

    library: str
    repository: str = ""
    commit: str = ""
    path: str
    name: str
    evidence: Evidence = "default"
    value: Plain = None
    decides: str
    gives: Plain = None
    gives_none: bool = False
    how: str = ""
    among: bool = False
    kind: Literal["default", "code"] = "default"
    phases: tuple[str, ...] = Field(min_length=1)

    @property
    def given(self) -> Plain:
        """The value of the phase's field."""
        return None if self.gives_none else self.value if self.gives is None else self.gives

    @property
    def in_words(self) -> str:
        """The evidence as text, such as `AdamConfig.beta1 is 0.9`."""
        found = {
            "default": f"{self.name} is {'none' if self.value is None else self.value}",
            "absent": f"there is no {self.name}",
            "exists": self.name,
            "argument": f"{self.name} is passed",
            "literal": f"{self.value} in {self.name}",
            "never_calls": f"no call of {self.name}",
        }[self.evidence]
        return f"{found}, {self.how}" if self.how else found


class LibraryValues(Frozen):
    """The content of a file `library_values.yaml`."""

    versions: tuple[LibraryVersion, ...]
    values: tuple[LibraryValue, ...]

    def of(self, target: str) -> list[tuple[LibraryValue, str, str]]:
        """The values for `RECIPE/PHASE`, each with repository and commit."""
        checked = {one.library: one for one in self.versions if _matches(target, one.phases)}
        found: list[tuple[LibraryValue, str, str]] = []
        for value in self.values:
            if _matches(target, value.phases):
                if value.commit:
                    found.append((value, value.repository, value.commit))
                elif version := checked.get(value.library):
                    found.append((value, version.repository, version.commit))
        return found


@cache
def library_values(record: str) -> LibraryValues:
    """The library values of the folder `marin` or `trinity`."""
    written: Any = read_yaml(Path(__file__).parent / record / "library_values.yaml")
    values = [{**group["file"], "phases": group["phases"], **value} for group in written["files"] for value in group["values"]]
    versions, values = ([row | {"phases": _flat(row["phases"])} for row in rows] for rows in (written["versions"], values))
    return LibraryValues.model_validate({"versions": versions, "values": values})


def with_facts(recipe: str, phases: Iterable[Phase]) -> tuple[Phase, ...]:
    """The phases of a recipe with their discrepancies and notes."""
    completed: list[Phase] = []
    for phase in phases:
        found: dict[str, Any] = {}
        for section, model in (("discrepancies", Discrepancy), ("notes", Note)):
            rows = _rows(recipe, section, f"{recipe}/{phase.name}")
            found[section] = tuple(model.model_validate({name: value for name, value in row.items() if name != "phases"}) for row in rows)
        completed.append(phase.but(**found))
    return tuple(completed)


def results_of(recipe: Recipe) -> dict[str, tuple[Reported, ...]]:
    """Phase → published results. Only the recipes of published runs have any."""
    found: dict[str, tuple[Reported, ...]] = {}
    for phase in recipe.phases if recipe.name in FACTS else ():
        rows = _rows(recipe.name, "results", f"{recipe.name}/{phase.name}")
        reported = tuple(
            Reported(kind=row["kind"], what=what, value=value, unit=row.get("unit", ""), source=row["source"])
            for row in rows
            for what, value in row["values"].items()
        )
        if reported:
            found[phase.name] = reported
    return found


def rules_of(recipe: str, phase: str) -> dict[str, Provenance]:
    """Field, or a prefix of fields → source. The phase's own sources override a library's, and these override the recipe's."""
    target = f"{recipe}/{phase}"
    named: dict[str, dict[str, Provenance]] = {}
    for section in ("sources", "phase_sources"):
        rows = _rows(recipe, section, target)
        named[section] = {field: Provenance(kind=row["kind"], place=row["place"]) for row in rows for field in row["fields"]}
    libraries = {
        value.decides: Provenance(kind=value.kind, place=f"{value.library} {commit}, {value.path}: {value.in_words}")
        for value, _, commit in library_values(FACTS[recipe].partition("/")[0]).of(target)
    }
    return {**named["sources"], **libraries, **named["phase_sources"]}


def sources_of(recipe: Recipe, phase: Phase) -> dict[str, Provenance]:
    """Field → source, for every field of a phase of a published run. Other recipes have no sources.

    A value that a scale computes, or that differs from the published value, is this project's.
    """
    from phasewise.flows.recipes import load_written

    if recipe.name not in FACTS:
        return {}
    rules = rules_of(recipe.name, phase.name)
    written = {one.name: one for one in load_written(recipe.name).phases}
    full = leaves_of(written[phase.name]) if phase.name in written else {}
    other = Provenance(kind="ours", place=CHANGED if recipe.scale == "full" else SCALED.format(scale=recipe.scale))
    found: dict[str, Provenance] = {}
    for field, values in leaves_of(phase).items():
        fitting = [prefix for prefix in rules if field == prefix or field.startswith(prefix + ".")]
        if full.get(field) == values and not fitting:
            raise KeyError(f"no source is named for {field}")
        found[field] = rules[max(fitting, key=len)] if full.get(field) == values else other  # the longest prefix decides
    return found


def leaves_of(phase: Phase) -> dict[str, list[Any]]:
    """Field → its values in order. Steps and segments share a field, and a mixture is one field: `learning_rate.end`, `mixture`."""
    found: dict[str, list[Any]] = {}

    def collect(path: str, value: Any) -> None:
        if path == "mixture":
            found.setdefault(path, []).append(value)
        elif isinstance(value, dict):
            for name, part in value.items():
                collect(f"{path}.{name}", part)
        elif isinstance(value, list) and any(isinstance(part, list | dict) for part in value):
            for entry in value:
                if isinstance(entry, dict):  # a segment
                    collect(path, entry)
                elif isinstance(entry[1], dict):  # a step, and a value with fields: `skip_step.sigmas`
                    for name, part in entry[1].items():
                        found.setdefault(f"{path}.{name}", []).append([entry[0], part])
                else:
                    found.setdefault(path, []).append(entry)
        else:
            found.setdefault(path, []).append(value)

    for name, value in phase.model_dump(mode="json", exclude={"discrepancies", "notes"}).items():
        collect(name, value)
    return found


@cache
def _file(recipe: str) -> dict[str, list[dict[str, Any]]]:
    return read_yaml(Path(__file__).parent / FACTS[recipe])


def _rows(recipe: str, section: str, target: str) -> list[dict[str, Any]]:
    return [row for row in _file(recipe)[section] if _matches(target, row["phases"])]


def _matches(target: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(target, pattern) for pattern in patterns)


def _flat(phases: Any) -> list[str]:
    """Flatten the lists of lists that YAML anchors give."""
    return [phases] if isinstance(phases, str) else [name for one in phases for name in _flat(one)]
