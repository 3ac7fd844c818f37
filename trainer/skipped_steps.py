"""Updates that a phase skips for good, with their data, after it rolled back, and the reaction to a rejected update.

A skipped update counts as a step, changes nothing, and its sequences are not drawn again: every other update of the lineage keeps its
batch. `passed_over.json` in the run's folder lists the windows and is the first file that a roll-back writes. Only settings determine the
checkpoint to return to, so a run that is killed at any moment rolls back in the same way. Every checkpoint has a copy of the list in its
contract. A later checkpoint without the newest window belongs to an abandoned branch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phasewise.trainer.base.decision import Ruling, read_decisions, ruling_of, seen_of
from phasewise.trainer.base.errors import AsksPerson, CheckpointError, TrainingDiverged
from phasewise.trainer.base.identity import digest_of_file, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, is_committed, saved_steps
from phasewise.trainer.config import RunConfig, Steps, sequences_between
from phasewise.trainer.forecast import FORECAST

CONTRACT_NAME = "passed_over"
BY_THE_RECIPE = "the recipe"
Standing = Literal["valid", "given up", "foreign"]


class Window(NamedTuple):
    """The updates `[first, stop)`, counted from 0: steps `first + 1` to `stop`."""

    first: int
    stop: int

    def __str__(self) -> str:
        return f"step {self.stop}" if self.stop == self.first + 1 else f"steps {self.first + 1} to {self.stop}"


@dataclass(frozen=True)
class SkippedSteps:
    """The windows of all roll-backs of a run, in the order of the roll-backs."""

    windows: tuple[Window, ...] = ()

    def __contains__(self, update: int) -> bool:
        return any(window.first <= update < window.stop for window in self.windows)

    def __bool__(self) -> bool:
        return bool(self.windows)

    def merged(self) -> tuple[Window, ...]:
        """Return disjoint windows of the same updates, sorted by step."""
        found: list[Window] = []
        for window in sorted(self.windows):
            if found and window.first <= found[-1].stop:
                found[-1] = Window(found[-1].first, max(found[-1].stop, window.stop))
            else:
                found.append(window)
        return tuple(found)

    def sequences(self, run: RunConfig) -> int:
        """Return the number of sequences that the phase is not trained on."""
        return sum(sequences_between(run.batch, window.first, window.stop) for window in self.merged())

    def as_json(self) -> list[list[int]]:
        """Return the windows for contracts, results and the file."""
        return [list(window) for window in self.windows]

    def standing(self, step: int, contract: Mapping[str, Any]) -> Standing:
        """Return the standing of a checkpoint of step `step` with this contract, relative to the windows of the run."""
        known = tuple(Window(*window) for window in contract.get(CONTRACT_NAME, ()))
        if known != self.windows[: len(known)]:
            return "foreign"
        return "given up" if any(window.first < step for window in self.windows[len(known) :]) else "valid"


NOTHING = SkippedSteps()


class RollBack(NamedTuple):
    """A roll-back for reports."""

    window: Window
    sequences: int | None  # None if the batch size is unknown
    why: str
    decided_by: str  # `the recipe`, or a person with date and reason


def roll_backs_in(content: Mapping[str, Any], batch: Steps[int] | None) -> list[RollBack]:
    """Return the roll-backs in the content of `passed_over.json`. Raises ValueError, KeyError or TypeError for other content."""
    reasons, deciders = content.get("reasons", []), content.get("decided_by", [])
    found: list[RollBack] = []
    for number, (first, stop) in enumerate(content["windows"]):
        window = Window(int(first), int(stop))
        sequences = None if batch is None else sequences_between(batch, *window)
        why = str(reasons[number]) if number < len(reasons) else ""
        found.append(RollBack(window, sequences, why, str(deciders[number]) if number < len(deciders) else BY_THE_RECIPE))
    return found


def read_roll_backs(folder: Path, batch: Steps[int] | None) -> list[RollBack]:
    """Return the roll-backs of the run in a folder, or an empty list. Raises CheckpointError if the file is unreadable."""
    path = RunFolder(folder).passed_over
    try:
        return roll_backs_in(read_sealed(path), batch)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: expected the list of skipped updates, found an unreadable file ({error}). Copy the list from the last checkpoint "
            f"(`{CONTRACT_NAME}` in its contract), or move the folder away to restart the phase."
        ) from error


def read_skipped_steps(folder: Path) -> SkippedSteps:
    """Return the skipped updates of the run in a folder. Raises CheckpointError if the file is unreadable."""
    return SkippedSteps(tuple(one.window for one in read_roll_backs(folder, None)))


def write_skipped_steps(folder: Path, skipped: SkippedSteps, reasons: Iterable[str], decided_by: Iterable[str] = ()) -> None:
    """Write the windows, with reason and decider of every roll-back."""
    content = {"windows": skipped.as_json(), "reasons": list(reasons), "decided_by": list(decided_by)}
    write_sealed(RunFolder(folder).passed_over, content)


def window_of(run: RunConfig, step: int, skipped: SkippedSteps) -> Window:
    """Return the window to skip if the update that made `step` is rejected: from the checkpoint to return to, up to `step` and more."""
    assert run.recovery is not None
    policy = run.checkpoints
    by_rule = [at for at in range(run.start_step, step) if at in (run.start_step, *policy.at_steps) or at % policy.every_steps == 0]
    saved = [at for at in by_rule if at not in skipped]
    return Window(saved[max(0, len(saved) - run.recovery.checkpoints_back)], step + run.recovery.steps_more)


TABLE, CHECK, LEAVES = "recovery", "expect_no_update_that_must_not_be_kept", "expect_loss_within_forecast"


class Unstable(TrainingDiverged):
    """A rejected update that made step `step`. `finding` is `loss is nan`, a loss above the limit, or a mean loss outside a forecast.

    `forecast` is the digest of the forecast. Then the update itself is sound.
    """

    def __init__(self, run: RunConfig, step: int, finding: str, *, is_spike: bool = False, forecast: str | None = None) -> None:
        self.kept = f"The last checkpoint before it is kept in {run.output}."
        super().__init__(f"phase {run.phase}: {finding} at step {step}. {self.kept}")
        self.step, self.finding, self.is_spike, self.forecast = step, finding, is_spike, forecast


def _question(run: RunConfig, found: Unstable, skipped: SkippedSteps) -> dict[str, Any]:
    """The question in the form of a verdict. Only the location of its evidence is a path, so a home may be moved."""
    finding, step = found.finding, found.step
    if found.forecast:
        table, name, asks = FORECAST, LEAVES, "The mean loss stays within the band of the forecast."
        judged, decides, thresholds = {"the forecast": found.forecast}, {"run": run.digest}, {"step": step}
        limit, to_do = "the band of the forecast", "Approve to go on without the forecast. Reject to stop the phase."
    else:
        assert run.recovery is not None
        table, name, asks = TABLE, CHECK, "Every update has a loss and norms that are numbers, and no loss above the recipe's limit."
        window, most = window_of(run, step, skipped), run.recovery.max_loss
        checkpoints = RunFolder(run.output).checkpoints
        saved = [at for at in saved_steps(checkpoints) if at <= window.first and is_committed(checkpoints / str(at))]
        judged = {f"the start at step {run.start_step}": run.digest}
        if saved:
            judged = {f"checkpoint of step {saved[-1]}": digest_of_file(checkpoints / str(saved[-1]) / DIGESTS_NAME)}
        decides = {"run": run.digest, "passed over before": digest_of_json(skipped.as_json())}
        thresholds = {**run.recovery.model_dump(mode="json"), "step": step, "window": list(window)}
        limit = f"mean + {most.sigmas:g} deviations over up to {most.window} updates" if most else "a finite number"
        to_do = (
            f"Approve to go back to step {window.first} and to pass over {window} for good, with "
            f"{sequences_between(run.batch, *window):,} sequences. Reject to stop the phase."
        )
    check = {
        "name": name, "table": table, "severity": "critical", "passes": False, "outcome": "failed", "observed": finding, "accepted": [],
        "asks": asks,
    }  # fmt: skip
    reason = {
        "expectation": name, "severity": "critical", "what": f"{finding} at step {step}", "found": finding, "limit": limit,
        "where": f"step {step} of {run.stop_step}", "what_to_do": to_do,
    }  # fmt: skip
    return {
        "subject": f"{run.recipe}/{run.scale}/{run.phase} training", "suite": table, "suite_version": "1", "passes": False,
        "judged": judged, "decided_by": decides, "thresholds": thresholds, "accepts": [],
        "asks_people": {"approvable": [{"table": table, "check": name, "phases": None}], "on_warnings": False},
        "reasons": [reason], "checks": [check], "evidence": run.output, "tables": {}, "notes": [],
    }  # fmt: skip


def open_question(run: RunConfig, skipped: SkippedSteps) -> tuple[Unstable, Ruling] | None:
    """Return the rejected update and the ruling of the question in the run's folder, or None.

    A question about other settings, windows or checkpoints is void. Raises CheckpointError if the question is unreadable, and VerdictError
    if the decision on it is unreadable.
    """
    path = RunFolder(run.output).question
    try:
        written: Mapping[str, Any] = read_sealed(path)
        forecast = written["judged"]["the forecast"] if written["suite"] == FORECAST else None
        found = Unstable(run, int(written["thresholds"]["step"]), str(written["reasons"][0]["found"]), forecast=forecast)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path}: expected a question to a person, found an unreadable file ({error}). Delete the file.") from None
    asks = forecast or (run.recovery and run.recovery.action == "ask")
    if not asks or not run.start_step < found.step <= run.stop_step:
        return None
    current = _question(run, found, skipped)
    if seen_of(current) != seen_of(written):
        return None
    return found, ruling_of(current, read_decisions(path))


def _decide_by_person(run: RunConfig, found: Unstable, skipped: SkippedSteps, at: str, action: str, *, write: bool) -> str:
    """Return the words of the decision that lets the training go on. Raises AsksPerson before a decision, TrainingDiverged after a no."""
    path, content = RunFolder(run.output).question, _question(run, found, skipped)
    ruling = ruling_of(content, read_decisions(path))
    if write and ruling.state == "waits":
        is_new = open_question(run, skipped) is None
        write_sealed(path, content)
        if is_new:
            append_event(run.output, "asked", found.step, f"{found.finding} at step {found.step}: a person is asked")
    if not ruling.lets_go_on and ruling.decision:
        raise TrainingDiverged(f"{at}, and to {action} was {ruling.decision.words}. {found.kept}") from found
    if not ruling.lets_go_on:
        asks = "it left its forecast" if found.forecast else "its recovery is `ask`"
        raise AsksPerson(f"{at}, and {asks}: a person decides by `phasewise approve`. {found.kept}") from found
    assert ruling.decision is not None
    return ruling.decision.words


def decide(run: RunConfig, found: Unstable, skipped: SkippedSteps, *, write: bool = True) -> SkippedSteps:
    """Return the windows including this roll-back. With `write`, also write the list and the events.

    Raises:
        AsksPerson: a person must decide the question in the run's folder.
        TrainingDiverged: the phase stops: it has no recovery, a person rejected to go on, or a roll-back does not help.
    """
    folder = Path(run.output)
    at = f"phase {run.phase}: {found.finding} at step {found.step}"
    if found.forecast:
        _decide_by_person(run, found, skipped, at, "go on", write=write)
        return skipped
    if found.is_spike and write:
        append_event(folder, "spike", found.step, found.finding)
    if run.recovery is None:
        raise found

    window = window_of(run, found.step, skipped)
    obstacle = ""
    if len(skipped.windows) >= run.recovery.max_times:
        obstacle = f"it has rolled back {len(skipped.windows)} times, as often as the recipe allows (recovery.max_times)"
    elif window.stop >= run.stop_step:
        obstacle = f"to skip {window} would leave nothing to train before the phase's end, step {run.stop_step}"
    if obstacle:
        raise TrainingDiverged(f"{at}, and {obstacle}. {found.kept}") from found

    decided = ""
    if run.recovery.action == "ask":
        decided = _decide_by_person(run, found, skipped, at, "roll back", write=write)

    if write:
        text = f"{found.finding} at step {found.step}: back to step {window.first}, {window} passed over with their data"
        known = read_roll_backs(folder, None)
        windows = SkippedSteps((*(one.window for one in known), window))
        deciders = [*(one.decided_by for one in known), decided or BY_THE_RECIPE]
        write_skipped_steps(folder, windows, [*(one.why for one in known), text], deciders)
        append_event(folder, "rolled_back", found.step, f"{text}{f'; {decided}' if decided else ''}")
    return SkippedSteps((*skipped.windows, window))


def after_answer(run: RunConfig, skipped: SkippedSteps, *, write: bool = True) -> SkippedSteps:
    """Return the windows after a person's answer, or unchanged if no question is open.

    All processes agree: if the first process has already written its list, the question is not open for the others. Launchers call this
    without `write`, for the error that would end the trainer at its start.

    Raises:
        AsksPerson: no person has decided yet.
        TrainingDiverged: a person rejected the roll-back.
    """
    question = open_question(run, skipped)
    return skipped if question is None else decide(run, question[0], skipped, write=write)
