"""Benchmarks outside `benchmarks.yaml`: YAML or JSON lines of a user (`--include`), and every task, group or tag of lm-eval by name.

The first metric that is a mean and the first filter of a definition count. Reading a definition runs no code: `!function` stays a name.
"""

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from phasewise.tasks.evaluation.benchmark_definitions import (
    DEFINITIONS,
    SHOTS_IN_DEFINITION,
    Asked,
    Definition,
    Part,
    Suite,
    find_definition,
    lm_eval_tasks,
)
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.base.wording import near

TASK, GROUP, TAG = "task", "group", "tag"
_NAMED = re.compile(
    rb"^[\"']?(task|group|tag)[\"']?:[ \t]*(?:[\"']?([^\s\"'#\[]+)|\[([^\]\n]*)\]|((?:\n[ \t]*-[ \t]*[^\n:]+)+))", re.MULTILINE
)
_GROUP = re.compile(rb"^[\"']?group[\"']?:", re.MULTILINE)
_LISTED = re.compile(rb"[^\s,\"'\-][^\s,\"']*")
ROLES = ("training_split", "validation_split", "test_split", "fewshot_split")
METRICS = {"multiple_choice": "acc", "loglikelihood": "acc", "generate_until": "exact_match"}
"""Output type → metric of a definition without a list."""
LOCAL_FORMATS = ("json",)
NUMBER = r"-?\$?[0-9][0-9,]*(?:\.[0-9]+)?"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FINAL_ANSWER = "####"
_QUESTION: dict[str, Any] = {
    "test_split": "test",
    "training_split": "train",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "metadata": {"version": 1.0},
}


class _Function(str):
    """The name of a function in a YAML file."""

    __slots__ = ()


class _Loader(yaml.SafeLoader):
    """lm-eval's YAML with the names of functions."""


_Loader.add_constructor("!function", lambda loader, node: _Function(loader.construct_scalar(cast(yaml.ScalarNode, node))))


class _Read(NamedTuple):
    """A YAML file with its included files: settings, digests of the texts, and whether a file outside lm-eval names code."""

    settings: dict[str, Any]
    texts: dict[str, str]
    runs_code: bool


def find_benchmark(name: str, include: Path | None = None) -> Definition:
    """Return a benchmark of `benchmarks.yaml`, of the folder `include`, or of lm-eval, or raise a ConfigError."""
    if include is not None and not include.is_dir():
        raise ConfigError(f"--include (evaluation.include): expected a folder with YAML or JSON lines, found none at {include}.")
    own = _index(include) if include else {}
    lines = [path for path in (include / f"{name}.jsonl", include / name / "test.jsonl") if path.is_file()] if include else []
    if name in DEFINITIONS:
        if include and (name in own or lines):
            raise ConfigError(f"{include} names its benchmark {name}, which is the name of a known benchmark: rename yours.")
        return find_definition(name)
    if include and name in own:
        return _of_yaml(name, own, include)
    if include and lines:
        if len(lines) > 1:
            raise ConfigError(f"{name}: expected one file of items, found {lines[0]} and {lines[1]}. Remove one.")
        return _of_lines(name, lines[0], include)
    known = lm_eval_names()
    if name in known:
        return _of_yaml(name, known, None)
    files = [path.stem if path.parent == include else path.parent.name for path in include.rglob("*.jsonl")] if include else []
    where = f"of Phasewise, lm-eval or {include}" if include else "of Phasewise or lm-eval"
    raise ConfigError(
        f"{name!r}: expected a benchmark {where}, found none, {near(name, list(dict.fromkeys([*own, *files, *DEFINITIONS, *known])))}"
    )


