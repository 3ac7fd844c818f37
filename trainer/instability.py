"""Where training has gone wrong, and what follows: stop, ask a person, or roll back and pass over the data."""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phasewise.trainer.base.decision import Ruling, question_of, read_decisions, ruling_of
from phasewise.trainer.base.errors import AsksPerson, CheckpointError, TrainingDiverged
from phasewise.trainer.base.identity import digest_of_file, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, is_committed, saved_steps
from phasewise.trainer.config import RollingLimit, RunConfig, sequences_between
from phasewise.trainer.metrics import Row
from phasewise.trainer.skipped_steps import BY_THE_RECIPE, SkippedSteps, deciders_in, reasons_in, window_of, write_skipped_steps

TABLE, CHECK = "recovery", "expect_no_update_that_must_not_be_kept"

ASKS = "Every update has a loss and norms that are numbers, and no loss above the recipe's limit."


class Asked(NamedTuple):
    """A question, and what follows from what people decided of it.

    Attributes:
        step: the update that made this step must not be kept.
        what: what was found, in words.
    """

    step: int
    what: str
    ruling: Ruling


class Unstable(TrainingDiverged):
    """An update whose result must not be kept.

    Attributes:
        step: the update made this step.
        what: what was found, in words.
    """

    def __init__(self, run: RunConfig, step: int, what: str, *, is_spike: bool = False) -> None:
        super().__init__(f"phase {run.phase}: {what} at step {step}. The last checkpoint before it is kept in {run.output}.")
        self.step, self.what, self.is_spike = step, what, is_spike


class SpikeWatch:
    """Compares each loss with those of the updates before it. The rows that a run goes on from are its memory."""

    def __init__(self, run: RunConfig, rows: Sequence[Row]) -> None:
        self._run = run
        self._limit: RollingLimit | None = run.recovery.max_loss if run.recovery else None
        window = self._limit.window if self._limit else 1
        self._losses: deque[float] = deque((row["loss"] for row in rows if not row.get("skipped")), maxlen=window)

    def look(self, step: int, loss: float) -> None:
        """Judge an update that was applied, and remember it.

        Raises:
            Unstable: its loss lies above the recipe's limit.
        """
        if self._limit is None:
            return
        if len(self._losses) >= self._limit.min_samples:
            before = np.array(self._losses)
            most = float(before.mean() + self._limit.sigmas * before.std())
            if loss > most:
                what = f"the loss is {loss:.4g}, above {most:.4g}, the limit over the {len(before)} updates before it"
                raise Unstable(self._run, step, what, is_spike=True)
        self._losses.append(loss)


def question(run: RunConfig, step: int, what: str, passed_over: SkippedSteps) -> dict[str, Any]:
    """What is asked, in the form of a verdict. It names no place, so a home may be moved; only where its evidence lies is a path."""
    assert run.recovery is not None
    window = window_of(run, step, passed_over)
    sequences = sequences_between(run.batch, *window)
    check = {"name": CHECK, "table": TABLE, "asks": ASKS, "severity": "critical", "passes": False, "outcome": "failed", "observed": what}
    reason = {
        "expectation": CHECK,
        "severity": "critical",
        "what": f"{what} at step {step}",
        "found": what,
        "limit": _limit(run),
        "where": f"step {step} of {run.stop_step}",
        "what_to_do": f"Approve to go back to step {window.first} and to pass over {window} for good, with {sequences:,} sequences. Reject "
        "to stop the phase.",
    }
    return {
        "subject": f"{run.recipe}/{run.scale}/{run.phase} training",
        "suite": TABLE,
        "suite_version": "1",
        "passes": False,
        "judged": _checkpoint(run, window.first),
        "decided_by": {"run": run.digest, "passed over before": digest_of_json(passed_over.as_json())},
        "thresholds": {**run.recovery.model_dump(mode="json"), "step": step, "window": list(window)},
        "accepts": [],
        "asks_people": {"approvable": [{"table": TABLE, "check": CHECK, "phases": None}], "on_warnings": False},
        "reasons": [reason],
        "checks": [{**check, "accepted": []}],
        "evidence": run.output,
        "tables": {},
        "notes": [],
    }


