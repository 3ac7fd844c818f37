"""What the home says about a recipe's phases, and whether it still holds: files are the truth, and everything here is read from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import scale_in_words
from phasewise.flows.resolved import Resolved
from phasewise.flows.status.verdict_inputs import decided_by
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.evaluation.phase_evaluation import evaluation_key, finished_evaluation
from phasewise.tasks.site import gate_address
from phasewise.tasks.training.run_identity import (
    damage_of_finished,
    differences,
    finished_result,
    has_result_of,
    is_begun,
    name_differences,
)
from phasewise.trainer.base.decision import Ruling, read_decisions, ruling_at, ruling_of
from phasewise.trainer.base.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    PhasewiseError,
    TrainingError,
    VerdictError,
    WaitsForPerson,
)
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import NotAsWritten, digest_of_file, read_sealed
from phasewise.trainer.base.run_folder import METRICS_NAME, RunFolder, read_result
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.checkpoints.files import checkpoint_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.expectations.suites import DATA_SUITE, SUITES, version_of
from phasewise.validations.expectations.waiver_rules import asked_of_suite
from phasewise.validations.failures import lines_of
from phasewise.validations.verdict import Verdict, accepted_by, judged_by_gate, read_verdict
from phasewise.validations.waivers import NOBODY, AcceptedWarning, AsksPeople, accepted_in, expected


def named_phase(resolved: Resolved, phase: Phase | None, needed_by: str) -> Phase:
    """The phase that was named.

    Raises:
        ConfigError: none was.
    """
    if phase is None:
        recipe = resolved.recipe
        names = ", ".join(f"{recipe.name}/{one.name}" for one in recipe.phases)
        raise ConfigError(f"{needed_by} needs a phase, found the recipe {resolved.name}; there are {names}.")
    return phase


def trained_run(resolved: Resolved, phase: Phase) -> tuple[RunConfig, dict[str, Any]]:
    """The run of a phase and its result. The home is made ready to be written to, unless it is only read.

    Raises:
        ConfigError: as `Resolved.run`.
        TrainingError: it is not trained on what the recipe gives now.
    """
    if not resolved.home.reads_only:
        resolved.home.make_ready()
    run = resolved.run(phase)
    result = finished_result(run, digests=resolved.digests)
    if result is None:
        recipe = resolved.recipe
        raise TrainingError(
            f"{resolved.recipe_name}/{phase.name} is not trained {scale_in_words(recipe.scale)} under {resolved.home.root}: "
            f"{why_not_trained(run, resolved.digests)}. Run `phasewise run {resolved.recipe_name}/{phase.name} {resolved.options}` first."
        )
    return run, result


def raise_unless_let_pass(verdict: Verdict, path: str | Path, approving: str) -> None:
    """Turn a verdict that does not let its phase go on into the error that ends it.

    Args:
        path: the verdict's file; what people decided of it is beside it.
        approving: the command by which a person decides.

    Raises:
        WaitsForPerson: a person may let it pass, and nobody has decided yet; it says which command does.
        VerdictError: it fails, in three lines: what is wrong and where, what was found against which limit, what to do; and where the
            page of the verdict is, if it is served. Or it was rejected, with the reason and the name.
    """
    ruling = ruling_of(verdict.model_dump(mode="json"), read_decisions(path))
    if ruling.lets_go_on:
        return
    lines = list(lines_of(verdict))
    if page := gate_address(verdict.subject, Path(path).stem):
        lines.append(f"  see {page}")
    if ruling.decision:
        raise VerdictError("\n".join([f"{verdict.subject} was {ruling.decision.words}", *lines]))
    if ruling.state == "waits":
        lines += [f"  void: {ruling.void}"] if ruling.void else []
        raise WaitsForPerson("\n".join([*lines, f"  a person decides: {approving}"]), str(path))
    raise VerdictError("\n".join(lines))


def approving_command(resolved: Resolved, phase: Phase) -> str:
    """What to type so that the phase goes on, or is refused."""
    return f"`phasewise approve {resolved.recipe_name}/{phase.name} {resolved.options} --reason TEXT`, or the same with --reject"


def why_not(verdict: Verdict, ruling: Ruling, path: str | Path) -> str:
    """Why a verdict does not let its phase go on, to follow its name: `fails: next_word is at its baseline`."""
    worst = verdict.reasons[0].what if verdict.reasons else f"see {path}"
    match ruling.state:
        case "waits":
            return f"waits for a person: {worst}{f' ({ruling.void})' if ruling.void else ''}"
        case "rejected" if ruling.decision:
            return f"was {ruling.decision.words}"
        case _:
            return f"fails: {worst}"


State = Literal["done", "refused", "waits for a person", "not reached"]
Again = Literal["prepare", "judge", "train", "evaluate", "report"]


class Finding(Frozen):
    """One result of a phase, or of a recipe.

    Attributes:
        what: which result it is.
        holds: whether it is there, for what is there now. A verdict that fails holds, too.
        again: what must be done again, or for the first time; None where it holds.
        why: in words, why it does not hold, or why it stops the phase; empty where all is well.
        decided: who decided of a verdict, when and why; empty where nobody was asked.
    """

    what: str
    holds: bool
    again: Again | None
    why: str
    decided: str = ""


@dataclass(frozen=True)
class PhaseRecord:
    """One phase as the home has it; what is not there, or does not hold any more, is None.

    Attributes:
        findings: every result that was looked for, in the order in which they come about. After one that does not hold, what rests on it
            is not looked for.
        decisions: what follows from each of the verdicts and what people decided of it; None is that nobody decided.
        asked: what follows from what its training asks a person, where that does not go on by it.
    """

    phase: Phase
    run: RunConfig | None
    data_verdict: Verdict | None
    health_verdict: Verdict | None
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    model_verdict: Verdict | None
    findings: tuple[Finding, ...] = ()
    decisions: tuple[Ruling, ...] | None = None
    asked: Ruling | None = None

    @property
    def rulings(self) -> tuple[Ruling, ...]:
        """What follows from each of the verdicts, with what people decided of it."""
        if self.decisions is not None:
            return self.decisions
        return tuple(ruling_of(verdict.model_dump(mode="json"), None) for verdict in self.verdicts)

    @property
    def lacks(self) -> tuple[str, ...]:
        """What keeps the phase from being done, in words, first things first; empty where it is done."""
        return tuple(finding.why for finding in self.findings if finding.why)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Those that hold: of its data, its training and its model."""
        return tuple(verdict for verdict in (self.data_verdict, self.health_verdict, self.model_verdict) if verdict)

    @property
    def state(self) -> State:
        """Done: trained on judged bytes and past its gates. Refused: a verdict fails, or people rejected it.

        A run that diverged waits for nobody: there is nothing to go on with.
        """
        asked = (self.asked,) if self.asked else ()
        stopped = [ruling.state for ruling in (*self.rulings, *asked) if not ruling.lets_go_on]
        if stopped:
            is_over = self.health_verdict is not None and self.result is None and self.asked is None
            return "waits for a person" if set(stopped) == {"waits"} and not is_over else "refused"
        return "done" if self.result and self.evaluation and len(self.verdicts) == 3 else "not reached"


