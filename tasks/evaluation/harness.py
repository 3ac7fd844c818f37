"""lm-eval on one benchmark: its definition and items prepared, loaded, and put to a model.

lm-eval is imported when it is first used (seconds), so results that are kept already are found in a moment.
"""

import contextlib
import importlib.resources
import importlib.util
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, cast

import yaml

from phasewise.tasks.evaluation.benchmark_definitions import SHOTS_IN_DEFINITION, Asked, Definition, Part, Rows
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import parse_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

SHOTS_SEED = 1234
"""lm-eval's own default. Its `evaluate` draws other examples each time unless a seed is set."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
Sample = Mapping[str, Any]
"""lm-eval's record of one item: the item as `doc`, the metric by its name, the responses as `filtered_resps`."""


class NotMeasured(Exception):
    """A benchmark cannot be measured; the message is the reason."""


class PreparedPart(NamedTuple):
    """One task of lm-eval: its definition without the paths of its files, and split → lines of these files."""

    task: str
    definition: dict[str, Any]
    files: dict[str, bytes]


class Prepared(NamedTuple):
    """A benchmark that can be loaded.

    Attributes:
        items_digest: of all its files; None if the items come from the hub: their digest is known after loading.
        definition_digest: of lm-eval's version, its files and our settings.
    """

    definition: Definition
    asked: Asked
    parts: tuple[PreparedPart, ...]
    items_digest: str | None
    definition_digest: str


class Setting(TypedDict):
    """Everything that decides a score, except the model: two scores are compared only if their settings are equal.

    Attributes:
        version: of the benchmark's definition, as lm-eval gives it.
        asked: number of items that were asked, of `items`. If these are fewer, the score is that of the first ones.
        prompts_digest: of the prompts, in the order of the items: examples, instructions and choices are in it.
        precision: dtype of the model's computation.
    """

    version: str
    shots: int
    filter: str
    items: int
    asked: int
    items_digest: str
    prompts_digest: str
    precision: str


class ItemAnswer(TypedDict):
    """One item.

    Attributes:
        baseline_right: whether the baseline's one answer is right here; None if the baseline guesses.
        group: number of the items whose openings and answers are scored crosswise; None if an item has choices of its own.
        gold: position of the right choice.
        log_likelihoods: of each choice after the opening, in nats; empty without choices, and then `gold` means nothing.
    """

    id: str
    right: bool
    baseline_right: bool | None
    group: int | None
    gold: int
    log_likelihoods: list[float]


class BenchmarkResult(TypedDict):
    """A benchmark's score with its standard error, the score of the best constant answer, and the answer to each item.

    Attributes:
        checkpoint_values: the score of the last checkpoints of the phase, oldest first, if at least three are kept.
    """

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
    """lm-eval's results, with the record of each item, by task; and the new tokens that the benchmark asks for and that were allowed."""

    tasks: dict[str, Any]
    found: Mapping[str, Any]
    max_new_tokens: tuple[int, int] | None


def prepare(definition: Definition, asked: Asked, folder: Path | None, *, allow_code: bool) -> Prepared:
    """Prepare a benchmark for lm-eval, or raise NotMeasured.

    Args:
        folder: has the items as JSON lines. None: they come from the hub.
        allow_code: whether programs that the model writes may be run.
    """
    if asked.shots and definition.shots_split is None:
        raise NotMeasured(f"no split for its {asked.shots} shots: lm-eval would take them from the items themselves")
    if missing := [name for name in definition.modules if importlib.util.find_spec(name) is None]:
        raise NotMeasured(f"a package is missing: install {', '.join(missing)}")
    if definition.metric == "pass" and not allow_code:
        raise NotMeasured("it runs programs that the model writes: allow it with --allow-code")
    if folder is None and not definition.on_hub:
        raise NotMeasured("its items come from a folder alone: give one with --benchmarks")
    parts: list[PreparedPart] = []
    for part in definition.parts:
        files = {} if folder is None else _local_files(definition, part, asked.shots, folder)
        local = definition.local_settings if folder else {}
        include = {"include": str(lm_eval_tasks() / part.include)} if part.include and not local else {}
        settings = {**include, **(local or definition.settings)}
        if folder:  # lm-eval would look for a split without a file
            absent = [role for role, split in (("training", "train"), ("validation", "validation")) if split not in files]
            settings |= {f"{role}_split": None for role in absent} | ({} if asked.shots else {"fewshot_split": None})
            settings |= {"dataset_path": "json", "dataset_name": None}
        parts.append(PreparedPart(part.task, {**settings, "task": part.task, "num_fewshot": asked.shots}, files))
    contents = [[part.task, split, digest_of_bytes(lines)] for part in parts for split, lines in part.files.items()]
    definitions = [
        [{name: value for name, value in part.definition.items() if name != "include"}, text_digest(part.definition.get("include"))]
        for part in parts
    ]
    return Prepared(
        definition,
        asked,
        tuple(parts),
        items_digest=digest_of_json(contents) if folder else None,
        definition_digest=digest_of_json([version("lm_eval"), definition.metric, definition.filter, definitions]),
    )


