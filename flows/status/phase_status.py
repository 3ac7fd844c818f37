"""The status of a recipe's phases, read from the files of the home."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from phasewise.flows.recipes.phase import Phase, Pretrained
from phasewise.flows.recipes.recipe import scale_in_words
from phasewise.flows.resolved import Resolved
from phasewise.flows.status.verdict_inputs import decided_by
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.evaluation.phase_evaluation import evaluation_key, finished_evaluation
from phasewise.tasks.phase_state import PhaseState, State, Work, read_work, settle, state_now
from phasewise.tasks.site import gate_address
from phasewise.tasks.training.pretrained import folder_of, read_import
from phasewise.tasks.training.run_identity import damage_of_finished, differences, finished_result, has_result_of, is_begun, last_saved_step
from phasewise.trainer.base import errors
from phasewise.trainer.base.decision import Ruling, read_decisions, ruling_at, ruling_of
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_file, find_sealed
from phasewise.trainer.base.run_folder import METRICS_NAME, RunFolder, read_result
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.expectations.suites import DATA_SUITE, SUITES, version_of
from phasewise.validations.expectations.waiver_rules import asked_of_suite
from phasewise.validations.failures import lines_of
from phasewise.validations.limits import AcceptedWarning, AsksPeople, accepted_in, expected
from phasewise.validations.verdict import Verdict, accepted_by, judged_by_gate, read_verdict


def named_phase(resolved: Resolved, phase: Phase | None, needed_by: str) -> Phase:
    """The phase of a command that needs one, or ConfigError."""
    if phase is None:
        recipe = resolved.recipe
        names = ", ".join(f"{recipe.name}/{one.name}" for one in recipe.phases)
        raise errors.ConfigError(f"{needed_by} needs a phase, found the recipe {resolved.name}. Its phases are {names}.")
    return phase


def trained_run(resolved: Resolved, phase: Phase) -> tuple[RunConfig, dict[str, Any]]:
    """The run of a phase and its result. Prepares the home for writing, unless it is read-only."""
    if not resolved.home.reads_only:
        resolved.home.make_ready()
    run = resolved.run(phase)
    result = finished_result(run, digests=resolved.digests)
    if result is None:
        recipe = resolved.recipe
        raise errors.TrainingError(
            f"{resolved.recipe_name}/{phase.name} is not trained {scale_in_words(recipe.scale)} under {resolved.home.root}: "
            f"{why_not_trained(run, resolved.digests)}. Run `phasewise run {resolved.recipe_name}/{phase.name} {resolved.options}` first."
        )
    return run, result


def raise_unless_let_pass(verdict: Verdict, path: str | Path, approving: str) -> None:
    """Raise the error of a verdict that stops its phase. `path`: the file of the verdict, next to the decisions of people.

    Raises WaitsForPerson if a person may still approve the failure, VerdictError for a rejected verdict and other failures. The message has
    a line each for problem, value and limit, and remedy, with the address of the verdict's page if it is served.
    """
    ruling = ruling_of(verdict.model_dump(mode="json"), read_decisions(path))
    if ruling.lets_go_on:
        return
    lines = list(lines_of(verdict))
    if page := gate_address(verdict.subject, Path(path).stem):
        lines.append(f"  see {page}")
    if ruling.decision:
        raise errors.VerdictError("\n".join([f"{verdict.subject} was {ruling.decision.words}", *lines]))
    if ruling.state == "waits":
        lines += [f"  void: {ruling.void}"] if ruling.void else []
        raise errors.WaitsForPerson("\n".join([*lines, f"  a person decides: {approving}"]), str(path))
    raise errors.VerdictError("\n".join(lines))


def approving_command(resolved: Resolved, phase: Phase) -> str:
    """The command that approves or rejects a phase."""
    return f"`phasewise approve {resolved.recipe_name}/{phase.name} {resolved.options} --reason TEXT`, or the same with --reject"


def why_not(verdict: Verdict, ruling: Ruling, path: str | Path) -> str:
    """The reason that a verdict stops its phase, after its name: `fails: next_word is at its baseline`."""
    worst = verdict.reasons[0].what if verdict.reasons else f"see {path}"
    if ruling.state == "waits":
        return f"waits for a person: {worst}{f' ({ruling.void})' if ruling.void else ''}"
    if ruling.state == "rejected" and ruling.decision:
        return f"was {ruling.decision.words}"
    return f"fails: {worst}"


Again = Literal["prepare", "judge", "train", "evaluate", "report"]


class Finding(Frozen):
    """The status of a result of a phase or a recipe."""

    what: str
    holds: bool  # the result exists and is current. A current verdict may fail
    again: Again | None  # the work for a current result
    why: str  # reason if the result is missing, out of date, or stops the phase
    decided: str = ""  # decision of a person on a verdict, with name, time and reason


@dataclass(frozen=True)
class PhaseRecord:
    """The results of a phase in the home. Missing and outdated results are None."""

    phase: Phase
    run: RunConfig | None
    data_verdict: Verdict | None
    health_verdict: Verdict | None
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    model_verdict: Verdict | None
    findings: tuple[Finding, ...] = ()  # in the order of making, up to an outdated result
    decisions: tuple[Ruling, ...] | None = None  # rulings on the verdicts, with the decisions of people
    asked: Ruling | None = None  # on a question that stops the training
    is_outdated: bool = False  # a result exists and is not current
    is_begun: bool = False  # the training began

    @property
    def rulings(self) -> tuple[Ruling, ...]:
        """A ruling on each of `verdicts`."""
        if self.decisions is not None:
            return self.decisions
        return tuple(ruling_of(verdict.model_dump(mode="json"), None) for verdict in self.verdicts)

    @property
    def lacks(self) -> tuple[str, ...]:
        """The reasons that the phase is not done, first reason first."""
        return tuple(finding.why for finding in self.findings if finding.why)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The current verdicts on data, training and model."""
        return tuple(verdict for verdict in (self.data_verdict, self.health_verdict, self.model_verdict) if verdict)

    @property
    def state(self) -> State:
        """The state by the results. A diverged run never waits for a person, because there is no checkpoint for the next phase."""
        stopped_by: State | None = None
        asked = (self.asked,) if self.asked else ()
        stopped = [ruling.state for ruling in (*self.rulings, *asked) if not ruling.lets_go_on]
        if stopped:
            is_over = self.health_verdict is not None and self.result is None and self.asked is None
            stopped_by = State.WAITS_FOR_PERSON if set(stopped) == {"waits"} and not is_over else State.REFUSED
        is_complete = bool(self.result and self.evaluation and len(self.verdicts) == 3)
        return settle(stopped_by, is_complete=is_complete, is_outdated=self.is_outdated, is_begun=self.is_begun)

    @property
    def settled(self) -> PhaseState:
        """The state by the results, with the reasons."""
        return PhaseState(state=self.state, why="; ".join(self.lacks), stop_step=self.phase.stop_step)


