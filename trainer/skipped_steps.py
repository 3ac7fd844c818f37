"""Updates that a phase skips for good, with their data, after it rolled back.

A skipped update counts as a step, changes nothing, and its sequences are not drawn again: every other update of the lineage keeps its
batch. `passed_over.json` in the run's folder lists the windows and is the first file that a roll-back writes. Only settings determine the
checkpoint to return to, so a run that is killed at any moment rolls back in the same way. Every checkpoint has a copy of the list in its
contract. A later checkpoint without the newest window belongs to an abandoned branch.
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
