"""Updates that a phase passes over for good, with their data, because it rolled back: which, and what a checkpoint knows of it.

An update is passed over as one is that skip-step skips: it counts as a step, it changes nothing, and its sequences are not drawn again. So
every other update, of this phase and of those after it, has the batch that it would have had.

The list is `passed_over.json` of the run's folder. It is written before anything else of a roll-back is done. Which checkpoint is gone
back to follows from the settings alone, and not from what happens to be saved; a run that is killed at any moment rolls back in the same
way. Every checkpoint names the list as it was. One that lies after the point gone back to, and does not know of it, is of a branch that was
given up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig, Steps, sequences_between

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
    """The windows of all roll-backs of a run, in the order in which they came."""

    windows: tuple[Window, ...] = ()

    def __contains__(self, update: int) -> bool:
        return any(window.first <= update < window.stop for window in self.windows)

    def __bool__(self) -> bool:
        return bool(self.windows)

    def after(self, window: Window) -> "SkippedSteps":
        """With one more."""
        return SkippedSteps((*self.windows, window))

    def merged(self) -> tuple[Window, ...]:
        """The same updates in windows that do not touch, in order of steps."""
        found: list[Window] = []
        for window in sorted(self.windows):
            if found and window.first <= found[-1].stop:
                found[-1] = Window(found[-1].first, max(found[-1].stop, window.stop))
            else:
                found.append(window)
        return tuple(found)

    def sequences(self, run: RunConfig) -> int:
        """How many sequences of the phase are not trained on."""
        return sum(sequences_between(run.batch, window.first, window.stop) for window in self.merged())

    def as_json(self) -> list[list[int]]:
        """As contracts, results and the file hold it."""
        return [list(window) for window in self.windows]

    def standing(self, step: int, contract: Mapping[str, Any]) -> Standing:
        """What a checkpoint of this run is that was saved at `step` with this contract."""
        known = skipped_steps_in(contract).windows
        if known != self.windows[: len(known)]:
            return "foreign"
        return "given up" if any(window.first < step for window in self.windows[len(known) :]) else "valid"


NOTHING = SkippedSteps()


def skipped_steps_in(contract: Mapping[str, Any]) -> SkippedSteps:
    """What a contract names."""
    return SkippedSteps(tuple(Window(*window) for window in contract.get(CONTRACT_NAME, ())))


def read_skipped_steps(folder: Path) -> SkippedSteps:
    """The list of a run's folder; empty where it never rolled back.

    Raises:
        CheckpointError: the file does not read.
    """
    path = RunFolder(folder).passed_over
    try:
        return SkippedSteps(tuple(Window(int(first), int(stop)) for first, stop in read_sealed(path, may_lack_seal=True)["windows"]))
    except FileNotFoundError:
        return SkippedSteps()
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} must say which updates are passed over, and does not read ({error}). The last checkpoint names them "
            f"(`{CONTRACT_NAME}` in its contract): write them there again, or move the folder away to start the phase from its beginning."
        ) from error


def write_skipped_steps(folder: Path, passed_over: SkippedSteps, reasons: Iterable[str], decided_by: Iterable[str] = ()) -> None:
    """Write the list, for people with what was found each time, and who decided."""
    said = {"windows": passed_over.as_json(), "reasons": list(reasons), "decided_by": list(decided_by)}
    write_sealed(RunFolder(folder).passed_over, said)


def reasons_in(folder: Path) -> list[str]:
    """What was found each time."""
    path = RunFolder(folder).passed_over
    return list(read_sealed(path, may_lack_seal=True).get("reasons", [])) if path.exists() else []


def deciders_in(folder: Path) -> list[str]:
    """Who decided each time. Lists of before say nothing of it: then the recipe did."""
    path = RunFolder(folder).passed_over
    if not path.exists():
        return []
    content = read_sealed(path, may_lack_seal=True)
    return list(content.get("decided_by", [BY_THE_RECIPE] * len(content.get("windows", []))))


class RollBack(NamedTuple):
    """A roll-back, for people.

    Attributes:
        window: the updates that are passed over.
        sequences: how many sequences of data are passed over with them; None where that is not known.
        why: what was found, and what followed.
        decided_by: the recipe, or who let it pass, when and why.
    """

    window: Window
    sequences: int | None
    why: str
    decided_by: str


def read_roll_backs(run: RunConfig) -> list[RollBack]:
    """The roll-backs of a run; none where it never rolled back.

    Raises:
        CheckpointError: the file does not read.
    """
    folder = Path(run.output)
    return roll_backs_in(read_sealed(RunFolder(folder).passed_over, may_lack_seal=True), run.batch) if read_skipped_steps(folder) else []


def roll_backs_in(content: Mapping[str, Any], batch: Steps[int] | None) -> list[RollBack]:
    """The roll-backs of a run, as its file has them, in the order in which they came.

    Raises:
        ValueError, KeyError, TypeError: the file is no such list.
    """
    windows = [Window(int(first), int(stop)) for first, stop in content["windows"]]
    reasons = [str(one) for one in content.get("reasons", [])]
    deciders = [str(one) for one in content.get("decided_by", [])]
    return [
        RollBack(
            window,
            None if batch is None else sequences_between(batch, *window),
            reasons[place] if place < len(reasons) else "",
            deciders[place] if place < len(deciders) else BY_THE_RECIPE,
        )
        for place, window in enumerate(windows)
    ]


def window_of(run: RunConfig, step: int, passed_over: SkippedSteps) -> Window:
    """What is passed over where the update that made `step` is not to be kept: from the checkpoint to go back to, up to it and more."""
    assert run.recovery is not None
    saved = [at for at in range(run.start_step, step) if _is_saved_by_rule(run, at) and at not in passed_over]
    first = saved[max(0, len(saved) - run.recovery.checkpoints_back)]
    return Window(first, step + run.recovery.steps_more)


def _is_saved_by_rule(run: RunConfig, step: int) -> bool:
    return step == run.start_step or step % run.checkpoints.every_steps == 0 or step in run.checkpoints.at_steps