def _local_files(definition: Definition, part: Part, shots: int, folder: Path) -> dict[str, bytes]:
    split = part.split or definition.split
    name = part.file.format(split=split)
    try:
        files = {split: _select(folder / name, part.rows)}
    except NotMeasured as error:
        raise NotMeasured(f"no items: {error}") from None
    if shots and definition.shots_split and definition.shots_split != SHOTS_IN_DEFINITION:
        shots_name = part.file.format(split=definition.shots_split)
        try:
            if shots_name == name:
                raise NotMeasured(f"{shots_name} would be its items")
            lines = _select(folder / shots_name, part.rows, definition.shots_rows)
            if (count := lines.count(b"\n")) < shots:
                raise NotMeasured(f"{shots_name} has {count} rows for {part.task}")
        except NotMeasured as error:
            raise NotMeasured(f"no split for its {shots} shots: {error}") from None
        files[definition.shots_split] = lines
    if not definition.fields:
        return files
    kept: dict[str, bytes] = {}
    for split, lines in files.items():
        rows = [parse_json(line, allows_nan=True) for line in lines.splitlines()]
        short = ({field: row[field] for field in definition.fields if field in row} for row in rows)
        kept[split] = b"".join(json.dumps(row).encode() + b"\n" for row in short)
    return kept


def _select(path: Path, *choices: Rows | None) -> bytes:
    """Read the lines of a file, of each choice only the chosen rows."""
    name = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        raise NotMeasured(f"no file {name}")
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
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


@lru_cache(maxsize=2)  # a file of 57 subjects is parsed once, and so is the file of their examples
def _by_value(lines: bytes, field: str) -> dict[Any, list[bytes]]:
    found: dict[Any, list[bytes]] = {}
    for line in lines.split(b"\n"):
        if line:
            found.setdefault(parse_json(line, allows_nan=True)[field], []).append(line)
    return found


@cache
def lm_eval_tasks() -> Path:
    """The folder of lm-eval's own definitions."""
    return Path(str(importlib.resources.files("lm_eval"))) / "tasks"


@cache
def text_digest(include: str | None) -> str:
    """Digest of a definition of lm-eval: its file, the files that it includes, and the code next to them."""
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
    """Import the hub's libraries so that they never use the network. Programs that this process starts later may use it."""
    added = {name: value for name, value in OFFLINE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def quiet_harness(*, offline: bool) -> Iterator[Path]:
    """Keep lm-eval from printing to standard output, drawing bars and warning of defaults. The value is a temporary folder."""
    with offline_imports() if offline else contextlib.nullcontext():
        import datasets
        import lm_eval.api.task
        from tqdm import tqdm
    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = partial(tqdm, disable=True)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="phasewise-suite-") as temporary, contextlib.redirect_stdout(sys.stderr):
        yield Path(temporary)


