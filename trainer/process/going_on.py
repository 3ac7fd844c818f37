"""What a run's updates are computed under is written down in its folder; where a run goes on under other conditions, that is an event."""

import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import jax
from pydantic import ValidationError

from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import append_event
from phasewise.trainer.process.conditions import Conditions, conditions_of
from phasewise.trainer.process.distributed import is_first
from phasewise.trainer.process.fence import Alone


def note_conditions(run: RunConfig, saved_step: int | None, *, alone: Alone = nullcontext) -> str | None:
    """Write down the conditions of now, and say what of them is not as it was when the checkpoint that is gone on from was made.

    Args:
        saved_step: of that checkpoint; None where the run begins.
        alone: nobody takes the folder over within it.
    """
    if not is_first():
        return None
    folder = RunFolder.at(run.output)
    before, now = read_conditions(folder.path), conditions_now()
    if before == now:
        return None
    with alone():
        write_sealed(folder.conditions, now.model_dump(mode="json"))
    if saved_step is None or before is None:
        return None
    changed = "; ".join(before.differences(now))
    text = f"going on from step {saved_step:,} under other conditions, on the same batches, and perhaps no longer bit for bit: {changed}"
    print(f"trainer: {text}", file=sys.stderr, flush=True)
    append_event(run.output, "replanned", saved_step, text)
    return text


def read_conditions(folder: Path) -> Conditions | None:
    """Those that were written down last; None where there are none, or they do not read."""
    with suppress(OSError, ValueError, ValidationError):
        return Conditions.model_validate(read_sealed(RunFolder(folder).conditions, may_lack_seal=True))
    return None


def conditions_now() -> Conditions:
    """Those of this process, and of all that are joined with it."""
    device = jax.devices()[0]
    return conditions_of(os.environ, platform_name=device.platform, device=device.device_kind, processes=jax.process_count())
