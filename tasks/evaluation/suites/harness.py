"""lm-eval itself: loads the tasks of a benchmark and puts their items to a model. lm-eval is imported when it is first used (seconds)."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from phasewise.tasks.evaluation.requests import MAX_NEW_TOKENS, read_generation
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared, write_definitions
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

SHOTS_SEED = 1234
"""lm-eval's own default. Its `evaluate` draws other examples each time where nobody sets it."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

Sample = Mapping[str, Any]


class Put(NamedTuple):
    """What lm-eval found.

    Attributes:
        found: its results, with the record of each item, by task.
        max_new_tokens: what the benchmark lets a model write, and what was let; None where it writes nothing.
    """

    tasks: dict[str, Any]
    found: Mapping[str, Any]
    max_new_tokens: tuple[int, int] | None


@contextlib.contextmanager
def quiet_harness(*, offline: bool) -> Iterator[None]:
    """lm-eval prints to standard output, draws bars, and warns of each default that it takes for a definition of its own."""
    if offline:
        for name, value in OFFLINE.items():
            os.environ.setdefault(name, value)
    import datasets
    import lm_eval.api.task
    from tqdm import tqdm

    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = partial(tqdm, disable=True)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(sys.stderr):
        yield


def load_tasks(prepared: Prepared, temporary: Path) -> dict[str, Any] | Hole:
    """lm-eval's tasks of a benchmark, by name, or why they cannot be loaded.

    Args:
        temporary: a new and empty folder, which is needed for as long as the tasks are.
    """
    from lm_eval.tasks import TaskManager

    names = [part.task for part in prepared.parts]
    try:
        manager = TaskManager(include_path=[str(write_definitions(prepared, temporary))], include_defaults=False)
        tasks: dict[str, Any] = dict(manager.load(names)["tasks"])
    except Exception as error:  # a definition is code of others, and a row may be of any form: whatever it is, it is named
        return Hole(f"lm-eval could not load it: {_in_words(error)}")
    if sorted(tasks) != sorted(names):
        raise EvaluationError(f"lm-eval must load the tasks {', '.join(names)}, found {', '.join(tasks)}: two of one name, perhaps.")
    return tasks


def put(model: "JaxLanguageModel", tasks: dict[str, Any], prepared: Prepared, *, limit: int | None) -> Put | Hole:
    """The items of loaded tasks to a model.

    Args:
        limit: only the first so many of each task.

    Raises:
        EvaluationError: an answer is not finite, or lm-eval did not do as it was asked.
    """
    from lm_eval.evaluator import evaluate

    asked = [new_tokens for task in tasks.values() if (new_tokens := _limit_new_tokens(task, model.max_length // 2))]
    for task in tasks.values():
        task.set_fewshot_seed(seed=SHOTS_SEED)
    names = list(tasks)
    try:
        # No iterations: lm-eval would draw for the error of a perplexity in processes that it forks from this one, which holds JAX.
        found = evaluate(
            lm=model, task_dict={name: tasks[name] for name in names}, limit=limit, bootstrap_iters=0, log_samples=True
        )  # fmt: skip
    except EvaluationError:
        raise
    except (DataError, ConfigError) as error:
        return Hole(str(error))
    except (KeyError, ValueError, TypeError, IndexError, AssertionError) as error:
        return Hole(f"lm-eval could not put an item of it: {_in_words(error)}")
    assert found is not None
    _check_shots(cast(Mapping[str, Any], found), prepared)
    return Put(tasks, cast(Mapping[str, Any], found), max(asked) if asked else None)


def samples_of(found: Mapping[str, Any], task: str, filter_name: str) -> list[Sample]:
    """lm-eval's record of each item, once: it has one for each filter.

    Raises:
        EvaluationError: there is not one of this filter for each item.
    """
    every: Sequence[Sample] = found["samples"][task]
    chosen = sorted((sample for sample in every if sample["filter"] == filter_name), key=lambda sample: sample["doc_id"])
    wanted = found["n-samples"][task]["effective"]
    if len(chosen) != wanted or len({sample["doc_id"] for sample in chosen}) != wanted:
        filters = sorted({sample["filter"] for sample in every})
        raise EvaluationError(
            f"{task} must have one record of each of its {wanted} items under the filter {filter_name}, found {len(chosen)}; its filters "
            f"are {', '.join(filters)}. Correct the definition in tasks/evaluation/suites/known.py."
        )
    return chosen


def _limit_new_tokens(task: Any, most: int) -> tuple[int, int] | None:
    """What a task lets a model write, and what is let here: at most half of what the model sees. None where it writes nothing."""
    if task.OUTPUT_TYPE != "generate_until":
        return None
    settings = dict(task.get_config("generation_kwargs") or {})
    wanted = read_generation(settings).max_new_tokens
    if wanted > most:
        kept = {name: value for name, value in settings.items() if name not in MAX_NEW_TOKENS}
        task.set_config("generation_kwargs", {**kept, "max_gen_toks": most})
    return wanted, min(wanted, most)


def _check_shots(found: Mapping[str, Any], prepared: Prepared) -> None:
    """lm-eval takes a number of shots for itself under some conditions: what it did is read, not what it was asked."""
    wrong = {part.task: found["n-shot"][part.task] for part in prepared.parts if found["n-shot"][part.task] != prepared.asked.shots}
    if wrong:
        raise EvaluationError(
            f"{prepared.asked.label} must be put with {prepared.asked.shots} shots, found {wrong}: correct its definition."
        )


def _in_words(error: BaseException) -> str:
    """What went wrong first, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
