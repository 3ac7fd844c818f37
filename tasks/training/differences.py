"""What differs between a run and the one that is in its folder: field by field, old and new value."""

from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.config import DECIDES_BITS, RunConfig
from phasewise.trainer.config.identity import NOTHING, Difference, differences_between


def differences(run: RunConfig) -> tuple[Difference, ...]:
    """What decides a run's weights and is not as it was when the run in its folder was trained; empty where there is none, or the same.

    A file from before a field existed, or one that can't be read any more, is compared as it is written.
    """
    path = RunFolder.at(run.output).run_file
    if not path.exists():
        return ()
    try:
        written = read_sealed(path, may_lack_seal=True)
    except NotAsWritten:
        return ()
    try:
        before = RunConfig.model_validate(written).decisive
    except ValueError:
        before = {name: written.get(name, NOTHING) for name in run.decisive}
    return tuple(differences_between(before, run.decisive))


def execution_differences(before: RunConfig, now: RunConfig) -> tuple[Difference, ...]:
    """What differs in how two runs are carried out, of what decides bits: mesh, parts of the batch, kernels, what is kept."""
    was, found = (run.execution.model_dump(mode="json", include=set(DECIDES_BITS)) for run in (before, now))
    return tuple(differences_between(was, found, "execution"))


def name_differences(found: tuple[Difference, ...], *, most: int = 3) -> str:
    """The first few, in one line."""
    return name_some(found, most, "; ")
