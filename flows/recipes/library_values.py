"""Values that the code of a record left to a library: written down as data beside the recipe, and looked up by phase.

A file `library_values.yaml` names the commit of each library by which the values of a phase were checked, and what is found there.
"""

from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from phasewise.flows.recipes.provenance import Provenance, RecordSources, Sources
from phasewise.trainer.base.frozen import Frozen

Evidence = Literal["default", "absent", "exists", "argument", "literal", "never_calls"]
Plain = bool | int | float | str | None


class LibraryVersion(Frozen):
    """The commit by which phases were checked.

    Attributes:
        phases: patterns of `recipe/phase`.
        why: why this commit: what the phases need that came with it.
    """

    library: str
    repository: str
    commit: str
    date: date
    phases: tuple[str, ...]
    why: str


class LibraryValue(Frozen):
    """One value of a library, and the field of a phase that it decides.

    Attributes:
        repository, commit: where the library has no version for the phase: a stored version of the file itself.
        name: `Class.field`, `function.parameter` or `Class`.
        evidence: `default`: the class, or the function, has this value by default. `absent`: the class has no such field. `exists`: the
            file has this class. `argument`: a call of this name passes this argument. `literal`: the function holds this number.
            `never_calls`: the function, the last but one part of the name, does not call the last one.
        value: the default, or the number.
        decides: the field of a phase.
        gives: the value of that field, if it is not `value`; `gives_none` for None.
        how: how the one follows from the other.
        among: the field has further values, such as the learning rates of other segments.
        kind: of the provenance.
        phases: patterns of `recipe/phase`.
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
        """`AdamConfig.beta1 is 0.9`."""
        match self.evidence:
            case "default":
                found = f"{self.name} is {'none' if self.value is None else self.value}"
            case "absent":
                found = f"there is no {self.name}"
            case "exists":
                found = self.name
            case "argument":
                found = f"{self.name} is passed"
            case "literal":
                found = f"{self.value} in {self.name}"
            case "never_calls":
                found = f"no call of {self.name}"
        return f"{found}, {self.how}" if self.how else found


class LibraryValues(Frozen):
    """The content of one file."""

    versions: tuple[LibraryVersion, ...]
    values: tuple[LibraryValue, ...]

    def of(self, target: str) -> list[tuple[LibraryValue, str, str]]:
        """The values that decide fields of `recipe/phase`, each with the repository and the commit that it was checked in."""
        checked = {one.library: one for one in self.versions if _is_among(target, one.phases)}
        found: list[tuple[LibraryValue, str, str]] = []
        for value in self.values:
            if not _is_among(target, value.phases):
                continue
            if value.commit:
                found.append((value, value.repository, value.commit))
            elif value.library in checked:
                found.append((value, checked[value.library].repository, checked[value.library].commit))
        return found


@cache
def library_values(record: str) -> LibraryValues:
    """Of a folder of `flows/recipes`: `marin`, `trinity`."""
    written: Any = yaml.safe_load((Path(__file__).parent / record / "library_values.yaml").read_text(encoding="utf-8"))
    values = [{**group["file"], "phases": _flat(group["phases"]), **value} for group in written["files"] for value in group["values"]]
    values = [value | {"phases": _flat(value["phases"])} for value in values]
    versions = [one | {"phases": _flat(one["phases"])} for one in written["versions"]]
    return LibraryValues.model_validate({"versions": versions, "values": values})


def with_library_values(sources: RecordSources, record: str, recipe: str, phase: str) -> RecordSources:
    """The sources of a phase with those that are a library's. A field that the phase's own sources name stays as they have it."""
    found: Sources = {
        value.decides: Provenance(kind=value.kind, place=f"{value.library} {commit}, {value.path}: {value.in_words}")
        for value, _, commit in library_values(record).of(f"{recipe}/{phase}")
    }
    return RecordSources(sources.common, {**sources.by_phase, phase: {**found, **sources.by_phase.get(phase, {})}})


def _flat(phases: Any) -> list[str]:
    """Lists in lists are the groups that a file names once."""
    return [phases] if isinstance(phases, str) else [name for one in phases for name in _flat(one)]


def _is_among(target: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(target, pattern) for pattern in patterns)