def suite_of_tasks(tasks: str, include: Path | None) -> Suite:
    """Read `NAME:SHOTS` or `NAME`, separated by commas. A `NAME` has the shots of its definition, else none."""
    asked: list[Asked] = []
    for label in dict.fromkeys(filter(None, map(str.strip, tasks.split(",")))):
        name, colon, shots = label.partition(":")
        definition = find_benchmark(name, include)
        if colon and not (shots.isascii() and shots.isdigit()):
            raise ConfigError(f"--tasks {label}: expected the number of examples in the prompt, as in {name}:0, found {shots!r}.")
        asked.append(Asked(benchmark=name, shots=int(shots) if colon else definition.shots, source="--tasks"))
    if not asked:
        raise ConfigError("--tasks: expected names of benchmarks, found none. Take NAME or NAME:SHOTS, separated by commas.")
    name = f"tasks-{digest_of_json([one.label for one in asked])[:8]}"
    return Suite(name=name, about="benchmarks by name", asked=tuple(dict.fromkeys(asked)))


@cache
def lm_eval_names() -> Mapping[str, tuple[str, tuple[Path, ...]]]:
    """Name → kind and files of lm-eval's tasks, groups and tags."""
    return _index(lm_eval_tasks())


def _index(folder: Path) -> dict[str, tuple[str, tuple[Path, ...]]]:
    """Find names by the lines of all YAML files. Parsing lm-eval's 14,000 files takes ten seconds, reading them one."""
    found: dict[str, tuple[str, tuple[Path, ...]]] = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for file in sorted(names):
            if not file.endswith((".yaml", ".yml")):
                continue
            path = Path(place, file)
            content = path.read_bytes()
            is_group = _GROUP.search(content) is not None
            for kind, one, row, column in _NAMED.findall(content):
                if is_group and kind == b"task":
                    continue  # its members
                for name in [one] if one else _LISTED.findall(row or column):
                    text, (before, paths) = name.decode(errors="replace"), found.get(name.decode(errors="replace"), ("", ()))
                    if not paths or before == TAG:  # as lm-eval, the first definition of a name counts
                        found[text] = (kind.decode(), (*paths, path) if kind == b"tag" else (path,))
                    elif folder != lm_eval_tasks():
                        raise ConfigError(f"{text}: expected one definition in {folder}, found {paths[0].name} and {file}. Rename one.")
    return found


def _read(path: Path, seen: tuple[Path, ...] = ()) -> _Read:
    """Read a YAML file over its included files."""
    if path in seen:
        raise ConfigError(f"{path}: expected no circle of includes, found one. Remove an include.")
    try:
        content = path.read_bytes()
        settings: Any = yaml.load(content, Loader=_Loader)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected a definition of lm-eval in YAML, found {' '.join(str(error).split())[:200]}.") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: expected a mapping, found {type(settings).__name__}.")
    is_lm_evals = lm_eval_tasks() in path.parents
    texts = {str(path.relative_to(lm_eval_tasks())) if is_lm_evals else path.name: digest_of_bytes(content)}
    runs_code = not is_lm_evals and (b"!function" in content or "class" in settings)
    if b"!function" in content:
        texts |= {f"{path.name}/{code.name}": digest_of_bytes(code.read_bytes()) for code in sorted(path.parent.glob("*.py"))}
    merged: dict[str, Any] = {}
    includes: Any = cast("dict[str, Any]", settings).pop("include", [])
    for name in includes if isinstance(includes, list) else [includes]:
        base = _read((path.parent / str(name)).resolve(), (*seen, path))
        merged |= base.settings
        texts |= base.texts
        runs_code = runs_code or base.runs_code
    return _Read(merged | settings, texts, runs_code)


def _leaves(name: str, names: Mapping[str, tuple[str, tuple[Path, ...]]], seen: tuple[str, ...] = ()) -> list[tuple[str, Path]]:
    """List the tasks of a task, a group or a tag with their files."""
    entry = names.get(name) or lm_eval_names().get(name)
    if entry is None or name in seen:
        raise ConfigError(f"{seen[0] if seen else name}: expected tasks that exist, found {name!r}. Correct the group.")
    kind, paths = entry
    if kind == TASK:
        return [(name, paths[0])]
    members: list[Any] = []
    for path in paths:
        listed = _read(path.resolve()).settings.get(TASK)
        members += [listed] if kind == TAG else listed if isinstance(listed, list) else [listed]
    found: list[tuple[str, Path]] = []
    for member in members:
        if not isinstance(member, str):
            raise ConfigError(f"{name}: expected a group of named tasks, found a changed task. Name the tasks one by one.")
        found += _leaves(member, names, (*seen, name))
    return list(dict.fromkeys(found))


