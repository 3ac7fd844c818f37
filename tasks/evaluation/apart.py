"""Evaluates in a process of its own: where its memory runs out, that process ends, and the flow with everything else goes on."""

import logging
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from tasks.evaluation.asked import Asked
from tasks.evaluation.finished import finished_evaluation
from tasks.progress import LOGGER, say
from trainer.base.errors import EvaluationError


def evaluate_apart(asked: Asked) -> dict[str, Any]:
    """As `tasks.evaluation.checkpoint.evaluate_phase`. The process stays for the next evaluation: it has its libraries and programs then.

    Raises:
        EvaluationError: the process was ended, or the model's answers are not finite.
    """
    if found := finished_evaluation(asked.run, asked.key):
        return found
    try:
        evaluation, said = _process().submit(_evaluate, asked.model_dump_json()).result()
    except BrokenProcessPool:
        _process.cache_clear()
        raise EvaluationError(
            f"the evaluation of {asked.run.phase} must end by itself, and its process was ended from outside: the kernel does that "
            f"where memory runs out. The checkpoint {asked.result['checkpoint']} is as it was. The same command evaluates it again."
        ) from None
    for line in said:
        say(line)
    return evaluation


@cache
def _process() -> ProcessPoolExecutor:
    """One process, started fresh and not forked: the libraries of this one have threads."""
    return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A pool's process does not notice that the one that waits for it was killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _evaluate(asked: str) -> tuple[dict[str, Any], list[str]]:
    """In the other process: the evaluation, and what was said on the way."""
    from tasks.evaluation.checkpoint import evaluate_phase

    heard = _Heard()
    LOGGER.addHandler(heard)
    try:
        return evaluate_phase(Asked.model_validate_json(asked)), heard.lines
    finally:
        LOGGER.removeHandler(heard)


class _Heard(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Called for every line."""
        self.lines.append(record.getMessage())
