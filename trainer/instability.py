"""Reaction to an update that must be rejected: stop, wait for a person, or roll back and skip the data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.trainer.base.decision import Ruling, read_decisions, ruling_of, seen_of
from phasewise.trainer.base.errors import AsksPerson, CheckpointError, TrainingDiverged
from phasewise.trainer.base.identity import digest_of_file, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, is_committed, saved_steps
from phasewise.trainer.config import RunConfig, sequences_between
from phasewise.trainer.skipped_steps import BY_THE_RECIPE, SkippedSteps, read_roll_backs, window_of, write_skipped_steps

TABLE, CHECK = "recovery", "expect_no_update_that_must_not_be_kept"


class Unstable(TrainingDiverged):
    """A rejected update that made step `step`. `finding` is `loss is nan`, or a loss above the limit."""

    def __init__(self, run: RunConfig, step: int, finding: str, *, is_spike: bool = False) -> None:
        self.kept = f"The last checkpoint before it is kept in {run.output}."
        super().__init__(f"phase {run.phase}: {finding} at step {step}. {self.kept}")
        self.step, self.finding, self.is_spike = step, finding, is_spike


def _question(run: RunConfig, found: Unstable, skipped: SkippedSteps) -> dict[str, Any]:
    """The question in the form of a verdict. Only the location of its evidence is a path, so a home may be moved."""
    assert run.recovery is not None
    finding, step, window = found.finding, found.step, window_of(run, found.step, skipped)
    checkpoints, most = RunFolder(run.output).checkpoints, run.recovery.max_loss
    saved = [at for at in saved_steps(checkpoints) if at <= window.first and is_committed(checkpoints / str(at))]
    judged = {f"the start at step {run.start_step}": run.digest}
    if saved:
        judged = {f"checkpoint of step {saved[-1]}": digest_of_file(checkpoints / str(saved[-1]) / DIGESTS_NAME)}
    check = {
        "name": CHECK, "table": TABLE, "severity": "critical", "passes": False, "outcome": "failed", "observed": finding, "accepted": [],
        "asks": "Every update has a loss and norms that are numbers, and no loss above the recipe's limit.",
    }  # fmt: skip
    reason = {
        "expectation": CHECK,
        "severity": "critical",
        "what": f"{finding} at step {step}",
        "found": finding,
        "limit": f"mean + {most.sigmas:g} deviations over up to {most.window} updates" if most else "a finite number",
        "where": f"step {step} of {run.stop_step}",
        "what_to_do": f"Approve to go back to step {window.first} and to pass over {window} for good, with "
        f"{sequences_between(run.batch, *window):,} sequences. Reject to stop the phase.",
    }
    return {
        "subject": f"{run.recipe}/{run.scale}/{run.phase} training",
        "suite": TABLE,
        "suite_version": "1",
        "passes": False,
        "judged": judged,
        "decided_by": {"run": run.digest, "passed over before": digest_of_json(skipped.as_json())},
        "thresholds": {**run.recovery.model_dump(mode="json"), "step": step, "window": list(window)},
        "accepts": [],
        "asks_people": {"approvable": [{"table": TABLE, "check": CHECK, "phases": None}], "on_warnings": False},
        "reasons": [reason],
        "checks": [check],
        "evidence": run.output,
        "tables": {},
        "notes": [],
    }


def open_question(run: RunConfig, skipped: SkippedSteps) -> tuple[Unstable, Ruling] | None:
    """Return the rejected update and the ruling of the question in the run's folder, or None.

    A question about other settings, windows or checkpoints is void. Raises CheckpointError if the question is unreadable, and VerdictError
    if the decision on it is unreadable.
    """
    path = RunFolder(run.output).question
    if run.recovery is None or run.recovery.action != "ask":
        return None
    try:
        written: Mapping[str, Any] = read_sealed(path)
        found = Unstable(run, int(written["thresholds"]["step"]), str(written["reasons"][0]["found"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path}: expected a question to a person, found an unreadable file ({error}). Delete the file.") from None
    if not run.start_step < found.step <= run.stop_step:
        return None
    current = _question(run, found, skipped)
    if seen_of(current) != seen_of(written):
        return None
    return found, ruling_of(current, read_decisions(path))


def decide(run: RunConfig, found: Unstable, skipped: SkippedSteps, *, write: bool = True) -> SkippedSteps:
    """Return the windows including this roll-back. With `write`, also write the list and the events.

    Raises:
        AsksPerson: a person must decide the question in the run's folder.
        TrainingDiverged: the phase stops: it has no recovery, a person rejected the roll-back, or a roll-back does not help.
    """
    folder = Path(run.output)
    if found.is_spike and write:
        append_event(folder, "spike", found.step, found.finding)
    if run.recovery is None:
        raise found

    window = window_of(run, found.step, skipped)
    at = f"phase {run.phase}: {found.finding} at step {found.step}"
    obstacle = ""
    if len(skipped.windows) >= run.recovery.max_times:
        obstacle = f"it has rolled back {len(skipped.windows)} times, as often as the recipe allows (recovery.max_times)"
    elif window.stop >= run.stop_step:
        obstacle = f"to skip {window} would leave nothing to train before the phase's end, step {run.stop_step}"
    if obstacle:
        raise TrainingDiverged(f"{at}, and {obstacle}. {found.kept}") from found

    decided = ""
    if run.recovery.action == "ask":
        path = RunFolder(run.output).question
        content = _question(run, found, skipped)
        ruling = ruling_of(content, read_decisions(path))
        if write and ruling.state == "waits":
            is_new = open_question(run, skipped) is None
            write_sealed(path, content)
            if is_new:
                append_event(folder, "asked", found.step, f"{found.finding} at step {found.step}: a person is asked")
        if not ruling.lets_go_on and ruling.decision:
            raise TrainingDiverged(f"{at}, and to roll back was {ruling.decision.words}. {found.kept}") from found
        if not ruling.lets_go_on:
            raise AsksPerson(f"{at}, and its recovery is `ask`: a person decides by `phasewise approve`. {found.kept}") from found
        assert ruling.decision is not None
        decided = ruling.decision.words

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