def _of_yaml(name: str, names: Mapping[str, tuple[str, tuple[Path, ...]]], include: Path | None) -> Definition:
    """Build the definition of lm-eval tasks. Items of a local `data_files` are beside the YAML file."""
    parts: list[Part] = []
    fields: list[dict[str, Any]] = []
    texts: dict[str, dict[str, str]] = {}
    runs_code = False
    for task, path in _leaves(name, names):
        read = _read(path.resolve())
        texts[task], runs_code = read.texts, runs_code or read.runs_code
        settings = read.settings
        if "class" in settings:
            raise ConfigError(f"{task}: expected a definition in YAML, found the Python class {settings['class']}. Name another task.")
        fields.append(_fields(task, settings))
        files = _data_files(task, settings, path.parent) if include else {}
        split = fields[-1].pop("split")
        parts.append(Part(task=task, include=str(path.resolve()), file=f"{task}/{{split}}.jsonl", split=split, files=files))
    first = fields[0]
    if wrong := next((part.task for part, one in zip(parts, fields, strict=True) if one != first), None):
        raise ConfigError(f"{name}: expected tasks with equal metric, filter and splits, found others in {wrong}. Name single tasks.")
    return Definition(
        name=name,
        parts=tuple(parts),
        folder=include if parts[0].files else None,
        texts_digest=digest_of_json(texts),
        runs_code=runs_code,
        **first,
    )


