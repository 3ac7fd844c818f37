"""Evaluation as Prefect tasks."""

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.evaluation.ngram_baselines import measure_baselines
from phasewise.tasks.evaluation.phase_evaluation import evaluate_apart, request_evaluation
from phasewise.tasks.evaluation.settings import Measured
from phasewise.tasks.progress import say
from phasewise.trainer.config import RunConfig

make_benchmarks = task(task_run_name="make benchmarks", cache_policy=NO_CACHE)(write_missing_benchmarks)
fit_baselines = task(task_run_name="fit byte n-grams", cache_policy=NO_CACHE)(measure_baselines)


@task(task_run_name="evaluate {run.phase}", cache_policy=NO_CACHE)
def evaluate(run: RunConfig, result: dict[str, Any], plan: DataPlan, measured: Measured) -> dict[str, Any]:
    """Benchmarks and held-out bits per byte of a phase's last checkpoint."""
    evaluation = evaluate_apart(request_evaluation(run, result, plan, measured))
    scores = ", ".join(
        f"{r['benchmark']} {r['value']:.3f} ± {r['stderr']:.3f} (baseline {r['baseline']:.3f})" for r in evaluation["results"]
    )
    say(f"{run.phase}: {evaluation['macro_bits_per_byte']:.3f} held-out bits per byte, {scores}", on_top=True)
    return evaluation
