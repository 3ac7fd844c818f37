"""The benchmarks that lm-eval runs and the suites that ask them, read from `benchmarks.yaml`."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen

SHOTS_IN_DEFINITION = "definition"
"""The examples are written in lm-eval's own definition, and need no file."""


class Rows(Frozen):
    """The rows of a file whose field has one of these values."""

    field: str
    values: tuple[str | int, ...]


class Part(Frozen):
    """One task of lm-eval; most benchmarks are one.

    Attributes:
        include: lm-eval's file below `lm_eval/tasks`; empty if the benchmark is defined here.
        file: items below the folder of benchmarks. `{split}` is the name of a split.
        rows: the rows of the file that belong to the task; None is all.
        split: of the items, if it differs from the benchmark's.
    """

    task: str
    include: str = ""
    file: str
    split: str = ""
    rows: Rows | None = None


class Definition(Frozen):
    """A benchmark.

    Attributes:
        metric: lm-eval's name of the metric that counts. `pass` is counted here: the program passed its tests.
        filter: lm-eval's name of the filter that counts.
        shots_split: the split of the examples. None: there is none, and lm-eval would take examples from the items themselves.
        shots_rows: the rows of that split that are examples; None is all.
        settings: changes of lm-eval's definition, or all of it.
        local_settings: the whole definition for a folder whose files have another form than the hub's.
        fields: the fields of a row that are needed, if the others have no one type; empty is all.
        modules: Python modules that the definition imports.
        remark: how the value differs from values that others measure under this name.
    """

    name: str
    parts: tuple[Part, ...] = Field(min_length=1)
    metric: str
    filter: str = "none"
    split: str = "test"
    shots_split: str | None = "train"
    shots_rows: Rows | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    local_settings: dict[str, Any] = Field(default_factory=dict)
    fields: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    on_hub: bool = True
    remark: str = ""


class Asked(Frozen):
    """A line of a suite: a benchmark with its number of examples, or with the tokens of an item if items are made at any length."""

    benchmark: str
    shots: int = Field(ge=0)
    source: str
    length: int | None = Field(default=None, gt=0)

    @property
    def label(self) -> str:
        """The name of its result: `arc_easy:10`, `niah:8192`."""
        return f"{self.benchmark}:{self.shots if self.length is None else self.length}"


class Suite(Frozen):
    """Benchmarks that are measured together, in this order."""

    name: str
    about: str
    asked: tuple[Asked, ...]


def find_definition(name: str) -> Definition:
    """Return the benchmark of this name, or raise a ConfigError."""
    if name not in DEFINITIONS:
        raise ConfigError(f"a suite must name benchmarks that are known, found {name!r}; known are {', '.join(DEFINITIONS)}.")
    return DEFINITIONS[name]


def find_suite(name: str) -> Suite:
    """Return the suite of this name, or raise a ConfigError."""
    if name not in SUITES:
        raise ConfigError(f"--suite must be one of {', '.join(SUITES)}, niah or niah:LENGTH, found {name!r}.")
    return SUITES[name]


def ask(label: str, source: str) -> Asked:
    """Read a label such as `arc_easy:10`."""
    name, _, shots = label.partition(":")
    return Asked(benchmark=name, shots=int(shots), source=source)


def _definition(name: str, entry: dict[str, Any]) -> Definition:
    found = {key: entry.pop(key, default) for key, default in (("task", name), ("include", ""), ("file", name + "/{split}.jsonl"))}
    field, split, names = (entry.pop(key, default) for key, default in (("rows_field", None), ("part_split", ""), ("parts", [""])))
    values: dict[str, str] = names if isinstance(names, dict) else dict(zip(names, names, strict=True))
    parts = [
        {key: text.replace("{part}", part) for key, text in (found | {"split": split}).items()}
        | ({"rows": {"field": field, "values": [value]}} if field else {})
        for part, value in values.items()
    ]
    return Definition.model_validate({"name": name, "parts": parts, **entry})


_CATALOGUE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8"))
DEFINITIONS = {name: _definition(name, dict(entry)) for name, entry in _CATALOGUE["benchmarks"].items()}
SUITES = {
    name: Suite(name=name, about=entry["about"], asked=tuple(ask(label, source) for source, labels in entry["asked"] for label in labels))
    for name, entry in _CATALOGUE["suites"].items()
}
