"""From a benchmark and where its items come from to what lm-eval can load, or the reason why it cannot be measured.

Nothing here imports lm-eval, so that what is measured already is found in a moment.
"""

import hashlib
import importlib.resources
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from phasewise.tasks.evaluation.suites.definition import SHOTS_IN_DEFINITION, Asked, Definition, Part, Rows
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import parse_json

SHOWN_FIELDS = 8


class Hole(NamedTuple):
    """Why a benchmark was not measured."""

    reason: str


class PreparedPart(NamedTuple):
    """One task of lm-eval: its definition without the places of its files, and split → lines of these files."""

    task: str
    definition: dict[str, Any]
    files: dict[str, bytes]


class Prepared(NamedTuple):
    """A benchmark that can be loaded.

    Attributes:
        items_digest: of all its files; None where the items come from the hub, which are known when they are loaded.
        definition_digest: of lm-eval's version, its files and what is set here.
    """

    definition: Definition
    asked: Asked
    parts: tuple[PreparedPart, ...]
    items_digest: str | None
    definition_digest: str


def prepare(definition: Definition, asked: Asked, folder: Path | None, *, allow_code: bool) -> Prepared | Hole:
    """What lm-eval needs to load a benchmark.

    Args:
        folder: has the items as JSON lines. None: they come from the hub.
        allow_code: whether programs that the model writes may be run.
    """
    if reason := _cannot_run(definition, asked, allow_code=allow_code):
        return Hole(reason)
    parts: list[PreparedPart] = []
    for part in definition.parts:
        found = _prepare_local(definition, part, asked.shots, folder) if folder else _prepare_hub(definition, part, asked.shots)
        if isinstance(found, Hole):
            return found
        parts.append(found)
    contents = [[part.task, split, digest_of_bytes(lines)] for part in parts for split, lines in part.files.items()]
    definitions = [[part.definition, text_digest(part.definition.get("include"))] for part in parts]
    return Prepared(
        definition, asked, tuple(parts),
        items_digest=digest_of_json(contents) if folder else None,
        definition_digest=digest_of_json([version("lm_eval"), definition.metric, definition.filter, _without_places(definitions)]),
    )  # fmt: skip


