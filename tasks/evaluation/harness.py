"""Run lm-eval on one benchmark: prepare its definition and items, load it, and put the items to a model.

lm-eval is imported at first use (seconds), so that kept results are found at once.
"""

import contextlib
import importlib.util
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, cast

import yaml

from phasewise.tasks.evaluation.benchmark_definitions import SHOTS_IN_DEFINITION, Asked, Definition, Part, Rows, lm_eval_tasks
from phasewise.tasks.evaluation.own_benchmarks import plain_rows
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import parse_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

SHOTS_SEED = 1234  # lm-eval's default. Its `evaluate` draws different examples in each run unless a seed is set
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
Sample = Mapping[str, Any]  # lm-eval's record of an item: the item as `doc`, each metric under its name, the responses as `filtered_resps`


class NotMeasured(Exception):
    """The reason why a benchmark cannot be measured."""


class PreparedPart(NamedTuple):
    """An lm-eval task: its definition without file paths, and split → JSON lines."""

    task: str
    definition: dict[str, Any]
    files: dict[str, bytes]


class Prepared(NamedTuple):
    """A benchmark before loading. `items_digest` is None for items of the hub. `definition_digest` includes lm-eval's version."""

    definition: Definition
    asked: Asked
    parts: tuple[PreparedPart, ...]
    items_digest: str | None
    definition_digest: str


class Setting(TypedDict):
    """Everything that decides a score, except the model. `prompts_digest` includes examples and choices, `precision` is the dtype."""

    version: str
    shots: int
    filter: str
    items: int
    asked: int
    items_digest: str
    prompts_digest: str
    precision: str


class ItemAnswer(TypedDict):
    """The answer to one item, with log-likelihoods of its choices in nats. `baseline_right` is None if the baseline guesses."""

    id: str
    right: bool
    baseline_right: bool | None
    group: int | None
    gold: int
    log_likelihoods: list[float]
    ungraded: NotRequired[bool]  # the item could not be graded, and is not right


class BenchmarkResult(TypedDict):
    """The score of a benchmark with all answers. `checkpoint_values` has the scores of at least three last checkpoints, oldest first."""

    benchmark: str
    metric: str
    value: float
    stderr: float
    items: int
    baseline: float
    answers: list[ItemAnswer]
    setting: Setting
    checkpoint_values: NotRequired[list[float]]


class Put(NamedTuple):
    """lm-eval's tasks and results. `max_new_tokens` has the benchmark's limit and the applied limit."""

    tasks: dict[str, Any]
    found: Mapping[str, Any]
    max_new_tokens: tuple[int, int] | None


def prepare(definition: Definition, asked: Asked, folder: Path | None, *, allow_code: bool) -> Prepared:
    """Prepare a benchmark for lm-eval, or raise NotMeasured. `folder` has the items as JSON lines, None uses the hub."""
    if asked.shots and definition.shots_split is None:
        raise NotMeasured(f"no split for its {asked.shots} shots: lm-eval would take them from the items themselves")
    if missing := [name for name in definition.modules if importlib.util.find_spec(name) is None]:
        raise NotMeasured(f"a package is missing: install {', '.join(missing)}")
    if definition.metric == "pass" and not allow_code:
        raise NotMeasured("it runs programs that the model writes: allow it with --allow-code")
    if definition.runs_code and not allow_code:
        raise NotMeasured("its definition runs Python code outside lm-eval: allow it with --allow-code, which a gate never does")
    folder = definition.folder or folder
    if folder is None and not definition.on_hub:
        raise NotMeasured("its items come only from a folder: give one with --benchmarks")
    parts: list[PreparedPart] = []
    definitions: list[Any] = []
    for part in definition.parts:
        files = {} if folder is None else _local_files(definition, part, asked.shots, folder)
        settings: dict[str, Any] = dict((folder and definition.local_settings) or definition.settings)
        if folder:  # lm-eval fails for a split without a file
            settings |= {role: None for role, split in definition.roles.items() if split not in files}
            settings |= {} if asked.shots else {"fewshot_split": None}
            settings |= {"dataset_path": "json", "dataset_name": None}
        settings |= {"task": part.task, "num_fewshot": asked.shots}
        include = str(lm_eval_tasks() / part.include) if part.include and not (folder and definition.local_settings) else None
        definitions.append([settings, definition.texts_digest or text_digest(include)])
        parts.append(PreparedPart(part.task, ({"include": include} if include else {}) | settings, files))
    contents = [[part.task, split, digest_of_bytes(lines)] for part in parts for split, lines in part.files.items()]
    return Prepared(
        definition,
        asked,
        tuple(parts),
        items_digest=digest_of_json(contents) if folder else None,
        definition_digest=digest_of_json([version("lm_eval"), definition.metric, definition.filter, definitions]),
    )