def read_records(resolved: Resolved) -> list[PhaseRecord]:
    """Every phase of the recipe, in order."""
    return [read_record(resolved, phase) for phase in resolved.recipe.phases]


def read_record(resolved: Resolved, phase: Phase) -> PhaseRecord:
    """One phase. A verdict holds where it was given for what is there now, within the limits that the recipe has now."""
    recipe, home, plan = resolved.recipe, resolved.home, resolved.plan
    try:
        run = resolved.run(phase)
    except (TrainingError, CheckpointError) as error:
        return PhaseRecord(phase, None, None, None, None, None, None, (Finding(what="start", holds=False, again="train", why=str(error)),))
    found = _Findings(accepted_in(phase.name, recipe.accepts), recipe.asks_people_in(phase))
    found.add("caches", _are_built(phase, plan), "prepare", "its caches are not there as its sources, settings and code are now")
    rests_on = _decided_by(resolved, phase, run)
    data_verdict = found.verdict("data", as_path(run.verdict), _digests(run), phase.gates.data, rests_on)
    result = finished_result(run, plan, resolved.digests)
    found.add("training", result is not None, "train", "" if result else why_not_trained(run, resolved.digests))
    if not result and is_begun(run, plan):
        found.question(home.question(recipe.run_name, phase.name))
    health_verdict = evaluation = model_verdict = None
    metrics, health = RunFolder.at(run.output).metrics, home.verdict(recipe.run_name, phase.name, "health")
    if result or (is_begun(run, plan) and health.exists() and metrics.exists()):  # the training of a run that diverged is judged, too
        health_verdict = found.verdict("training", health, {METRICS_NAME: digest_of_file(metrics)}, phase.gates.health)
    if result:
        evaluation = _evaluation(run, result, plan, phase)
        found.add("evaluation", evaluation is not None, "evaluate", "its last checkpoint is not evaluated as it would be now")
    if evaluation:
        judged = judged_by_gate(evaluation, parent_evaluation(resolved, phase))
        model_verdict = found.verdict("model", home.verdict(recipe.run_name, phase.name, "model"), judged, phase.gates.model)
    judged_so_far = (data_verdict, health_verdict, result, evaluation, model_verdict)
    return PhaseRecord(phase, run, *judged_so_far, tuple(found.all), tuple(found.rulings), found.asked)


def why_not_trained(run: RunConfig, digests: KnownDigests) -> str:
    """Why `finished_result` gives none, in words."""
    if has_result_of(as_path(run.output), run) and (damage := damage_of_finished(run, digests)):
        return f"its last checkpoint {damage} ({checkpoint_path(run.output, run.stop_step)})"
    if found := differences(run):
        return f"it was trained as something else: {name_differences(found)}"
    if read_result(as_path(run.output)) and (damage := damage_of_finished(run, digests)):
        return f"its last checkpoint {damage}"
    return "it is not trained to its end"


def _are_built(phase: Phase, plan: DataPlan) -> bool:
    return all(plan.components[name].train.is_built and plan.components[name].held_out.is_built for name in phase.components)