def read_records(resolved: Resolved) -> list[PhaseRecord]:
    """The records of all phases, in order."""
    return [read_record(resolved, phase) for phase in resolved.recipe.phases]


def read_states(resolved: Resolved, phases: Iterable[Phase]) -> list[tuple[PhaseRecord, PhaseState]]:
    """The records of phases with their states, parents first. A phase is read until its process stays in a stage."""
    home, run_name, states = resolved.home, resolved.recipe.run_name, dict[str, State]()
    found: list[tuple[PhaseRecord, PhaseState]] = []
    for phase in phases:
        record, work = read_at_rest(resolved, phase)
        parent = (phase.parent, states[phase.parent]) if phase.parent in states else None
        state = state_now(home, run_name, phase.name, record.settled, work=work, parent=parent)
        states[phase.name] = state.state
        found.append((record, state))
    return found


def read_at_rest(resolved: Resolved, phase: Phase) -> tuple[PhaseRecord, Work]:
    """The record of a phase with the work on the phase, of one moment."""
    home, run_name, before = resolved.home, resolved.recipe.run_name, None
    while True:
        work = read_work(home, run_name, phase.name)
        if before is not None and before[1].stage == work.stage:
            return before[0], work
        before = read_record(resolved, phase), work


def read_record(resolved: Resolved, phase: Phase) -> PhaseRecord:
    """The record of a phase. A verdict is current if its inputs, limits and waivers are the recipe's."""
    recipe, home, plan = resolved.recipe, resolved.home, resolved.plan
    try:
        run = resolved.run(phase)
    except (errors.TrainingError, errors.CheckpointError) as error:
        start = Finding(what="start", holds=False, again="train", why=str(error))
        had = read_result(home.run(recipe.run_name, phase.name)) is not None
        return PhaseRecord(phase, None, None, None, None, None, None, (start,), is_outdated=had)
    found = Findings(accepted_in(phase.name, recipe.accepts), recipe.asks_people_in(phase))
    caches = [plan.components[name] for name in phase.components]
    are_built = all(one.train.is_built and one.held_out.is_built for one in caches)
    found.add("caches", are_built, "prepare", "its caches are missing for the current sources, settings and code")
    rests_on: dict[str, str] = {}
    digests: dict[str, str] = {}
    with suppress(errors.DataError, errors.TrainingError):
        rests_on = decided_by(resolved, phase, run)
    with suppress(errors.PhasewiseError):
        digests = {name: read_manifest(folder).digest for name, folder in run.caches.items()}
    data_verdict = found.verdict("data", as_path(run.verdict), digests, phase.gates.data, rests_on)
    result = finished_result(run, plan, resolved.digests)
    folder = RunFolder(run.output)
    found.add("training", result is not None, "train", "" if result else why_not_trained(run, resolved.digests), had=folder.result.exists())
    if not result and is_begun(run, plan):
        found.question(folder.question)
    health_verdict = evaluation = model_verdict = None
    metrics, health = folder.metrics, home.verdict(recipe.run_name, phase.name, "health")
    if result or (is_begun(run, plan) and health.exists() and metrics.exists()):  # a diverged run has a verdict on its training
        health_verdict = found.verdict("training", health, {METRICS_NAME: digest_of_file(metrics)}, phase.gates.health)
    if result:
        with suppress(errors.PhasewiseError):
            evaluation = finished_evaluation(run, evaluation_key(run, result["params_digest"], plan, phase.evaluation.measured))
        had = folder.evaluation.exists()
        why = f"the evaluation of its last checkpoint is {'out of date' if had else 'missing'}"
        found.add("evaluation", evaluation is not None, "evaluate", why, had=had)
    if evaluation:
        judged = judged_by_gate(evaluation, parent_evaluation(resolved, phase))
        model_verdict = found.verdict("model", home.verdict(recipe.run_name, phase.name, "model"), judged, phase.gates.model)
    judged_so_far = (data_verdict, health_verdict, result, evaluation, model_verdict)
    has_run = folder.run_file.exists()
    is_outdated = found.is_outdated or (has_run and not are_built)
    return PhaseRecord(phase, run, *judged_so_far, tuple(found.all), tuple(found.rulings), found.asked, is_outdated, is_begun=has_run)