def _local_files(definition: Definition, part: Part, shots: int, folder: Path) -> dict[str, bytes]:
    split = part.split or definition.split
    names = part.files_of(split)
    try:
        files = {split: _select([folder / name for name in names], part.rows)}
    except NotMeasured as error:
        raise NotMeasured(f"no items: {error}") from None
    if shots and definition.shots_split and definition.shots_split != SHOTS_IN_DEFINITION:
        shots_names = part.files_of(definition.shots_split)
        try:
            if shots_names == names:
                raise NotMeasured(f"{', '.join(names)} would be its items")
            lines = _select([folder / name for name in shots_names], part.rows, definition.shots_rows)
            if (count := lines.count(b"\n")) < shots:
                raise NotMeasured(f"{', '.join(shots_names)} has {count} rows for {part.task}")
        except NotMeasured as error:
            raise NotMeasured(f"no split for its {shots} shots: {error}") from None
        files[definition.shots_split] = lines
    if definition.is_plain:
        return {split: plain_rows(lines, f"{part.task} {split}") for split, lines in files.items()}
    if definition.fields:
        for split, lines in files.items():
            rows = [parse_json(line, allows_nan=True) for line in lines.splitlines()]
            short = ({field: row[field] for field in definition.fields if field in row} for row in rows)
            files[split] = b"".join(json.dumps(row).encode() + b"\n" for row in short)
    return files


def _select(paths: Sequence[Path], *choices: Rows | None) -> bytes:
    """Read the lines of files, filtered by each of the choices in turn."""
    name = ", ".join(f"{path.parent.name}/{path.name}" for path in paths)
    if not paths or not all(path.is_file() for path in paths):
        raise NotMeasured(f"no file {name}" if paths else "the definition names no file")
    lines = [line for path in paths for line in path.read_bytes().split(b"\n") if line.strip()]
    for rows in (None, *choices):
        if rows:
            try:
                by_value = _by_value(b"\n".join(lines), rows.field)
            except (ValueError, KeyError, TypeError) as error:
                raise NotMeasured(f"{name} must be JSON lines with the field {rows.field}, found {type(error).__name__}: {error}") from None
            lines = [line for value in rows.values for line in by_value.get(value, [])]
        if not lines:
            raise NotMeasured(f"{name} has no rows" + (f" with {rows.field} {rows.values}" if rows else ""))
    return b"\n".join(lines) + b"\n"


@lru_cache(maxsize=2)  # the items and the examples of 57 subjects are in two files
def _by_value(lines: bytes, field: str) -> dict[Any, list[bytes]]:
    found: dict[Any, list[bytes]] = {}
    for line in lines.split(b"\n"):
        if line:
            found.setdefault(parse_json(line, allows_nan=True)[field], []).append(line)
    return found


@cache
def text_digest(include: str | None) -> str:
    """Digest of an lm-eval definition: its file, the included files, and the code in the same folders."""
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


