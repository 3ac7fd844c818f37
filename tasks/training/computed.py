"""How a phase was computed, in words: as its run's folder says it, whatever the plan would be now."""

from contextlib import suppress
from pathlib import Path

from phasewise.tasks.preflight.plan import kept_in_words
from phasewise.tasks.training.machine import mesh_words
from phasewise.tasks.training.same_run import read_run
from phasewise.trainer.base.identity import read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import plural
from phasewise.trainer.config import Execution
from phasewise.trainer.events import EventKind, read_events
from phasewise.trainer.process.conditions import Conditions

KERNELS = {"xla": "XLA", "cudnn": "cuDNN", "splash": "Splash"}
WENT_ON: tuple[EventKind, ...] = ("restart", "resumed")


def computed_words(folder: Path, slice_name: str) -> str:
    """Slice, mesh, precision, kernel, what was kept, parts of the batch, variables that may change bits, on which slices it was before, and
    from which steps it went on; empty where nothing has begun.

    Args:
        folder: of the run.
        slice_name: where its last updates were made.
    """
    run = read_run(folder)
    if run is None:
        return ""
    execution = run.execution
    kernel = KERNELS.get(execution.attention)
    words = [
        f"{slice_name}: {mesh_words(execution)}",
        run.model.compute_dtype,
        *([f"{kernel} attention"] if kernel else []),
        kept_in_words(execution.remat),
        _parts(execution),
        *_variables(folder),
    ]
    moved = _moved(folder)
    return "; ".join([", ".join(words), *moved, *_went_on(folder, moved), *_otherwise(folder)])


def _parts(execution: Execution) -> str:
    size = execution.microbatch_sequences
    return "the batch at once" if size is None else f"the batch in parts of {plural(size, 'sequence')}"


def _variables(folder: Path) -> list[str]:
    """Those under which its newest updates were computed, where there were any."""
    path = RunFolder(folder).conditions
    with suppress(OSError, ValueError):
        return [f"{name}={value}" for name, value in Conditions.model_validate(read_sealed(path, may_lack_seal=True)).variables.items()]
    return []


def _moved(folder: Path) -> list[str]:
    """What its events say of the slices that it was on before."""
    texts = [str(event.get("text")) for event in read_events(folder) if event.get("kind") == "moved"]
    return [f"before that {text.removeprefix('trained ').partition(', and saved')[0]}" for text in texts]


def _went_on(folder: Path, moved: list[str]) -> list[str]:
    steps = [event.get("step") for event in read_events(folder) if event.get("kind") in WENT_ON]
    named = ["the beginning" if step is None else f"step {step:,}" for step in steps]
    if named:
        return [f"it went on from {', '.join(named)}"]
    return [] if moved else ["from its start to its end"]


def _otherwise(folder: Path) -> list[str]:
    """From which steps on a plan or conditions were others than before, and what of them."""
    found = [event for event in read_events(folder) if event.get("kind") == "replanned"]
    return [f"to step {event.get('step') or 0:,} otherwise ({str(event.get('text')).rpartition('bit for bit: ')[2]})" for event in found]
