"""How a phase was computed, in words: as its run's folder says it, whatever the plan would be now."""

from pathlib import Path

from tasks.preflight.plan import kept_in_words
from tasks.training.machine import mesh_words
from tasks.training.same_run import read_run
from trainer.base.wording import plural
from trainer.config import Execution
from trainer.events import EventKind, read_events

KERNELS = {"xla": "XLA", "cudnn": "cuDNN", "splash": "Splash"}
WENT_ON: tuple[EventKind, ...] = ("restart", "resumed")


def computed_words(folder: Path, slice_name: str) -> str:
    """Slice, mesh, precision, kernel, what was kept, parts of the batch, on which slices it was before, and from which steps it went on;
    empty where nothing has begun.

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
    ]
    moved = _moved(folder)
    return "; ".join([", ".join(words), *moved, *_went_on(folder, moved)])


def _parts(execution: Execution) -> str:
    size = execution.microbatch_sequences
    return "the batch at once" if size is None else f"the batch in parts of {plural(size, 'sequence')}"


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
