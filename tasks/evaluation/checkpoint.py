"""Evaluates the checkpoint at a phase's end and keeps what it found beside it."""

from pathlib import Path
from typing import Any

from tasks.data.plan import DataPlan
from tasks.data.tokenizer import load_tokenizer
from tasks.evaluation.evaluate import evaluate_model
from tasks.evaluation.finished import evaluation_key, evaluation_path, finished_evaluation, measured_components, measured_on
from tasks.evaluation.held_out import read_held_out_tokens
from tasks.evaluation.measured import Measured
from tasks.evaluation.schedule_point import read_schedule_point
from trainer.base.storage import write_json
from trainer.checkpoints.checkpointer import read_params
from trainer.config import RunConfig


def evaluate_phase(run: RunConfig, result: dict[str, Any], plan: DataPlan, measured: Measured) -> dict[str, Any]:
    """Benchmarks and held-out bits per byte of a phase's last weights, and of their moving average where there is one.

    Args:
        result: the trainer's result of this phase.
        measured: which benchmarks, and how much of each component's held-out text.
    """
    key = evaluation_key(run, result["params_digest"], plan, measured)
    if found := finished_evaluation(run, key):
        return found
    tokenizer = load_tokenizer(plan.tokenizer)
    folders = {name: plan.components[name].held_out.folder for name in measured_components(run, plan)}
    held_out = read_held_out_tokens(folders, tokenizer, max_tokens=measured.held_out_tokens)
    checkpoint = Path(result["checkpoint"])
    params = read_params(checkpoint, run.model)
    evaluation = {
        "phase": run.phase,
        "key": key,
        "measured_on": measured_on(run, plan, measured.held_out_tokens),
        "checkpoint": str(checkpoint),
        "params_digest": result["params_digest"],
        "weights": "last",
        "schedule": read_schedule_point(run),
        **evaluate_model(
            params=params,
            config=run.model,
            tokenizer=tokenizer,
            benchmarks=plan.benchmarks,
            names=measured.benchmarks,
            held_out=held_out,
        ),
        "ema_macro_bits_per_byte": None,
    }
    if run.keeps_average:
        from tasks.evaluation.bits_per_byte import bits_per_byte

        evaluation["ema_macro_bits_per_byte"] = bits_per_byte(read_params(checkpoint, run.model, ema=True), run.model, held_out).macro
    write_json(evaluation_path(run), evaluation)
    return evaluation
