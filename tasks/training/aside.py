"""A folder that holds another run is renamed, never mixed with this one and never deleted."""

from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.training.same_run import has_result_of, is_same, read_run
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig


def set_aside_another_run(run: RunConfig) -> None:
    """Rename the folder of `run` where it holds another one: other data, other settings. So is one that lost its `run.json`: nobody knows
    what its checkpoints were trained as.
    """
    folder = Path(run.output)
    is_known = RunFolder(folder).run_file.exists()
    if not is_known and not RunFolder(folder).checkpoints.exists():
        return
    written = read_run(folder)
    if written and is_same(written, run):
        return
    if has_result_of(folder, run):
        say(f"{run.phase}: {RunFolder(folder).run_file} is missing or was changed after the run ended; it is written again")
        return
    found = _name_of_what_is_there(folder, written)
    number = 1
    while (aside := RunFolder(folder).superseded(found, number)).exists():
        number += 1
    folder.rename(aside)
    had = "had other data or settings" if is_known else "has lost its run.json"
    say(f"{run.phase}: what was trained before {had}; it is kept in {aside.name}")


def _name_of_what_is_there(folder: Path, written: RunConfig | None) -> str:
    path = RunFolder(folder).run_file
    if written:
        return written.digest
    return digest_of_bytes(path.read_bytes()) if path.exists() else "unknown"
