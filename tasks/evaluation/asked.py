"""What an evaluation needs to know, and nothing else: it can be handed to another process."""

from pathlib import Path
from typing import Any

from tasks.data.plan import DataPlan
from tasks.evaluation.finished import evaluation_key, measured_components, measured_on
from tasks.evaluation.measured import Measured
from trainer.base.frozen import Frozen
from trainer.config import RunConfig


class Asked(Frozen):
    """One phase's evaluation.

    Attributes:
        result: the trainer's result of the phase.
        key: the digest of everything that decides the evaluation.
        held_out: component → folder of its held-out cache.
        measured_on: component → digest of the text that bits per byte are measured on.
        benchmarks: the folder that they are in.
    """

    run: RunConfig
    result: dict[str, Any]
    measured: Measured
    key: str
    tokenizer: Path
    held_out: dict[str, Path]
    measured_on: dict[str, str]
    benchmarks: Path


def ask(run: RunConfig, result: dict[str, Any], plan: DataPlan, measured: Measured) -> Asked:
    """The evaluation of a phase's last weights on the data that is planned.

    Args:
        measured: which benchmarks, and how much of each component's held-out text.

    Raises:
        DataError: the benchmarks are missing, or are not what their manifest says.
    """
    return Asked(
        run=run,
        result=result,
        measured=measured,
        key=evaluation_key(run, result["params_digest"], plan, measured),
        tokenizer=plan.tokenizer,
        held_out={name: plan.components[name].held_out.folder for name in measured_components(run, plan)},
        measured_on=measured_on(run, plan, measured.held_out_tokens),
        benchmarks=plan.benchmarks,
    )