def _fields(task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Read metric, filter and splits of an lm-eval definition."""
    output = settings.get("output_type", "generate_until")
    if output not in METRICS:
        raise ConfigError(f"{task}: expected output_type {', '.join(METRICS)}, found {output}.")
    metrics = settings.get("metric_list") or [{"metric": METRICS[output]}]
    metric = next((one["metric"] for one in metrics if one.get("aggregation", "mean") == "mean"), None)
    if metric is None:
        raise ConfigError(f"{task}: expected a metric with the aggregation mean, found {', '.join(str(one['metric']) for one in metrics)}.")
    filters = settings.get("filter_list") or [{"name": "none"}]
    roles = {role: str(settings[role]) for role in ROLES if settings.get(role)}
    split = roles.get("test_split") or roles.get("validation_split")
    if split is None:
        raise ConfigError(f"{task}: expected a test_split or a validation_split, found neither.")
    shots_split = roles.get("fewshot_split") or roles.get("training_split") or roles.get("validation_split")
    if (settings.get("fewshot_config") or {}).get("samples"):
        shots_split = SHOTS_IN_DEFINITION
    return {
        "metric": str(metric).rpartition(".")[2],
        "filter": str(filters[0]["name"]),
        "split": split,
        "shots_split": None if shots_split == split else shots_split,
        "shots": int(settings.get("num_fewshot") or 0),
        "roles": roles,
    }


def _data_files(task: str, settings: Mapping[str, Any], beside: Path) -> dict[str, tuple[str, ...]]:
    """Return split → local files of a YAML. Empty for data of the Hub."""
    found: Any = (settings.get("dataset_kwargs") or {}).get("data_files")
    listed: dict[str, Any] = found if isinstance(found, dict) else {"train": found} if found else {}
    files = {split: tuple(map(str, one if isinstance(one, list) else [one])) for split, one in listed.items()}
    if not files or any("://" in file for of_split in files.values() for file in of_split):
        return {}
    if others := sorted(set(settings["dataset_kwargs"]) - {"data_files"}):
        raise ConfigError(f"{task}: expected only data_files in dataset_kwargs, found {', '.join(others)}. Take them out.")
    if (kind := settings.get("dataset_path")) not in LOCAL_FORMATS:
        raise ConfigError(f"{task}: expected dataset_path json for local data_files, found {kind}. Write the items as JSON lines.")
    found_files = {split: tuple(str((beside / file).resolve()) for file in of_split) for split, of_split in files.items()}
    if missing := [file for of_split in found_files.values() for file in of_split if not Path(file).is_file()]:
        raise ConfigError(f"{task}: expected its data_files beside the YAML, found no file {missing[0]}. Add it.")
    return found_files


def _of_lines(name: str, path: Path, include: Path) -> Definition:
    """Build the definition of questions and answers: choices by likelihood, numbers by the last number, other answers by the first line."""
    files = {"test": (str(path.resolve()),)}
    train = include / name / "train.jsonl"
    if train.is_file() and train != path:
        files["train"] = (str(train.resolve()),)
    rows = [parse_json(line) for line in plain_rows(path.read_bytes(), str(path)).splitlines()]
    settings: dict[str, Any] = {**_QUESTION, "output_type": "generate_until", "target_delimiter": " "}
    metric, filter_name = "exact_match", "last-number"
    if "choices" in rows[0]:
        metric, filter_name = "acc", "none"
        settings |= {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "metric_list": [_mean("acc"), _mean("acc_norm")]}
    else:
        pattern, until, tokens = rf"({NUMBER})", ["Question:"], 256
        ignored = {"regexes_to_ignore": [",", r"\$", rf"(?s).*{FINAL_ANSWER}\s*"]}
        if not all(re.fullmatch(NUMBER, str(row["answer"]).rpartition(FINAL_ANSWER)[2].strip()) for row in rows):
            pattern, until, tokens, filter_name = r"(\S[^\n]*)", ["\n\n", "Question:"], 64, "first-line"
            ignored = {"ignore_case": True, "ignore_punctuation": True, "regexes_to_ignore": [rf"(?s).*{FINAL_ANSWER}\s*"]}
        extract = {"function": "regex", "regex_pattern": pattern, "group_select": -1 if filter_name == "last-number" else 0}
        settings |= {
            "generation_kwargs": {"until": until, "do_sample": False, "max_gen_toks": tokens},
            "filter_list": [{"name": filter_name, "filter": [extract, {"function": "take_first"}]}],
            "metric_list": [_mean("exact_match") | ignored],
        }
    return Definition(
        name=name,
        parts=(Part(task=name, file=f"{name}/{{split}}.jsonl", files=files),),
        metric=metric,
        filter=filter_name,
        shots_split="train" if "train" in files else None,
        settings=settings,
        folder=include,
        is_plain=True,
    )


def _mean(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


def plain_rows(content: bytes, where: str) -> bytes:
    """Check rows with question, answer and optional choices, and write them with text answers, or with the number of the right choice."""
    rows: list[dict[str, Any]] = []
    for line_number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        at = f"{where}, line {line_number}"
        try:
            row: Any = parse_json(line)
        except ValueError as error:
            raise DataError(f"{at}: expected a JSON object, found {error}.") from None
        fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
        question, answer, choices = (fields.get(name) for name in ("question", "answer", "choices"))
        if not isinstance(question, str) or not question.strip() or isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise DataError(f"{at}: expected a question with text and an answer, found the fields {', '.join(fields) or 'of no object'}.")
        if choices is None:
            if not str(answer).rpartition(FINAL_ANSWER)[2].strip():
                raise DataError(f"{at}: expected an answer, found {answer!r}.")
            rows.append({"question": question, "answer": str(answer)})
        else:
            texts = cast("list[Any]", choices) if isinstance(choices, list) else []
            if len(texts) < 2 or not all(isinstance(text, str) and text.strip() for text in texts):
                raise DataError(f"{at}: expected a list of at least two choices with text, found {choices!r}.")
            number = texts.index(answer) if answer in texts else answer
            if isinstance(number, str):
                number = LETTERS.find(number.strip().upper()) if len(number.strip()) == 1 else -1
            if not isinstance(number, int) or not 0 <= number < len(texts):
                raise DataError(f"{at}: expected the answer as one of the choices, its number from 0 or its letter, found {answer!r}.")
            rows.append({"question": question, "choices": texts, "answer": number})
        if ("choices" in rows[-1]) != ("choices" in rows[0]):
            raise DataError(f"{at}: expected choices in all rows or in none, found both.")
    if not rows:
        raise DataError(f"{where}: expected rows with question and answer, found none.")
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def include_of(url: str | None) -> Path | None:
    """Return the folder of own benchmarks."""
    return Path(url).expanduser().resolve() if url else None