def write_definitions(prepared: Prepared, temporary: Path) -> Path:
    """A folder that lm-eval includes: a YAML file for each part. Items are named by their content, and `datasets` keeps them there too.

    Args:
        temporary: a new and empty folder.
    """
    definitions, items = temporary / "definitions", temporary / "items"
    definitions.mkdir()
    items.mkdir()
    for part in prepared.parts:
        definition = dict(part.definition)
        if part.files:
            places = {split: items / f"{digest_of_bytes(lines)}.jsonl" for split, lines in part.files.items()}
            for split, place in places.items():
                place.write_bytes(part.files[split])
            files = {split: str(place) for split, place in places.items()}
            definition["dataset_kwargs"] = {"data_files": files, "cache_dir": str(temporary / "datasets")}
        (definitions / f"{part.task}.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    return definitions


def _cannot_run(definition: Definition, asked: Asked, *, allow_code: bool) -> str:
    """Why it can be measured nowhere on this machine; empty where it can be."""
    if asked.shots and definition.shots_split is None:
        return f"no split for its {asked.shots} shots: lm-eval would take them from the items themselves"
    if missing := [name for name in definition.modules if importlib.util.find_spec(name) is None]:
        return f"a package is missing: install {', '.join(missing)}"
    if definition.runs_code and not allow_code:
        return "it runs programs that the model writes: allow it with --allow-code"
    return ""


def _prepare_hub(definition: Definition, part: Part, shots: int) -> PreparedPart | Hole:
    if not definition.on_hub:
        return Hole("its items come from a folder alone: give one with --benchmarks")
    include = {"include": str(lm_eval_tasks() / part.include)} if part.include else {}
    return PreparedPart(part.task, {**include, **definition.settings, "task": part.task, "num_fewshot": shots}, {})


def _prepare_local(definition: Definition, part: Part, shots: int, folder: Path) -> PreparedPart | Hole:
    split = part.split or definition.split
    place = part.file.format(split=split)
    items = _rows_of(folder / place, part.rows)
    if isinstance(items, Hole):
        return Hole(f"no items: {items.reason}")
    files = {split: items}
    needs_shots = shots and definition.shots_split not in (None, SHOTS_IN_DEFINITION)
    if needs_shots:
        assert definition.shots_split
        shots_place = part.file.format(split=definition.shots_split)
        found = Hole(f"{shots_place} would be its items") if shots_place == place else _rows_of(folder / shots_place, part.rows)
        found = found if isinstance(found, Hole) or not definition.shots_rows else _chosen(found, definition.shots_rows, shots_place)
        if isinstance(found, Hole):
            return Hole(f"no split for its {shots} shots: {found.reason}")
        if (count := found.count(b"\n")) < shots:
            return Hole(f"no split for its {shots} shots: {shots_place} has {count} rows for {part.task}")
        files[definition.shots_split] = found
    files = {split: _only(lines, definition.fields) for split, lines in files.items()}
    return PreparedPart(part.task, _local_definition(definition, part, files, shots), files)


def _local_definition(definition: Definition, part: Part, files: Mapping[str, bytes], shots: int) -> dict[str, Any]:
    """lm-eval's own, with the items of files. A split that has no file is taken out: lm-eval would look for it."""
    own = definition.local_settings or definition.settings
    base = {"include": str(lm_eval_tasks() / part.include)} if part.include and not definition.local_settings else {}
    absent = {f"{role}_split": None for role, split in (("training", "train"), ("validation", "validation")) if split not in files}
    examples = {} if shots else {"fewshot_split": None}
    data = {"dataset_path": "json", "dataset_name": None}
    return {**base, **own, **absent, **examples, **data, "task": part.task, "num_fewshot": shots}


def _rows_of(path: Path, rows: Rows | None) -> bytes | Hole:
    """The lines of a file, or those that are meant."""
    name = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return Hole(f"no file {name}")
    return _chosen(path.read_bytes(), rows, name)


def _chosen(lines: bytes, rows: Rows | None, name: str) -> bytes | Hole:
    kept = [line for line in lines.split(b"\n") if line.strip()]
    if rows:
        try:
            kept = _by_value(lines, rows.field).get_all(rows.values)
        except (ValueError, KeyError, TypeError) as error:
            return Hole(f"{name} must be JSON lines with the field {rows.field}, found {type(error).__name__}: {error}")
    if not kept:
        return Hole(f"{name} has no rows" + (f" with {rows.field} {rows.values}" if rows else ""))
    return b"\n".join(kept) + b"\n"


def _only(lines: bytes, fields: tuple[str, ...]) -> bytes:
    """The rows with these fields alone; as they are where none is named."""
    if not fields:
        return lines
    rows = [parse_json(line, allows_nan=True) for line in lines.splitlines()]
    return b"".join(json.dumps({field: row[field] for field in fields if field in row}).encode() + b"\n" for row in rows)


class _Sorted(NamedTuple):
    lines: dict[Any, list[bytes]]

    def get_all(self, values: tuple[str | int, ...]) -> list[bytes]:
        return [line for value in values for line in self.lines.get(value, [])]


_SORTED: dict[tuple[str, str], _Sorted] = {}
MAX_SORTED = 2
"""What was sorted last, by content: a file of 57 subjects is read through once, and so is that of their examples."""


def _by_value(lines: bytes, field: str) -> _Sorted:
    key = (hashlib.sha256(lines).hexdigest(), field)
    if key not in _SORTED:
        found: dict[Any, list[bytes]] = {}
        for line in (line for line in lines.split(b"\n") if line.strip()):
            found.setdefault(parse_json(line, allows_nan=True)[field], []).append(line)
        if len(_SORTED) >= MAX_SORTED:
            del _SORTED[next(iter(_SORTED))]
        _SORTED[key] = _Sorted(found)
    return _SORTED[key]


@cache
def lm_eval_tasks() -> Path:
    """The folder of lm-eval's own definitions."""
    return Path(str(importlib.resources.files("lm_eval"))) / "tasks"


@cache
def text_digest(include: str | None) -> str:
    """Digest of a definition of lm-eval: its file, those that it includes, and the code beside them."""
    texts: dict[str, str] = {}
    waiting = [Path(include)] if include else []
    while waiting:
        path = waiting.pop()
        content = path.read_bytes()
        name = str(path.resolve().relative_to(lm_eval_tasks().resolve()))
        texts[name] = digest_of_bytes(content)
        texts.update({f"{name}/{code.name}": digest_of_bytes(code.read_bytes()) for code in sorted(path.parent.glob("*.py"))})
        found = [line for line in content.decode().splitlines() if line.strip().strip("\"'").startswith("include")]
        names = [line.partition(":")[2].strip().strip("\"'") for line in found]
        waiting += [path.parent / name for name in names if name]
    return digest_of_json(texts)


def _without_places(definitions: list[list[Any]]) -> list[list[Any]]:
    """Where lm-eval is installed decides nothing."""
    return [[{name: value for name, value in definition.items() if name != "include"}, text] for definition, text in definitions]