def asked(run: RunConfig, passed_over: SkippedSteps) -> Asked | None:
    """The question that is open in the run's folder. None where nothing is asked, or it was asked of something else than is there now.

    Raises:
        CheckpointError: the question does not read.
        VerdictError: the decision beside it does not read.
    """
    path = RunFolder.at(run.output).question
    if run.recovery is None or run.recovery.action != "ask":
        return None
    try:
        written: Mapping[str, Any] = read_sealed(path, may_lack_seal=True)
        step, what = int(written["thresholds"]["step"]), str(written["reasons"][0]["found"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} must say what a person is asked, and does not read ({error}): delete it, and start again.") from None
    if not run.start_step < step <= run.stop_step:
        return None
    now = question(run, step, what, passed_over)
    if question_of(now) != question_of(written):
        return None
    return Asked(step, what, ruling_of(now, read_decisions(path)))


def _limit(run: RunConfig) -> str:
    assert run.recovery is not None
    limit = run.recovery.max_loss
    return "a finite number" if limit is None else f"mean + {limit.sigmas:g} deviations over up to {limit.window} updates"


def _checkpoint(run: RunConfig, step: int) -> dict[str, str]:
    folder = RunFolder.at(run.output).checkpoints
    for saved in reversed(saved_steps(folder)):
        if saved <= step and is_committed(folder / str(saved)):
            return {f"checkpoint of step {saved}": digest_of_file(folder / str(saved) / DIGESTS_NAME)}
    return {f"the start at step {run.start_step}": run.digest}


def decide(run: RunConfig, found: Unstable, passed_over: SkippedSteps, *, write: bool = True) -> SkippedSteps:
    """The list with the window of this roll-back, written to the run's folder by the process that writes.

    Raises:
        AsksPerson: a person must decide; what is asked is written to the run's folder.
        TrainingDiverged: the phase stops here: it names no recovery, a person rejected it, or rolling back does not help.
    """
    folder = Path(run.output)
    if found.is_spike and write:
        append_event(folder, "spike", found.step, found.what)
    if run.recovery is None:
        raise found
    window = window_of(run, found.step, passed_over)
    why = _why_not(run, window, passed_over)
    if why:
        raise TrainingDiverged(
            f"phase {run.phase}: {found.what} at step {found.step}, and {why}. The last checkpoint before it is kept in {run.output}."
        ) from found
    decided = _let_pass(run, found, passed_over, write=write) if run.recovery.action == "ask" else ""
    after = passed_over.after(window)
    if not write:
        return after
    text = f"{found.what} at step {found.step}: back to step {window.first}, {window} passed over with their data"
    by = decided or BY_THE_RECIPE
    write_skipped_steps(folder, after, [*reasons_in(folder), text], [*deciders_in(folder), by])
    append_event(folder, "rolled_back", found.step, f"{text}{f'; {decided}' if decided else ''}")
    return after


def after_answer(run: RunConfig, passed_over: SkippedSteps, *, write: bool = True) -> SkippedSteps:
    """What is passed over by what people answered since the run stopped to ask; as it is where nothing is asked.

    Several processes come to the same: where the first has written its list already, the question is not open to the others.

    Raises:
        AsksPerson: nobody has decided yet.
        TrainingDiverged: it was rejected.
    """
    found = asked(run, passed_over)
    if found is None:
        return passed_over
    return decide(run, Unstable(run, found.step, found.what), passed_over, write=write)


def check_answered(run: RunConfig, passed_over: SkippedSteps) -> None:
    """Refuse to start what would end at once: for launchers, before anything is started.

    Raises:
        AsksPerson, TrainingDiverged: as `after_answer`.
    """
    found = asked(run, passed_over)
    if found is not None:
        _check_ruling(run, Unstable(run, found.step, found.what), found.ruling)


def _let_pass(run: RunConfig, found: Unstable, passed_over: SkippedSteps, *, write: bool) -> str:
    path = RunFolder.at(run.output).question
    content = question(run, found.step, found.what, passed_over)
    ruling = ruling_of(content, read_decisions(path))
    if write and ruling.state == "waits":
        is_new = asked(run, passed_over) is None
        write_sealed(path, content)
        if is_new:
            append_event(run.output, "asked", found.step, f"{found.what} at step {found.step}: a person is asked")
    _check_ruling(run, found, ruling)
    assert ruling.decision is not None
    return ruling.decision.words


def _check_ruling(run: RunConfig, found: Unstable, ruling: Ruling) -> None:
    if ruling.lets_go_on:
        return
    if ruling.decision:
        raise TrainingDiverged(
            f"phase {run.phase}: {found.what} at step {found.step}, and to roll back was {ruling.decision.words}. The last checkpoint "
            f"before it is kept in {run.output}."
        ) from found
    raise AsksPerson(
        f"phase {run.phase}: {found.what} at step {found.step}, and its recovery is `ask`: a person decides by `phasewise approve`. The "
        f"last checkpoint before it is kept in {run.output}."
    ) from found


def _why_not(run: RunConfig, window: tuple[int, int], passed_over: SkippedSteps) -> str:
    assert run.recovery is not None
    if len(passed_over.windows) >= run.recovery.max_times:
        return f"it has rolled back {len(passed_over.windows)} times, as often as the recipe allows (recovery.max_times)"
    if window[1] >= run.stop_step:
        return (
            f"to pass over steps {window[0] + 1} to {window[1]} would leave nothing to train before the phase's end, step {run.stop_step}"
        )
    return ""
