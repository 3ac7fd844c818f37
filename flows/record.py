"""What the home says about a recipe's phases: files are the truth, and everything here is read from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.plan import build_run, data_plan
from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe
from tasks.data.plan import DataPlan
from tasks.evaluation.finished import finished_evaluation
from tasks.home import Home
from tasks.training.launcher import finished_result
from trainer.config import RunConfig
from trainer.data.manifest import read_manifest
from trainer.errors import PhasewiseError
from trainer.metrics import METRICS_NAME
from trainer.storage import digest_of_file, digest_of_json
from validations.verdict import Verdict, read_verdict

State = Literal["done", "refused", "not reached"]


@dataclass(frozen=True)
class PhaseRecord:
    """One phase as the home has it; what is not there, or belongs to other data or settings, is None."""

    phase: Phase
    run: RunConfig | None
    data_verdict: Verdict | None
    health_verdict: Verdict | None
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    model_verdict: Verdict | None

    @property
    def state(self) -> State:
        """Done: trained on judged bytes and past its gate. Refused: a verdict fails."""
        verdicts = [verdict for verdict in (self.data_verdict, self.health_verdict, self.model_verdict) if verdict]
        if any(not verdict.passes for verdict in verdicts):
            return "refused"
        return "done" if self.result and self.evaluation and len(verdicts) == 3 else "not reached"


def read_records(recipe: Recipe, home: Home, plan: DataPlan) -> list[PhaseRecord]:
    """Every phase of the recipe, in order."""
    return [read_record(recipe, phase, home, plan) for phase in recipe.phases]


def read_record(recipe: Recipe, phase: Phase, home: Home, plan: DataPlan) -> PhaseRecord:
    """One phase. Its verdicts count only where they were given for the bytes and the weights that are there now."""
    try:
        run = build_run(recipe, phase, home, plan.folders("train"), held_out=plan.folders("held_out"))
    except PhasewiseError:
        return PhaseRecord(phase, None, None, None, None, None, None)
    data_verdict = _verdict(Path(run.verdict))
    if data_verdict and data_verdict.judged != _digests(run):
        data_verdict = None
    result = finished_result(run)
    health_verdict = _verdict(home.verdict(recipe.run_name, phase.name, "health")) if result else None
    metrics = Path(run.output) / METRICS_NAME
    if health_verdict and health_verdict.judged != {str(metrics): digest_of_file(metrics)}:
        health_verdict = None
    evaluation = _evaluation(run, result, plan)
    model_verdict = _verdict(home.verdict(recipe.run_name, phase.name, "model")) if evaluation else None
    if model_verdict and evaluation and not _judges(model_verdict, evaluation, phase):
        model_verdict = None
    return PhaseRecord(phase, run, data_verdict, health_verdict, result, evaluation, model_verdict)


def is_done(recipe: Recipe, phases: Iterable[Phase], home: Home) -> bool:
    """Whether nothing is left to do: every cache as its sources demand it, these phases trained, evaluated and past their gates."""
    try:
        plan = data_plan(recipe, home)
    except PhasewiseError:
        return False
    return (
        plan.is_built and all(record.state == "done" for record in read_records(recipe, home, plan)) and report_path(recipe, home).exists()
    )


def report_path(recipe: Recipe, home: Home) -> Path:
    """The HTML report of a recipe."""
    return home.report(recipe.run_name) / "report.html"


def _digests(run: RunConfig) -> dict[str, str]:
    try:
        return {name: read_manifest(folder).digest for name, folder in run.caches.items()}
    except PhasewiseError:
        return {}


def _verdict(path: Path) -> Verdict | None:
    return read_verdict(path) if path.exists() else None


def _evaluation(run: RunConfig, result: dict[str, Any] | None, plan: DataPlan) -> dict[str, Any] | None:
    """Of these weights by these benchmarks; none where the benchmarks are not made, or damaged."""
    try:
        return finished_evaluation(run, result["params_digest"], plan.benchmarks) if result else None
    except PhasewiseError:
        return None


def _judges(gate: Verdict, evaluation: dict[str, Any], phase: Phase) -> bool:
    """Whether the gate's verdict is on this evaluation, by the limits of the recipe as it is now."""
    judged = {str(evaluation["checkpoint"]): digest_of_json(evaluation)}
    return gate.judged == judged and gate.thresholds == phase.gates.model.model_dump(mode="json")
