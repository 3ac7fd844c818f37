"""What an evaluation needs to know, and nothing else: it can be handed to another process."""

from pathlib import Path
from typing import Any

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.verify import check_cache
from phasewise.tasks.evaluation.finished import evaluation_key, measured_components, measured_on
from phasewise.tasks.evaluation.measured import Measured, real_of
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import RunConfig


class Asked(Frozen):
    """One phase's evaluation. Where the home's files are is said by URL: on a store they have no path on this machine.

    Attributes:
        result: the trainer's result of the phase.
        key: the digest of everything that decides the evaluation.
        held_out: component → folder of its held-out cache.
        measured_on: component → digest of the text that bits per byte are measured on.
        benchmarks: the folder of those that are made here.
        real: the folder of the others; None where none is asked for.
        haystack: the components of `held_out` whose text needles are hidden in: the same ones for all phases.
    """

    run: RunConfig
    result: dict[str, Any]
    measured: Measured
    key: str
    tokenizer: str
    held_out: dict[str, str]
    measured_on: dict[str, str]
    benchmarks: str
    real: Path | None
    haystack: tuple[str, ...]


def ask(run: RunConfig, result: dict[str, Any], plan: DataPlan, measured: Measured) -> Asked:
    """The evaluation of a phase's last weights on the data that is planned.

    Args:
        measured: which benchmarks, and how much of each component's held-out text.

    Raises:
        ConfigError: no folder of real benchmarks is named, or it lacks one that is asked for.
        DataError: the made benchmarks are missing, or are not what their manifest says; or the held-out text was changed.
    """
    for name in measured_components(run, plan):
        check_cache(plan.components[name].held_out.folder, plan.digests)
    return Asked(
        run=run,
        result=result,
        measured=measured,
        key=evaluation_key(run, result["params_digest"], plan, measured),
        tokenizer=str(plan.tokenizer),
        held_out={name: str(plan.components[name].held_out.folder) for name in measured_components(run, plan)},
        measured_on=measured_on(run, plan, measured.held_out_tokens),
        benchmarks=str(plan.benchmarks),
        real=_real_folder(measured),
        haystack=tuple(sorted(plan.benchmark_components)),
    )


def _real_folder(measured: Measured) -> Path | None:
    if not (labels := real_of(measured.benchmarks)):
        return None
    from phasewise.tasks.evaluation.suites.gated import gate_folder  # a third of a second, which the made ones do without

    return gate_folder(labels)
