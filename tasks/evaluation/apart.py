"""Evaluate in a child process. If the kernel kills the child for memory, the flow survives and reports the signal."""

import logging
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from phasewise.tasks.evaluation.asked import Asked
from phasewise.tasks.evaluation.finished import finished_evaluation
from phasewise.tasks.progress import LOGGER, say
from phasewise.trainer.base.errors import EvaluationError
from phasewise.trainer.process.child_process import ending


def evaluate_apart(asked: Asked) -> dict[str, Any]:
    """Run `phasewise.tasks.evaluation.checkpoint.evaluate_phase` in the child. The child stays for the next evaluation.

    Raises:
        EvaluationError: the child was killed, or the model returned values that are not finite.
    """
    if found := finished_evaluation(asked.run, asked.key):
        return found
    pool = _process()
    answer = pool.submit(_evaluate, asked.model_dump_json())
    processes = active_children()
    try:
        evaluation, said = answer.result()
    except BrokenProcessPool:
        _process.cache_clear()
        pool.shutdown()  # joins the child: its exit code is unknown until then
        how = next((ending(one.exitcode) for one in processes if one.exitcode), "ended")
        raise EvaluationError(
            f"evaluation of {asked.run.phase}: its process {how}. The kernel sends SIGKILL when memory runs out. For any other exit, the "
            f"reason is on standard error. The checkpoint {asked.result['checkpoint']} is unchanged. Run the same command again."
        ) from None
    for line in said:
        say(line)
    return evaluation


@cache
def _process() -> ProcessPoolExecutor:
    """Return the pool of one spawned process. A forked one would hang: this process has threads."""
    return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Exit when the parent exits: a pool's child does not notice that its parent was killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _evaluate(asked: str) -> tuple[dict[str, Any], list[str]]:
    """Evaluate in the child, and return the evaluation with its log lines."""
    from phasewise.tasks.evaluation.checkpoint import evaluate_phase

    heard = _Heard()
    LOGGER.addHandler(heard)
    try:
        return evaluate_phase(Asked.model_validate_json(asked)), heard.lines
    finally:
        LOGGER.removeHandler(heard)


class _Heard(logging.Handler):
    """Collect log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record's message."""
        self.lines.append(record.getMessage())
