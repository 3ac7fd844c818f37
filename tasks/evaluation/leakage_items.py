"""Benchmark items without examples for the leakage search, in lm-eval's wording. lm-eval is imported at first use, offline by default."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from phasewise.tasks.evaluation.benchmark_definitions import Asked, Suite, find_definition
from phasewise.tasks.evaluation.gate_benchmarks import gate_folders, prepare_item_files
from phasewise.tasks.evaluation.harness import NotMeasured, Prepared, prepare, quiet_harness, write_definitions
from phasewise.tasks.evaluation.settings import OwnBenchmark
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.validations.evidence.leakage.item_files import read_examples
from phasewise.validations.evidence.leakage.items import BenchmarkItem, ParsedRow, as_item, id_of, merge_equal, parse_row


class SuiteItems(NamedTuple):
    """Items under a digest of their content, and benchmark → reason why its items are missing."""

    items: list[BenchmarkItem]
    key: str
    missing: dict[str, str]


def find_items(suite: Suite, folder: Path) -> SuiteItems:
    """Read the test items of each benchmark, and mark the items of other splits in the folder as examples."""
    if not folder.is_dir():
        raise ConfigError(f"--benchmarks must be a folder with a folder for each benchmark, found none at {folder}.")
    items: list[BenchmarkItem] = []
    missing: dict[str, str] = {}
    contents: list[list[str | None]] = []
    for name in dict.fromkeys(asked.benchmark for asked in suite.asked):
        definition = find_definition(name)
        try:
            prepared = prepare(definition, Asked(benchmark=name, shots=0, source="the search for leaks"), folder, allow_code=True)
            found = items_of_benchmark(prepared)
        except (NotMeasured, DataError) as error:
            missing[name] = str(error)
            continue
        items += found
        contents.append([name, prepared.items_digest, prepared.definition_digest])
    if not items:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise ConfigError(f"{folder} must have items of the suite {suite.name}, and has none: {reasons}.")
    examples = read_examples(folder)
    key = digest_of_json({"items": contents, "examples": [item._asdict() for item in examples]})
    return SuiteItems([*merge_equal(items), *examples], key, missing)


def items_of_benchmark(prepared: Prepared) -> list[BenchmarkItem]:
    """Read the items of a prepared benchmark under its name."""
    with quiet_harness(offline=True) as temporary:
        found = items_of_tasks([part.task for part in prepared.parts], write_definitions(prepared, temporary))
    return [item._replace(benchmark=prepared.definition.name) for item in found]


def own_items(own: Iterable[OwnBenchmark]) -> list[BenchmarkItem]:
    """Read the items of a recipe's own benchmarks as its gates ask them. Raises a ConfigError or DataError as the gate."""
    items: list[BenchmarkItem] = []
    for name, include in dict.fromkeys((label.partition(":")[0], include) for label, include in own):
        label = f"{name}:0"
        try:
            items += items_of_benchmark(prepare_item_files(label, gate_folders([label], include)))
        except NotMeasured as error:
            raise DataError(f"{name}: expected items for the leakage scan, found none: {error}. Correct it.") from None
    return merge_equal(items)


def items_of_tasks(tasks: Sequence[str], include_path: Path) -> list[BenchmarkItem]:
    """Read the different test documents, else the validation documents, of tasks, groups or tags in a folder of definitions."""
    items: list[BenchmarkItem] = []
    with quiet_harness(offline=True):
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=[include_path], include_defaults=False)
        for name in tasks:
            if name not in manager.all_tasks:
                raise ConfigError(f"a benchmark must be a task, group or tag of lm-eval, found {name!r}. `lm-eval ls tasks` lists them.")
            try:
                loaded: dict[str, Any] = dict(manager.load([name])["tasks"])
            except (OSError, KeyError, ValueError, ImportError) as error:
                raise DataError(
                    f"lm-eval must be able to load the task {name!r}, found {type(error).__name__}: {error}. Without a network, include "
                    "the task in your own YAML file with dataset_path: json and the paths of the files in dataset_kwargs."
                ) from error
            for task_name, task in loaded.items():
                kwargs = task.config.dataset_kwargs
                if getattr(task, "DATASET_PATH", None) in ("json", "csv", "parquet", "text", "arrow") and kwargs:
                    # `datasets` caches local files by path and modification time
                    task.download({**kwargs, "download_mode": "force_redownload"})
                ids: set[str] = set()
                documents = cast(Sequence[dict[str, Any]], task.test_docs() if task.has_test_docs() else task.validation_docs())
                for number, document in enumerate(documents):
                    parsed = _parse_document(task, document)
                    if parsed is None or not (parsed.question or parsed.options.texts):
                        raise DataError(
                            f"{task_name}: every document must give a question through doc_to_text, found none in document {number} with "
                            f"the fields {', '.join(document)}. Correct the definition or the data."
                        )
                    id = f"{task_name}:{parsed.id or number}"
                    id = id if id not in ids else f"{id} ({number})"
                    ids.add(id)
                    items.append(as_item(parsed, first=0, benchmark=name, task=task_name, id=id))
    return merge_equal(items)


def _parse_document(task: Any, document: dict[str, Any]) -> ParsedRow | None:
    """Take question, choices and answer from the task's wording, and passage, solutions and id from the document's fields."""
    own = parse_row(document)
    text = task.doc_to_text(document)
    target = task.doc_to_target(document)
    offers_choices = task.OUTPUT_TYPE == "multiple_choice" or getattr(task.config, "doc_to_choice", None) is not None
    choices = task.doc_to_choice(document) if offers_choices else []
    if isinstance(text, int):  # each choice starts a sentence, which the target completes
        row = {"context_options": choices, "continuation": target, "gold": text}
    else:
        passage = own.passage if own and own.passage in text else ""
        text = text.replace(passage, "", 1).strip() if passage else text
        row = {"query": text or target, "choices": choices, "gold": target} if choices else {"query": text or target, "answer": target}
    parsed = parse_row(row)
    if parsed is None:
        return None
    parsed = parsed._replace(id=id_of(document))
    if own is None:
        return parsed
    return parsed._replace(passage=own.passage or parsed.passage, solutions=tuple(dict.fromkeys((*parsed.solutions, *own.solutions))))
