"""Evaluation of a phase: key, valid finished evaluation, and new evaluation in a child process.

If the kernel kills the child for memory, the flow survives and reports the signal. Importing this module is cheap.
"""

import logging
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from logging.handlers import QueueHandler
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.queues import SimpleQueue
from typing import Any, cast

from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.template import turn_ends
from phasewise.tasks.data.verify import check_cache
from phasewise.tasks.evaluation.made_benchmarks import read_benchmark_folder
from phasewise.tasks.evaluation.settings import ItemFolders, Measured, made_of, needles_of, own_text_key, real_of, renderings_key
from phasewise.tasks.progress import LOGGER, PROGRESS_LOGGER, explain
from phasewise.trainer.base.errors import EvaluationError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig, without_added
from phasewise.trainer.config.optimization import value_in
from phasewise.trainer.process.child_process import ending

MEASURING = (
    "tasks/data/tokenizer.py",
    "tasks/data/template.py",
    *(
        f"tasks/evaluation/{name}.py"
        for name in (
            "benchmark_definitions", "checkpoint", "harness", "held_out", "language_model", "own_benchmarks", "phase_evaluation",
            "scoring", "settings",
        )
    ),
)  # fmt: skip
"""The files that decide a measured value. The code of the model itself is left out on purpose."""
LOOK_SECONDS = 0.1


class EvaluationRequest(Frozen):
    """A phase's evaluation in a child process, with URLs of the home's files."""

    run: RunConfig
    result: dict[str, Any]  # of the trainer
    measured: Measured
    key: str
    tokenizer: str
    held_out: dict[str, str]  # component → cache
    measured_on: dict[str, str]  # component → digest of the text
    benchmarks: str  # from held-out text
    real: ItemFolders | None  # folders of the other benchmarks
    haystack: tuple[str, ...]  # components around needles, equal for all phases


def request_evaluation(run: RunConfig, result: dict[str, Any], plan: DataPlan, measured: Measured) -> EvaluationRequest:
    """Request the evaluation of a phase's last weights. A ConfigError or DataError reports incomplete or changed data."""
    names = measured_components(run, plan)
    for name in names:
        check_cache(plan.components[name].held_out.folder, plan.digests)
    real = None
    if labels := real_of(measured.benchmarks):
        from phasewise.tasks.evaluation.gate_benchmarks import gate_folders  # imports for a third of a second

        real = gate_folders(labels, measured.include)
    return EvaluationRequest(
        run=run, result=result, measured=measured, key=evaluation_key(run, result["params_digest"], plan, measured),
        tokenizer=str(plan.tokenizer), held_out={name: str(plan.components[name].held_out.folder) for name in names},
        measured_on=measured_on(run, plan, measured.held_out_tokens), benchmarks=str(plan.benchmarks), real=real,
        haystack=tuple(sorted(plan.benchmark_components)),
    )  # fmt: skip


def measured_components(run: RunConfig, plan: DataPlan) -> tuple[str, ...]:
    """Return the components of the main line and of the phase itself, so that a parent has one evaluation for all children."""
    return tuple(sorted({*plan.benchmark_components, *run.caches}))


def measured_on(run: RunConfig, plan: DataPlan, held_out_tokens: int | None) -> dict[str, str]:
    """Return component → digest of its measured held-out text."""
    return {name: digest_of_json([_content_of(plan.components[name]), held_out_tokens]) for name in measured_components(run, plan)}


def read_schedule_point(run: RunConfig) -> dict[str, Any]:
    """Return end and peak of the learning rate, whose segments are monotonic. Scores are comparable only at similar points."""
    inside = [one for one in run.learning_rate if one.start_step < run.stop_step and one.end_step > run.start_step]
    rates = [value_in(one, step) for one in inside for step in (max(one.start_step, run.start_step), min(one.end_step, run.stop_step))]
    return {"end": value_in(inside[-1], run.stop_step), "peak": max(rates), "optimizer": run.optimizer.kind}


