"""Where training has gone wrong, and what follows: stop, ask a person, or roll back and pass over the data."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from phasewise.trainer.asking import asked, question
from phasewise.trainer.base.decision import Ruling, read_decisions, ruling_of
from phasewise.trainer.base.errors import AsksPerson, TrainingDiverged
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RollingLimit, RunConfig
from phasewise.trainer.events import append_event
from phasewise.trainer.metrics import Row
from phasewise.trainer.passed_over import BY_THE_RECIPE, PassedOver, deciders_in, reasons_in, window_of, write_passed_over


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


def decide(run: RunConfig, found: Unstable, passed_over: PassedOver, *, write: bool = True) -> PassedOver:
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
    write_passed_over(folder, after, [*reasons_in(folder), text], [*deciders_in(folder), by])
    append_event(folder, "rolled_back", found.step, f"{text}{f'; {decided}' if decided else ''}")
    return after


def after_answer(run: RunConfig, passed_over: PassedOver, *, write: bool = True) -> PassedOver:
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


def check_answered(run: RunConfig, passed_over: PassedOver) -> None:
    """Refuse to start what would end at once: for launchers, before anything is started.

    Raises:
        AsksPerson, TrainingDiverged: as `after_answer`.
    """
    found = asked(run, passed_over)
    if found is not None:
        _check_ruling(run, Unstable(run, found.step, found.what), found.ruling)


def _let_pass(run: RunConfig, found: Unstable, passed_over: PassedOver, *, write: bool) -> str:
    """Who let the roll-back pass, and why. What nobody has decided of is asked."""
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


def _why_not(run: RunConfig, window: tuple[int, int], passed_over: PassedOver) -> str:
    assert run.recovery is not None
    if len(passed_over.windows) >= run.recovery.max_times:
        return f"it has rolled back {len(passed_over.windows)} times, as often as the recipe allows (recovery.max_times)"
    if window[1] >= run.stop_step:
        return (
            f"to pass over steps {window[0] + 1} to {window[1]} would leave nothing to train before the phase's end, step {run.stop_step}"
        )
    return ""
