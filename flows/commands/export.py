"""`phasewise export`."""

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from flows.recipes.recipe import Scale
from flows.resolved import resolve
from flows.trained import named_phase, trained_run
from trainer.base.errors import ConfigError
from trainer.base.wording import megabytes

Weights = Literal["last", "ema"]
DType = Literal["float32", "bfloat16"]


def export_target(target: str, out: str, scale: Scale, home: str | None, *, weights: Weights, dtype: DType) -> dict[str, Any]:
    """Write the last weights of a phase as a Hugging Face folder; what is in it, in the shape of `--json`.

    Raises:
        ConfigError: no phase is named, or the folder is no new or empty one on this machine.
        TrainingError: the phase is not trained.
    """
    resolved, found = resolve(target, scale, home, local_for="export")
    phase = named_phase(resolved, found, "export")
    if "://" in out:
        raise ConfigError(f"the folder to export to must be on this machine, found {out}.")
    run, result = trained_run(resolved, phase)
    from tasks.publication.export import export_phase

    exported = export_phase(run, result, resolved.plan.tokenizer, Path(out), weights=weights, dtype=dtype)
    recipe = resolved.recipe
    return {"recipe": recipe.name, "scale": recipe.scale, "phase": phase.name, "step": phase.stop_step, **exported}


def print_export(exported: dict[str, Any]) -> None:
    """The same for people."""
    console = Console(highlight=False)
    console.print(f"{exported['folder']}: {exported['architecture']}, {exported['dtype']}, {megabytes(exported['bytes'])}", soft_wrap=True)
    console.print(
        f"  {exported['phase']} at step {exported['step']:,}, weights {exported['weights']}, from {exported['checkpoint']}", soft_wrap=True
    )
    console.print(f"  {', '.join(exported['files'])}", soft_wrap=True)