class _Findings:
    def __init__(self, accepts: Sequence[AcceptedWarning], asks_people: AsksPeople = NOBODY) -> None:
        self.all: list[Finding] = []
        self.rulings: list[Ruling] = []
        self.asked: Ruling | None = None
        self._accepts = accepts
        self._asks_people = asks_people

    def add(self, what: str, holds: bool, again: Again, why: str) -> None:
        """A result that holds or does not."""
        self.all.append(Finding(what=what, holds=holds, again=None if holds else again, why="" if holds else why))

    def verdict(
        self, what: str, path: Path, judged: Mapping[str, str], limits: Frozen, rests_on: Mapping[str, str] | None = None
    ) -> Verdict | None:
        """The verdict in the file, if it holds; whether it lets the phase go on is in `rulings`."""
        name = f"verdict on its {what}"
        if not path.exists():
            self.add(name, False, "judge", f"there is no {name}")
            return None
        try:
            verdict = read_verdict(path)
            ruling = ruling_at(path)
        except VerdictError as error:
            self.add(name, False, "judge", str(error))
            return None
        if why := self._why_out_of_date(verdict, judged, rests_on or {}, limits):
            self.add(name, False, "judge", f"the {name} is out of date: {why}")
            return None
        failure = "" if ruling.lets_go_on else f"the {name} {why_not(verdict, ruling, path)}"
        decided = ruling.decision.words if ruling.decision else ""
        self.all.append(Finding(what=name, holds=True, again=None, why=failure, decided=decided))
        self.rulings.append(ruling)
        return verdict

    def question(self, path: Path) -> None:
        """What the training asks a person; once that is approved, it only has to go on."""
        if not path.exists():
            return
        try:
            question, ruling = read_verdict(path), ruling_at(path)
        except VerdictError as error:
            self.add("question of its training", False, "train", str(error))
            return
        if ruling.lets_go_on:
            return
        why = f"its training {why_not(question, ruling, path)}"
        decided = ruling.decision.words if ruling.decision else ""
        self.all.append(Finding(what="question of its training", holds=True, again=None, why=why, decided=decided))
        self.asked = ruling

    def _why_out_of_date(self, verdict: Verdict, judged: Mapping[str, str], rests_on: Mapping[str, str], limits: Frozen) -> str | None:
        if why := _why_out_of_date(verdict, judged, rests_on, limits, self._accepts):
            return why
        if verdict.asks_people != asked_of_suite(self._asks_people, verdict.suite):
            return "the recipe put other checks to people then"
        return None


def _why_out_of_date(
    verdict: Verdict, judged: Mapping[str, str], rests_on: Mapping[str, str], limits: Frozen, accepts: Sequence[AcceptedWarning]
) -> str | None:
    if sorted(verdict.judged.values()) != sorted(judged.values()) or (verdict.suite == DATA_SUITE and verdict.judged != judged):
        return "it was given for something else than what is there now"
    if rests_on and not verdict.decided_by:
        return f"it does not say what it rests on ({', '.join(sorted(rests_on))})"
    if verdict.decided_by != rests_on:
        changed = sorted(name for name in {*rests_on, *verdict.decided_by} if rests_on.get(name) != verdict.decided_by.get(name))
        return f"what it rests on has changed ({', '.join(changed)})"
    now = limits.model_dump(mode="json")
    if changed := sorted(name for name in {*now, *verdict.thresholds} if now.get(name) != verdict.thresholds.get(name)):  # None is off
        return f"it was measured against other limits ({', '.join(changed)})"
    if expected(verdict.accepts) != expected(accepted_by(verdict.suite, accepts)):
        return "the recipe accepted other warnings then"
    if verdict.suite_version != (version := version_of(SUITES[verdict.suite])):
        return f"the checks are others now (version {version}, not {verdict.suite_version})"
    return None


def _evaluation(run: RunConfig, result: dict[str, Any], plan: DataPlan, phase: Phase) -> dict[str, Any] | None:
    try:
        return finished_evaluation(run, evaluation_key(run, result["params_digest"], plan, phase.evaluation.measured))
    except PhasewiseError:
        return None


def parent_evaluation(resolved: Resolved, phase: Phase) -> dict[str, Any] | None:
    """What was measured at the end of the phase's parent; None for a first phase, where nothing was, and where it was of other weights."""
    if phase.parent is None:
        return None
    folder = resolved.home.run(resolved.recipe.run_name, phase.parent)
    try:
        evaluation = read_sealed(RunFolder(folder).evaluation)
    except (FileNotFoundError, NotAsWritten):
        return None
    of_these = (read_result(folder) or {}).get("params_digest") == evaluation.get("params_digest")
    return evaluation if of_these else None


def _decided_by(resolved: Resolved, phase: Phase, run: RunConfig) -> dict[str, str]:
    try:
        return decided_by(resolved, phase, run)
    except (DataError, TrainingError):
        return {}


def _digests(run: RunConfig) -> dict[str, str]:
    try:
        return {name: read_manifest(folder).digest for name, folder in run.caches.items()}
    except PhasewiseError:
        return {}
