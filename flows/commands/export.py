"""`phasewise export`."""

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.flows.trained import named_phase, trained_run
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import megabytes
from phasewise.trainer.config import RunConfig

DType = Literal["float32", "bfloat16"]
GenerationPrompt = Literal["add", "none"]


def export_target(
    target: str, out: str, scale: Scale, home: str | None, *, weights: str, dtype: DType, generation_prompt: GenerationPrompt | None = None
) -> dict[str, Any]:
    """Write weights of a phase as a Hugging Face folder; what is in it, in the shape of `--json`.

    Raises:
        ConfigError: no phase is named, there are no such weights, the folder is no new or empty one on this machine, or the chat template
            opens no answer and `generation_prompt` is not given.
        CheckpointError: the checkpoint is damaged, or fewer are kept than are to be averaged.
        TrainingError: the phase is not trained.
    """
    resolved, found = resolve(target, scale, home, reads_only=True, has_weights=True)
    phase = named_phase(resolved, found, "export")
    if "://" in out:
        raise ConfigError(f"the folder to export to must be on this machine, found {out}.")
    run, result = trained_run(resolved, phase)
    from phasewise.tasks.report.export import export_phase

    claims, plan = _claims(resolved.home, run), resolved.plan
    chats = plan.chats_of(phase.components)
    exported = export_phase(
        run,
        result,
        plan.tokenizer,
        Path(out),
        weights=weights,
        dtype=dtype,
        claims=claims,
        chats=chats,
        generation_prompt=generation_prompt,
    )
    recipe = resolved.recipe
    return {"recipe": recipe.name, "scale": recipe.scale, "phase": phase.name, "step": phase.stop_step, **exported}


def _claims(home: Home, run: RunConfig) -> dict[str, Any]:
    """What the home says of the phase, without reading its caches and its checkpoint: the page about the model is no card.

    A part of which the home contradicts itself is left out.
    """
    from phasewise.tasks.report.claims import Subject, read_claims
    from phasewise.tasks.report.home_files import HomeFiles

    files = HomeFiles(home.root, work=home.work, max_read_bytes=0)
    claims = read_claims(files, Subject(run.recipe, run.scale, run.phase, None))
    wrong = {one.field.partition(".")[0] for one in files.problems if not one.field.startswith("evaluation.held_out")}
    return {name: value for name, value in claims.items() if name not in wrong}


def print_export(exported: dict[str, Any]) -> None:
    """The same for people."""
    console = Console(highlight=False)
    console.print(f"{exported['folder']}: {exported['architecture']}, {exported['dtype']}, {megabytes(exported['bytes'])}", soft_wrap=True)
    console.print(
        f"  {exported['phase']} at step {exported['step']:,}, weights {exported['weights']}, from {exported['checkpoint']}", soft_wrap=True
    )
    console.print(f"  {', '.join(exported['files'])}", soft_wrap=True)
    if exported["chat_template"]:
        console.print(f"  with the chat template {exported['chat_template']}", soft_wrap=True, markup=False)
    if left_out := exported["chat_templates_left_out"]:
        console.print(f"  without a chat template: it was trained on conversations of {', '.join(left_out)}", soft_wrap=True, markup=False)
