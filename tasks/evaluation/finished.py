"""The evaluation that a phase has already, and whether it still holds. Importing this module is cheap: nothing is measured here."""

from functools import cache
from pathlib import Path
from typing import Any

from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.template import turn_ends
from phasewise.tasks.evaluation.benchmark_folder import read_benchmark_folder
from phasewise.tasks.evaluation.measured import Measured, made_of, needles_of, real_of
from phasewise.tasks.evaluation.renderings import renderings_key
from phasewise.tasks.evaluation.schedule_point import read_schedule_point
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig, without_added

MEASURING = (
    "tasks/data/tokenizer.py",
    "tasks/data/template.py",
    *(
        f"tasks/evaluation/{name}.py"
        for name in (
            "answer_likelihood",
            "answers",
            "asked",
            "bits_per_byte",
            "checkpoint",
            "evaluate",
            "generation",
            "held_out",
            "language_model",
            "renderings",
            "requests",
            "rows",
            "sampling",
            "schedule_point",
            "scoring",
            "setting",
        )
    ),
)
"""The files that decide what is measured. The model's own code, which is the trainer's, is left out on purpose."""


def evaluation_path(run: RunConfig) -> Path:
    """Where the evaluation of a phase's last checkpoint is kept."""
    return RunFolder.at(run.output).evaluation


def measured_components(run: RunConfig, plan: DataPlan) -> tuple[str, ...]:
    """The components on whose held-out text a phase is measured: all of the main line, and the phase's own.

    What is planned beside them, such as another branch's, changes nothing: a parent's evaluation is one for all of its children.
    """
    return tuple(sorted({*plan.benchmark_components, *run.caches}))


def measured_on(run: RunConfig, plan: DataPlan, held_out_tokens: int | None) -> dict[str, str]:
    """Component → digest of the held-out text that bits per byte are measured on."""
    return {name: digest_of_json([_content_of(plan.components[name]), held_out_tokens]) for name in measured_components(run, plan)}


def evaluation_key(run: RunConfig, params_digest: str, plan: DataPlan, measured: Measured) -> str:
    """The digest of everything that decides an evaluation: weights, benchmarks, held-out text and its bound, precision, the end of
    the schedule, code.

    Raises:
        ConfigError: no folder of real benchmarks is named, or it lacks one that is asked for.
        DataError: the made benchmarks are missing, or are not what their manifest says; or the items of two renderings are missing.
    """
    return digest_of_json(
        {
            **_real_benchmarks(measured),
            **_needles(measured, plan),
            **({"renderings": renderings_key(measured.renderings)} if measured.renderings else {}),
            **_answers_key(run),
            **_ends_key(run, plan),
            "params": params_digest,
            "model": without_added(run.model.model_dump(mode="json")),
            "average": run.keeps_average,
            "benchmarks": read_benchmark_folder(plan.benchmarks).only(made_of(measured.benchmarks)).digest,
            "held_out": measured_on(run, plan, measured.held_out_tokens),
            "schedule": read_schedule_point(run),
            "code": measuring_code(),
        }
    )


def finished_evaluation(run: RunConfig, key: str) -> dict[str, Any] | None:
    """The evaluation of this key, if there is one. One that was changed after it was written, or has no seal, is made again."""
    try:
        evaluation = read_sealed(evaluation_path(run))
    except (FileNotFoundError, NotAsWritten):
        return None
    return evaluation if evaluation.get("key") == key else None


def _real_benchmarks(measured: Measured) -> dict[str, dict[str, str]]:
    """Their digests; nothing where none is asked for."""
    if not (labels := real_of(measured.benchmarks)):
        return {}
    from phasewise.tasks.evaluation.suites.gated import gate_key  # a third of a second, which the made ones do without

    return {"real_benchmarks": gate_key(labels)}


def _needles(measured: Measured, plan: DataPlan) -> dict[str, dict[str, str]]:
    """Their digests; nothing where none are asked for."""
    if not (labels := needles_of(measured.benchmarks)):
        return {}
    from phasewise.tasks.evaluation.suites.gated_needles import needle_key  # a third of a second, which the made ones do without

    return {"needles": needle_key(labels, {name: _content_of(plan.components[name]) for name in plan.benchmark_components})}


def _answers_key(run: RunConfig) -> dict[str, Any]:
    """What else decides the likelihood of answers beside the parent's; nothing where none are trained on."""
    if run.loss_on == "all":
        return {}
    return {"answers": {"components": sorted(run.caches), "parent": run.start.params_digest if run.start else None}}


def _ends_key(run: RunConfig, plan: DataPlan) -> dict[str, Any]:
    """The tokens that end an answer; nothing of a phase without conversations."""
    ends = turn_ends(plan.chats_of(run.caches))
    return {"ends": list(ends)} if ends else {}


@cache
def measuring_code() -> str:
    """Digest of what the code of `MEASURING` does."""
    return code_digest(*MEASURING)


def _content_of(component: ComponentPlan) -> str:
    return component.held_out.pin.digest if component.held_out.pin else component.held_out.key
