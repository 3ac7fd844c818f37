"""Benchmark items of lm-eval tasks, for the leakage index: what a model is asked, with no examples before it.

Importing this module is cheap; lm-eval is imported when it is first used, offline unless the environment says otherwise.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.validations.evidence.leakage.items import BenchmarkItem, ParsedRow, as_item, id_of, merge_equal, parse_row

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
LOCAL_BUILDERS = ("json", "csv", "parquet", "text", "arrow")


@contextlib.contextmanager
def offline_imports() -> Iterator[None]:
    """What is imported here never asks the hub. Programs that this process starts later may: they read sources of data there."""
    before = dict(os.environ)
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in OFFLINE.keys() - before.keys():
            del os.environ[name]


def items_of_tasks(tasks: Sequence[str], include_path: Path | None, *, built_in: bool = True) -> list[BenchmarkItem]:
    """The test documents, else the validation documents, of lm-eval tasks, groups or tags; equal ones are one item.

    Args:
        tasks: names; an item's benchmark is the name that was asked for, its task the task within it.
        include_path: a folder of definitions (YAML), which can include lm-eval's own.
        built_in: whether lm-eval's own are known as well. They take ten seconds to read, and are read only for a name that needs them.

    Raises:
        ConfigError: lm-eval doesn't know a name.
        DataError: the documents of a task can't be had, or one of them has no question.
    """
    with offline_imports():
        import datasets
        import lm_eval.api.task
        from lm_eval.tasks import TaskManager
        from tqdm import tqdm

    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = partial(tqdm, disable=True)
    items: list[BenchmarkItem] = []
    with contextlib.redirect_stdout(sys.stderr):
        folders: list[str | Path] = [include_path] if include_path else []
        manager = TaskManager(include_path=folders, include_defaults=False)
        complete = not built_in
        for name in tasks:
            if name not in manager.all_tasks and not complete:
                manager = TaskManager(include_path=folders)
                complete = True
            for task_name, task in _load(manager, name).items():
                items += _items_of_task(task, benchmark=name, task_name=task_name)
    return merge_equal(items)


def _load(manager: "TaskManager", name: str) -> Mapping[str, Any]:
    """The tasks behind a name, by their own names."""
    if name not in manager.all_tasks:
        raise ConfigError(f"a benchmark must be a task, group or tag of lm-eval, found {name!r}. `lm-eval ls tasks` lists them.")
    try:
        return manager.load([name])["tasks"]
    except (OSError, KeyError, ValueError, ImportError) as error:
        raise DataError(
            f"lm-eval must be able to load the task {name!r}, found {type(error).__name__}: {error}. Without a network, include the "
            "task in a YAML file of your own with dataset_path: json and the files' places in dataset_kwargs."
        ) from error


def _items_of_task(task: Any, *, benchmark: str, task_name: str) -> Iterable[BenchmarkItem]:
    ids: set[str] = set()
    for number, document in enumerate(_documents(task)):
        parsed = _parse_document(task, document)
        if parsed is None or not (parsed.question or parsed.options.texts):
            raise DataError(
                f"{task_name}: every document must give a question through doc_to_text, found none in document {number} with the fields "
                f"{', '.join(document)}. Correct the definition or the data."
            )
        place = f"{task_name}:{number}"
        id = f"{task_name}:{parsed.id}" if parsed.id else place
        id = id if id not in ids else f"{id} ({number})"
        ids.add(id)
        yield as_item(parsed, first=0, benchmark=benchmark, task=task_name, id=id)


def _documents(task: Any) -> Iterable[dict[str, Any]]:
    """The documents that are evaluated. `datasets` keeps files by path and time of change, so local ones are read afresh."""
    if getattr(task, "DATASET_PATH", None) in LOCAL_BUILDERS and (settings := getattr(task.config, "dataset_kwargs", None)):
        task.download({**settings, "download_mode": "force_redownload"})
    return cast(Iterable[dict[str, Any]], task.test_docs() if task.has_test_docs() else task.validation_docs())


def _parse_document(task: Any, document: dict[str, Any]) -> ParsedRow | None:
    """A document's parts as the task words them; passage, solutions and id as the document's own fields give them."""
    own = parse_row(document)
    text = task.doc_to_text(document)
    target = task.doc_to_target(document)
    choices = task.doc_to_choice(document) if _offers_choices(task) else []
    if isinstance(text, int):  # Each choice is the beginning of a sentence, and the target its end.
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


def _offers_choices(task: Any) -> bool:
    return task.OUTPUT_TYPE == "multiple_choice" or getattr(task.config, "doc_to_choice", None) is not None
