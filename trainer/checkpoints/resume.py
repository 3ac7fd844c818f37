"""Whether a run may resume from a checkpoint: the checkpoint holds the run that it was trained as, and the two are compared."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import committed_files, saved_steps
from phasewise.trainer.checkpoints.state import ABOUT, MAX_NAMED, read_about
from phasewise.trainer.config import LearningRateSegment, RunConfig
from phasewise.trainer.config.identity import NOTHING, Difference, bound_by_checkpoint, differences_between
from phasewise.trainer.schedule import learning_rate_at

_SEGMENTS = TypeAdapter(tuple[LearningRateSegment, ...])


def check_resume(run: RunConfig) -> None:
    """Refuse to resume a run with other settings than its newest checkpoint was trained with. Nothing is written.

    A field that only one version of the code knows is not compared: standard error names it, once.

    Raises:
        CheckpointError: the fields, with both values.
    """
    folder = RunFolder.at(run.output).checkpoints
    path = next((folder / str(step) for step in reversed(saved_steps(folder)) if _has_its_record(folder / str(step))), None)
    if path is None:
        return
    saved = read_about(path)["run"]
    check_same_run(path, saved, run)
    if unknown := [one.field for one in _compared(saved, run)[1]]:
        print(
            f"trainer: {path} was written by another version of the code: {name_some(unknown, MAX_NAMED, ', ')} cannot be compared",
            file=sys.stderr,
            flush=True,
        )


def check_same_run(path: Path, saved: Any, run: RunConfig) -> None:
    """Refuse a checkpoint that was trained with other settings than the run has.

    Args:
        saved: the run that the checkpoint holds.

    Raises:
        CheckpointError: the fields, with both values.
    """
    if found := [*_compared(saved, run)[0], *_past_learning_rate(saved, run, int(path.name))]:
        named = name_some([f"{one.field} is {one.before} in the checkpoint and {one.now} in run.json" for one in found], MAX_NAMED, "; ")
        raise CheckpointError(
            f"{path} was trained with other settings: {named}. Restore the checkpoint's values in run.json, or move {run.output} away to "
            "train from the beginning."
        )


def _has_its_record(path: Path) -> bool:
    """Whether what a committed checkpoint says of itself is as it was written. A damaged one is reported when a whole one is looked for."""
    files = committed_files(path)
    record = {} if isinstance(files, str) else {path / name: digest for name, (_, digest) in files.items() if name.startswith(f"{ABOUT}/")}
    return bool(record) and all(name.is_file() and digest_of_file(name) == digest for name, digest in record.items())


def _compared(saved: Any, run: RunConfig) -> tuple[list[Difference], list[Difference]]:
    """The fields that differ, and those that cannot be compared because another version wrote the checkpoint."""
    now = bound_by_checkpoint(run.model_dump(mode="json"))
    try:
        before = RunConfig.model_validate(saved).model_dump(mode="json")
    except ValidationError:
        found = list(differences_between(bound_by_checkpoint(saved if isinstance(saved, dict) else {}), now))
        unknown = [one for one in found if NOTHING in (one.before, one.now)]
        return [one for one in found if one not in unknown], unknown
    return list(differences_between(bound_by_checkpoint(before), now)), []


def _past_learning_rate(saved: Any, run: RunConfig, step: int) -> list[Difference]:
    """The first update before the checkpoint that would have another learning rate now. How the segments are cut does not count."""
    try:
        before = _SEGMENTS.validate_python(saved["learning_rate"] if isinstance(saved, Mapping) else ())
    except (ValidationError, KeyError):  # another version's
        return []
    if not before or _up_to(before, step) == _up_to(run.learning_rate, step):
        return []
    for update in range(run.start_step, step):
        was, now = learning_rate_at(before, update), learning_rate_at(run.learning_rate, update)
        if np.float32(was) != np.float32(now):
            return [Difference(f"learning_rate of update {update + 1}", f"{was:g}", f"{now:g}")]
    return []


def _up_to(segments: tuple[LearningRateSegment, ...], step: int) -> tuple[LearningRateSegment, ...]:
    return tuple(segment for segment in segments if segment.start_step < step)
