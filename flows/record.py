"""What the home says about a recipe's phases, and whether it still holds: files are the truth, and everything here is read from them."""

from collections.abc import Iterable, Mapping, Sequence
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
from trainer.config import Frozen, RunConfig
from trainer.data.manifest import read_manifest
from trainer.errors import PhasewiseError, VerdictError
from trainer.metrics import METRICS_NAME
from trainer.storage import digest_of_file, digest_of_json
from validations.accepted import AcceptedWarning, accepted_in
from validations.expectations.suites import SUITES, version_of
from validations.verdict import Verdict, accepted_by, read_verdict

State = Literal["done", "refused", "not reached"]


@dataclass(frozen=True)
class PhaseRecord:
    """One phase as the home has it; what is not there, or does not hold any more, is None.

    Attributes:
        lacks: what keeps the phase from being done, in words, first things first; empty where it is done. It is about what is there,
            or not there, and about verdicts that fail.
    """

    phase: Phase
    run: RunConfig | None
    data_verdict: Verdict | None
    health_verdict: Verdict | None
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    model_verdict: Verdict | None
    lacks: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Those that hold: of its data, its training and its model."""
        return tuple(verdict for verdict in (self.data_verdict, self.health_verdict, self.model_verdict) if verdict)

    @property
    def state(self) -> State:
        """Done: trained on judged bytes and past its gate. Refused: a verdict fails."""
        if any(not verdict.passes for verdict in self.verdicts):
            return "refused"
        return "done" if self.result and self.evaluation and len(self.verdicts) == 3 else "not reached"


def read_records(recipe: Recipe, home: Home, plan: DataPlan) -> list[PhaseRecord]:
    """Every phase of the recipe, in order."""
    return [read_record(recipe, phase, home, plan) for phase in recipe.phases]


def read_record(recipe: Recipe, phase: Phase, home: Home, plan: DataPlan) -> PhaseRecord:
    """One phase. A verdict holds where it was given for what is there now, within the limits that the recipe has now."""
    try:
        run = build_run(recipe, phase, home, plan.folders("train"), held_out=plan.folders("held_out"))
    except PhasewiseError as error:
        return PhaseRecord(phase, None, None, None, None, None, None, (str(error),))
    lacks = _Lacks(accepted_in(phase.name, recipe.accepts))
    data_verdict = lacks.verdict("data", Path(run.verdict), _digests(run), phase.gates.data)
    result = lacks.unless(finished_result(run), "it is not trained on the data and settings as they are now")
    health_verdict = evaluation = model_verdict = None
    if result:
        metrics = Path(run.output) / METRICS_NAME
        health = home.verdict(recipe.run_name, phase.name, "health")
        health_verdict = lacks.verdict("training", health, {str(metrics): digest_of_file(metrics)}, phase.gates.health)
        evaluation = lacks.unless(finished_evaluation(run, result["params_digest"]), "its last checkpoint is not evaluated")
    if evaluation:
        judged = {str(evaluation["checkpoint"]): digest_of_json(evaluation)}
        model_verdict = lacks.verdict("model", home.verdict(recipe.run_name, phase.name, "model"), judged, phase.gates.model)
    return PhaseRecord(phase, run, data_verdict, health_verdict, result, evaluation, model_verdict, tuple(lacks.words))


class _Lacks:
    """Collects what is missing on the way."""

    def __init__(self, accepts: Sequence[AcceptedWarning]) -> None:
        self.words: list[str] = []
        self._accepts = accepts

    def unless(self, found: dict[str, Any] | None, words: str) -> dict[str, Any] | None:
        """What was found; the words where nothing was."""
        if found is None:
            self.words.append(words)
        return found

    def verdict(self, what: str, path: Path, judged: Mapping[str, str], limits: Frozen) -> Verdict | None:
        """The verdict in the file, if it holds; whether it passes is for the caller."""
        if not path.exists():
            self.words.append(f"there is no verdict on its {what}")
            return None
        try:
            verdict = read_verdict(path)
        except VerdictError as error:
            self.words.append(str(error))
            return None
        if why := _why_out_of_date(verdict, judged, limits, self._accepts):
            self.words.append(f"the verdict on its {what} is out of date: {why}")
            return None
        if not verdict.passes:
            self.words.append(f"the verdict on its {what} fails: {verdict.reasons[0].what if verdict.reasons else path}")
        return verdict


def _why_out_of_date(verdict: Verdict, judged: Mapping[str, str], limits: Frozen, accepts: Sequence[AcceptedWarning]) -> str | None:
    if verdict.judged != judged:
        return "it was given for something else than what is there now"
    now = limits.model_dump(mode="json")
    if verdict.thresholds != now:
        changed = sorted(name for name in {*now, *verdict.thresholds} if now.get(name) != verdict.thresholds.get(name))
        return f"it was measured against other limits ({', '.join(changed)})"
    if verdict.accepts != accepted_by(verdict.suite, accepts):
        return "the recipe accepted other warnings then"
    if verdict.suite_version != (version := version_of(SUITES[verdict.suite])):
        return f"the checks are others now (version {version}, not {verdict.suite_version})"
    return None


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