def write_definitions(prepared: Prepared, temporary: Path) -> Path:
    """Write a YAML file for each part into a folder that lm-eval includes; files of items are named by their content.

    `datasets` caches by path and time of change, so its cache is in the temporary folder, too.
    """
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
    """Load lm-eval's tasks of a benchmark by name, or raise NotMeasured.

    Args:
        temporary: an empty folder, which is needed as long as the tasks are.
    """
    from lm_eval.tasks import TaskManager

    names = [part.task for part in prepared.parts]
    try:
        manager = TaskManager(include_path=[str(write_definitions(prepared, temporary))], include_defaults=False)
        tasks: dict[str, Any] = dict(manager.load(names)["tasks"])
    except Exception as error:  # a definition is others' code, and a row may have any form
        raise NotMeasured(f"lm-eval could not load it: {_first_cause(error)}") from None
    if sorted(tasks) != sorted(names):
        raise EvaluationError(f"lm-eval must load the tasks {', '.join(names)}, found {', '.join(tasks)}: two of one name, perhaps.")
    return tasks


def hub_items_digest(prepared: Prepared) -> str:
    """Digest of the items of all parts and of their examples, which are loaded from the hub."""

    def rows(found: Any) -> list[str]:
        return [repr(sorted(dict(row).items())) for row in found]

    with quiet_harness(offline=False) as temporary:
        tasks = load_tasks(prepared, temporary)
        return digest_of_json([[name, rows(task.eval_docs), rows(task.fewshot_docs())] for name, task in sorted(tasks.items())])


def put(model: "JaxLanguageModel", tasks: dict[str, Any], prepared: Prepared, *, limit: int | None, bootstrap_iters: int = 0) -> Put:
    """Put the items of loaded tasks to a model.

    Args:
        limit: only the first so many of each task.
        bootstrap_iters: with 1, lm-eval gives the error of a mean, in closed form. With more it forks this process, which holds JAX.

    Raises:
        NotMeasured: the benchmark cannot be put to this model.
        EvaluationError: an answer is not finite, or lm-eval did not use the number of shots.
    """
    from lm_eval.evaluator import evaluate

    allowed = [new_tokens for task in tasks.values() if (new_tokens := _limit_new_tokens(task, model.max_length // 2))]
    for task in tasks.values():
        task.set_fewshot_seed(seed=SHOTS_SEED)
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


def _limit_new_tokens(task: Any, most: int) -> tuple[int, int] | None:
    """Allow at most half of what the model sees; None if the task writes nothing."""
    from phasewise.tasks.evaluation.language_model import MAX_NEW_TOKENS, read_generation

    if task.OUTPUT_TYPE != "generate_until":
        return None
    settings = dict(task.get_config("generation_kwargs") or {})
    wanted = read_generation(settings).max_new_tokens
    if wanted > most:
        kept = {name: value for name, value in settings.items() if name not in MAX_NEW_TOKENS}
        task.set_config("generation_kwargs", {**kept, "max_gen_toks": most})
    return wanted, min(wanted, most)


def samples_of(found: Mapping[str, Any], task: str, filter_name: str) -> list[Sample]:
    """Return lm-eval's record of each item once, in order: it has one for each filter."""
    every: Sequence[Sample] = found["samples"][task]
    chosen = sorted((sample for sample in every if sample["filter"] == filter_name), key=lambda sample: sample["doc_id"])
    wanted = found["n-samples"][task]["effective"]
    if len(chosen) != wanted or len({sample["doc_id"] for sample in chosen}) != wanted:
        filters = sorted({sample["filter"] for sample in every})
        raise EvaluationError(
            f"{task} must have one record of each of its {wanted} items under the filter {filter_name}, found {len(chosen)}; its filters "
            f"are {', '.join(filters)}. Correct the definition in tasks/evaluation/benchmarks.yaml."
        )
    return chosen


def read_setting(found: Mapping[str, Any], name: str, *, filter_name: str, precision: str) -> Setting:
    """Read the setting of one task from the result of lm-eval's `evaluate`."""
    samples: Sequence[Sample] = [sample for sample in found["samples"][name] if sample["filter"] == filter_name]
    asked = found["n-samples"][name]
    return Setting(
        version=str(found["versions"][name]),
        shots=int(found["n-shot"][name]),
        filter=filter_name,
        items=int(asked["original"]),
        asked=int(asked["effective"]),
        items_digest=digest_of_json([sample["doc_hash"] for sample in samples]),
        prompts_digest=digest_of_json([sample["prompt_hash"] for sample in samples]),
        precision=precision,
    )


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