def why_not_trained(run: RunConfig, digests: KnownDigests) -> str:
    """The reason that `finished_result` is None."""
    if has_result_of(as_path(run.output), run) and (damage := damage_of_finished(run, digests)):
        return f"its last checkpoint {damage} ({RunFolder(run.output).checkpoint(run.stop_step)})"
    if found := differences(run):
        return f"it was trained with other settings: {name_some(found, 3, '; ')}"
    if read_result(as_path(run.output)) and (damage := damage_of_finished(run, digests)):
        return f"its last checkpoint {damage}"
    saved = last_saved_step(run)
    return f"it is trained to step {saved:,} of {run.stop_step:,}" if saved is not None else "it is not trained"


@dataclass
class Findings:
    """Collects the findings and rulings of one phase."""

    accepts: Sequence[AcceptedWarning]
    asks_people: AsksPeople
    all: list[Finding] = field(default_factory=list)
    rulings: list[Ruling] = field(default_factory=list)
    asked: Ruling | None = None
    is_outdated: bool = False

    def add(self, what: str, holds: bool, again: Again, why: str, *, had: bool = False) -> None:
        """Add a result, except verdicts. `had`: the result exists."""
        self.is_outdated |= had and not holds
        self.all.append(Finding(what=what, holds=holds, again=None if holds else again, why="" if holds else why))

    def verdict(
        self, what: str, path: Path, judged: Mapping[str, str], limits: Frozen, rests_on: Mapping[str, str] | None = None
    ) -> Verdict | None:
        """Add the verdict of a file with its ruling. Returns the verdict if it is current."""
        name = f"verdict on its {what}"
        if not path.exists():
            self.add(name, False, "judge", f"there is no {name}")
            return None
        try:
            verdict = read_verdict(path)
            ruling = ruling_at(path)
        except errors.VerdictError as error:
            self.add(name, False, "judge", str(error), had=True)
            return None
        if why := self._why_out_of_date(verdict, judged, rests_on or {}, limits):
            self.add(name, False, "judge", f"the {name} is out of date: {why}", had=True)
            return None
        why = "" if ruling.lets_go_on else f"the {name} {why_not(verdict, ruling, path)}"
        self.all.append(Finding(what=name, holds=True, again=None, why=why, decided=ruling.decision.words if ruling.decision else ""))
        self.rulings.append(ruling)
        return verdict

    def question(self, path: Path) -> None:
        """Add an open question of the training. The training of an approved question continues."""
        name = "question of its training"
        if not path.exists():
            return
        try:
            question, ruling = read_verdict(path), ruling_at(path)
        except errors.VerdictError as error:
            self.add(name, False, "train", str(error))
            return
        if not ruling.lets_go_on:
            decided = ruling.decision.words if ruling.decision else ""
            why = f"its training {why_not(question, ruling, path)}"
            self.all.append(Finding(what=name, holds=True, again=None, why=why, decided=decided))
            self.asked = ruling

    def _why_out_of_date(self, verdict: Verdict, judged: Mapping[str, str], rests_on: Mapping[str, str], limits: Frozen) -> str | None:
        if sorted(verdict.judged.values()) != sorted(judged.values()) or (verdict.suite == DATA_SUITE and verdict.judged != judged):
            return "its inputs have changed"
        if rests_on and not verdict.decided_by:
            return f"it does not name its inputs ({', '.join(sorted(rests_on))})"
        for now, then, words in (
            (rests_on, verdict.decided_by, "its inputs have changed"),
            (limits.model_dump(mode="json"), verdict.thresholds, "it was measured against other limits"),
        ):
            if changed := sorted(name for name in {*now, *then} if now.get(name) != then.get(name)):
                return f"{words} ({', '.join(changed)})"
        if expected(verdict.accepts) != expected(accepted_by(verdict.suite, self.accepts)):
            return "the recipe accepted other warnings then"
        if verdict.suite_version != (version := version_of(SUITES[verdict.suite])):
            return f"the checks have changed (version {version}, not {verdict.suite_version})"
        if verdict.asks_people != asked_of_suite(self.asks_people, verdict.suite):
            return "the recipe asked people about other checks then"
        return None


def parent_evaluation(resolved: Resolved, phase: Phase) -> dict[str, Any] | None:
    """The evaluation of the parent's final weights, or of a pretrained start. None if the evaluation is missing or outdated."""
    digest: str | None = None
    if isinstance(phase.start, Pretrained):
        folder = folder_of(phase.start, phase.model, resolved.home, resolved.recipe.run_name)
        digest = (read_import(folder) or {}).get("params_digest")
    elif phase.parent is not None:
        folder = resolved.home.run(resolved.recipe.run_name, phase.parent)
        digest = (read_result(folder) or {}).get("params_digest")
    else:
        return None
    evaluation = find_sealed(RunFolder(folder).evaluation)
    return evaluation if evaluation and evaluation.get("params_digest") == digest else None