def evaluation_key(run: RunConfig, params_digest: str, plan: DataPlan, measured: Measured) -> str:
    """Digest everything that decides an evaluation: weights, benchmarks, held-out text and its bound, precision, schedule, code."""
    deciding: dict[str, Any] = {}
    labels, needles = real_of(measured.benchmarks), needles_of(measured.benchmarks)
    if labels or needles:
        from phasewise.tasks.evaluation.gate_benchmarks import gate_key, needle_key

        deciding |= {"real_benchmarks": gate_key(labels, measured.include)} if labels else {}
        haystack = {name: _content_of(plan.components[name]) for name in plan.benchmark_components}
        deciding |= {"needles": needle_key(needles, haystack)} if needles else {}
    if measured.renderings:
        deciding["renderings"] = renderings_key(measured.renderings)
    if measured.held_out:
        deciding["own_text"] = [own_text_key(measured.held_out), code_digest("tasks/evaluation/corpus_fit.py")]
    if measured.every_steps:
        deciding["every_steps"] = measured.every_steps
    if run.loss_on != "all":
        deciding["answers"] = {"components": sorted(run.caches), "parent": run.start.params_digest if run.start else None}
    if ends := turn_ends(plan.chats_of(run.caches)):
        deciding["ends"] = list(ends)
    return digest_of_json(
        {
            **deciding,
            "params": params_digest,
            "model": without_added(run.model.model_dump(mode="json")),
            "average": run.keeps_average,
            "benchmarks": read_benchmark_folder(plan.benchmarks).only(made_of(measured.benchmarks)).digest,
            "held_out": measured_on(run, plan, measured.held_out_tokens),
            "schedule": read_schedule_point(run),
            "code": code_digest(*MEASURING),
        }
    )


def finished_evaluation(run: RunConfig, key: str) -> dict[str, Any] | None:
    """Read the evaluation with the key, or return None if the file is missing, edited or unsealed."""
    try:
        evaluation = read_sealed(RunFolder(run.output).evaluation)
    except (FileNotFoundError, NotAsWritten):
        return None
    return evaluation if evaluation.get("key") == key else None


def _content_of(component: ComponentPlan) -> str:
    return component.held_out.pin.digest if component.held_out.pin else component.held_out.key


def evaluate_apart(request: EvaluationRequest) -> dict[str, Any]:
    """Run `evaluate_phase` in a child process, which stays for the next evaluation."""
    if found := finished_evaluation(request.run, request.key):
        return found
    explain(f"{request.run.phase}: evaluates {len(request.measured.benchmarks)} benchmarks and held-out text", on_top=True)
    pool, records = _pool()
    answer = pool.submit(_evaluate, request.model_dump_json())
    processes = active_children()
    while not answer.done() or not records.empty():
        if records.empty():
            time.sleep(LOOK_SECONDS)
        else:
            record = records.get()
            logging.getLogger(record.name).handle(record)
    try:
        return answer.result()
    except BrokenProcessPool:
        _pool.cache_clear()
        pool.shutdown()  # joins the child: its exit code is unknown until then
        how = next((ending(one.exitcode) for one in processes if one.exitcode), "ended")
        raise EvaluationError(
            f"evaluation of {request.run.phase}: its process {how}. The kernel sends SIGKILL when memory runs out. For further exits, see "
            f"standard error. The checkpoint {request.result['checkpoint']} is unchanged. Run the same command again."
        ) from None


@cache
def _pool() -> "tuple[ProcessPoolExecutor, SimpleQueue[logging.LogRecord]]":
    """Return a pool of one spawned process, and its log records. A forked process would hang, because this process has threads."""
    context = get_context("spawn")
    records: SimpleQueue[logging.LogRecord] = context.SimpleQueue()
    return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_prepare_child, initargs=(records,)), records


def _prepare_child(records: "SimpleQueue[logging.LogRecord]") -> None:
    """Send log records to the parent, and exit when the parent exits. A pool's child does not notice the death of its parent."""
    sender: Any = QueueHandler(cast(Any, records))
    sender.enqueue = records.put
    for logger in (LOGGER, PROGRESS_LOGGER):
        logger.addHandler(sender)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _evaluate(request: str) -> dict[str, Any]:
    from phasewise.tasks.evaluation.checkpoint import evaluate_phase

    return evaluate_phase(EvaluationRequest.model_validate_json(request))