@contextlib.contextmanager
def offline_imports() -> Iterator[None]:
    """Import the hub's libraries in offline mode, which child processes must not inherit."""
    added = {name: value for name, value in OFFLINE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def quiet_harness(*, offline: bool) -> Iterator[Path]:
    """Silence lm-eval's output, progress bars and warnings. Yield a temporary folder."""
    with offline_imports() if offline else contextlib.nullcontext():
        import datasets
        import lm_eval.api.task
        import lm_eval.utils
        from jinja2.sandbox import SandboxedEnvironment
        from tqdm import tqdm
    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = partial(tqdm, disable=True)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if not isinstance(lm_eval.utils.env, SandboxedEnvironment):  # templates of a definition are data
        sandboxed = SandboxedEnvironment(undefined=lm_eval.utils.env.undefined, keep_trailing_newline=True)
        sandboxed.filters |= lm_eval.utils.env.filters
        lm_eval.utils.env = sandboxed
    with tempfile.TemporaryDirectory(prefix="phasewise-suite-") as temporary, contextlib.redirect_stdout(sys.stderr):
        yield Path(temporary)


def write_definitions(prepared: Prepared, temporary: Path) -> Path:
    """Write all parts for lm-eval. `datasets` caches by path and time: item files are named by content, and the cache is temporary."""
    definitions, items = temporary / "definitions", temporary / "items"
    definitions.mkdir()
    items.mkdir()
    for part in prepared.parts:
        definition = dict(part.definition)
        if part.files:
            files = {split: str(items / f"{digest_of_bytes(lines)}.jsonl") for split, lines in part.files.items()}
            for split, lines in part.files.items():
                Path(files[split]).write_bytes(lines)
            definition["dataset_kwargs"] = {"data_files": files, "cache_dir": str(temporary / "datasets")}
        (definitions / f"{part.task}.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    return definitions


def load_tasks(prepared: Prepared, temporary: Path) -> dict[str, Any]:
    """Load the lm-eval tasks of a benchmark, or raise NotMeasured. They read `temporary`, an empty folder, later."""
    from lm_eval.tasks import TaskManager

    names = [part.task for part in prepared.parts]
    try:
        manager = TaskManager(include_path=[str(write_definitions(prepared, temporary))], include_defaults=False)
        tasks: dict[str, Any] = dict(manager.load(names)["tasks"])
    except Exception as error:  # lm-eval's definitions contain code, and rows may have any form
        raise NotMeasured(f"lm-eval could not load it: {_first_cause(error)}") from None
    if sorted(tasks) != sorted(names):
        raise EvaluationError(f"lm-eval must load the tasks {', '.join(names)}, found {', '.join(tasks)}: two have the same name, perhaps.")
    return tasks


def hub_items_digest(prepared: Prepared) -> str:
    """Digest of all items and examples of a benchmark on the hub."""
    with quiet_harness(offline=False) as temporary:
        contents: list[list[Any]] = []
        for name, task in sorted(load_tasks(prepared, temporary).items()):
            rows = [[repr(sorted(dict(row).items())) for row in found] for found in (task.eval_docs, task.fewshot_docs())]
            contents.append([name, *rows])
        return digest_of_json(contents)


def put(model: "JaxLanguageModel", tasks: dict[str, Any], prepared: Prepared, *, limit: int | None, bootstrap_iters: int = 0) -> Put:
    """Put the first `limit` items of each task to a model. `bootstrap_iters` above 1 would fork this process, which holds JAX."""
    from lm_eval.evaluator import evaluate

    from phasewise.tasks.evaluation.language_model import MAX_NEW_TOKENS, read_generation

    allowed: list[tuple[int, int]] = []
    for task in tasks.values():
        task.set_fewshot_seed(seed=SHOTS_SEED)
        if task.OUTPUT_TYPE == "generate_until":
            settings, most = dict(task.get_config("generation_kwargs") or {}), model.max_length // 2
            wanted = read_generation(settings).max_new_tokens
            if wanted > most:
                kept = {name: value for name, value in settings.items() if name not in MAX_NEW_TOKENS}
                task.set_config("generation_kwargs", {**kept, "max_gen_toks": most})
            allowed.append((wanted, min(wanted, most)))
    try:
        answer = evaluate(lm=model, task_dict=dict(tasks), limit=limit, bootstrap_iters=bootstrap_iters, log_samples=True)
    except EvaluationError:
        raise
    except (DataError, ConfigError) as error:
        raise NotMeasured(str(error)) from None
    except (KeyError, ValueError, TypeError, IndexError, AssertionError) as error:
        raise NotMeasured(f"lm-eval could not put an item of it: {_first_cause(error)}") from None
    assert answer is not None
    found = cast(Mapping[str, Any], answer)
    if wrong := {name: found["n-shot"][name] for name in tasks if found["n-shot"][name] != prepared.asked.shots}:
        raise EvaluationError(
            f"{prepared.asked.label} must be put with {prepared.asked.shots} shots, found {wrong}: correct its definition."
        )
    return Put(tasks, found, max(allowed) if allowed else None)


def samples_of(found: Mapping[str, Any], task: str, filter_name: str) -> list[Sample]:
    """Select the record of each item under one filter, in order."""
    every: Sequence[Sample] = found["samples"][task]
    chosen = sorted((sample for sample in every if sample["filter"] == filter_name), key=lambda sample: sample["doc_id"])
    wanted = found["n-samples"][task]["effective"]
    if len(chosen) != wanted or len({sample["doc_id"] for sample in chosen}) != wanted:
        filters = sorted({sample["filter"] for sample in every})
        raise EvaluationError(
            f"{task} must have one record of each of its {wanted} items under the filter {filter_name}, found {len(chosen)}. Its filters "
            f"are {', '.join(filters)}. Correct the definition in tasks/evaluation/benchmarks.yaml."
        )
    return chosen


def read_setting(found: Mapping[str, Any], tasks: Iterable[str], *, filter_name: str, precision: str) -> Setting:
    """Read the common setting of a benchmark's tasks from lm-eval's results."""
    settings: list[Setting] = []
    for name in tasks:
        samples: Sequence[Sample] = [sample for sample in found["samples"][name] if sample["filter"] == filter_name]
        counts = found["n-samples"][name]
        settings.append(
            Setting(
                version=str(found["versions"][name]), shots=int(found["n-shot"][name]), filter=filter_name,
                items=int(counts["original"]), asked=int(counts["effective"]),
                items_digest=digest_of_json([sample["doc_hash"] for sample in samples]),
                prompts_digest=digest_of_json([sample["prompt_hash"] for sample in samples]), precision=precision,
            )
        )  # fmt: skip
    if len(settings) == 1:
        return settings[0]
    return Setting(
        version=", ".join(sorted({one["version"] for one in settings})), shots=settings[0]["shots"], filter=filter_name,
        items=sum(one["items"] for one in settings), asked=sum(one["asked"] for one in settings),
        items_digest=digest_of_json([one["items_digest"] for one in settings]),
        prompts_digest=digest_of_json([one["prompts_digest"] for one in settings]), precision=precision,
    )  # fmt: skip


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
