"""A run that goes on by another plan than before: on the same batches, no longer bit for bit. It is said, and written as an event."""

from phasewise.tasks.progress import say
from phasewise.tasks.training.differences import execution_differences, name_differences
from phasewise.tasks.training.launcher import finished_result, last_saved_step
from phasewise.tasks.training.same_run import is_same, read_run
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import append_event


def note_changed_plan(run: RunConfig) -> str | None:
    """Say what decides bits and is not as it was when the last checkpoint was saved; None where nothing is, nothing is saved, or all is
    trained."""
    written = read_run(as_path(run.output))
    if written is None or not is_same(written, run) or finished_result(run):
        return None
    saved, changed = last_saved_step(run), execution_differences(written, run)
    if saved is None or not changed:
        return None
    text = f"going on from step {saved:,} by another plan, on the same batches, and no longer bit for bit: {name_differences(changed)}"
    say(f"{run.phase}: {text}")
    append_event(run.output, "replanned", saved, text)
    return text
