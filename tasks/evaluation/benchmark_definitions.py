"""lm-eval's benchmarks and suites, from `benchmarks.yaml`."""

import importlib.resources
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen

SHOTS_IN_DEFINITION = "definition"  # the examples are in lm-eval's definition


class Rows(Frozen):
    """Rows of a file, selected by the values of a field."""

    field: str
    values: tuple[str | int, ...]


class Part(Frozen):
    """An lm-eval task. `include` is a path below `lm_eval/tasks`, `file` a path of items with `{split}`, `rows` None is all rows."""

    task: str
    include: str = ""
    file: str
    split: str = ""
    rows: Rows | None = None
    files: Mapping[str, tuple[str, ...]] = {}  # paths of each split in place of `file`

    def files_of(self, split: str) -> tuple[str, ...]:
        """Return the paths of a split, relative to the folder of items."""
        return self.files.get(split, ()) if self.files else (self.file.format(split=split),)


class Definition(Frozen):
    """A benchmark with lm-eval's metric and filter. The metric `pass` counts programs that pass their tests.

    `shots_split` None forbids examples, which lm-eval would take from the items. `settings` change or replace lm-eval's definition, and
    `local_settings` replace it for local files. `fields` are the needed fields of rows with mixed types. `remark` lists differences to
    published values. `roles` are the definition's splits by lm-eval's name.

    A benchmark of `tasks.evaluation.own_benchmarks` has the last fields: `folder` with its items, `texts_digest` of its YAML and code,
    `is_plain` for rows with question and answer, `runs_code` for functions outside lm-eval, and the default number of `shots`.
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
    roles: Mapping[str, str] = {"training_split": "train", "validation_split": "validation"}
    folder: Path | None = None
    texts_digest: str = ""
    is_plain: bool = False
    runs_code: bool = False
    shots: int = 0


class Asked(Frozen):
    """A line of a suite: a benchmark with a number of examples or, for needles, a length in tokens."""

    benchmark: str
    shots: int = Field(ge=0)
    source: str
    length: int | None = Field(default=None, gt=0)

    @property
    def label(self) -> str:
        """Name of the result, such as `arc_easy:10` or `niah:8192`."""
        return f"{self.benchmark}:{self.shots if self.length is None else self.length}"


class Suite(Frozen):
    """Benchmarks in the order of their measurement."""

    name: str
    about: str
    asked: tuple[Asked, ...]


@cache
def lm_eval_tasks() -> Path:
    """Folder of lm-eval's definitions."""
    return Path(str(importlib.resources.files("lm_eval"))) / "tasks"


def find_definition(name: str) -> Definition:
    """Return a benchmark, or raise a ConfigError."""
    if name not in DEFINITIONS:
        raise ConfigError(f"unknown benchmark of a suite: found {name!r}; known are {', '.join(DEFINITIONS)}.")
    return DEFINITIONS[name]


def find_suite(name: str) -> Suite:
    """Return a suite, or raise a ConfigError."""
    if name not in SUITES:
        raise ConfigError(f"--suite must be one of {', '.join(SUITES)}, niah or niah:LENGTH, found {name!r}.")
    return SUITES[name]


def ask(label: str, source: str) -> Asked:
    """Read a label such as `arc_easy:10`."""
    name, _, shots = label.partition(":")
    return Asked(benchmark=name, shots=int(shots), source=source)


def _definition(name: str, entry: dict[str, Any]) -> Definition:
    """Expand `{part}` in the fields of each part."""
    texts = {"task": entry.pop("task", name), "include": entry.pop("include", ""), "file": entry.pop("file", name + "/{split}.jsonl")}
    texts["split"] = entry.pop("part_split", "")
    field, names = entry.pop("rows_field", None), entry.pop("parts", [""])
    values: dict[str, str] = names if isinstance(names, dict) else dict(zip(names, names, strict=True))
    parts: list[dict[str, Any]] = []
    for part, value in values.items():
        fields = {key: text.replace("{part}", part) for key, text in texts.items()}
        parts.append({**fields, "rows": {"field": field, "values": [value]}} if field else fields)
    return Definition.model_validate({"name": name, "parts": parts, **entry})


_CATALOGUE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8"))
DEFINITIONS = {name: _definition(name, dict(entry)) for name, entry in _CATALOGUE["benchmarks"].items()}
SUITES = {
    name: Suite(name=name, about=entry["about"], asked=tuple(ask(label, source) for source, labels in entry["asked"] for label in labels))
    for name, entry in _CATALOGUE["suites"].items()
}
