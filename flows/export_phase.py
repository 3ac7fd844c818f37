"""Trained phase → model folder for `transformers`, in the home."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from pydantic import Field

from phasewise.flows.prefect.flow_decorator import door
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve_phase
from phasewise.flows.status.phase_status import trained_run
from phasewise.tasks.progress import say

Weights = Literal["last", "ema", "average"]
DType = Literal["float32", "bfloat16"]
GenerationPrompt = Literal["add", "none"]


@door(name="export")
def export_phase(
    recipe: str,
    phase: str,
    scale: Scale = "proxy",
    home: str | None = None,
    weights: Weights = "last",
    average_of: Annotated[int, Field(ge=2, le=1000)] = 2,
    dtype: DType = "float32",
    generation_prompt: GenerationPrompt | None = None,
    settings: Settings = (),
) -> None:
    """Write the weights of a phase to a folder of the home: safetensors, config, tokenizer, model card. An existing export is kept.

    Args:
        phase: Name of a trained phase.
        weights: `last`, `ema` (the moving average), or `average` (the mean of the last kept checkpoints).
        average_of: Number of checkpoints for `average`.
        dtype: Type of the written weights.
        generation_prompt: For a chat template without a generation prompt: `add` one, or keep the template with `none`.
    """
    from phasewise.flows.cli.publish import export_target
    from phasewise.tasks.report.placing import export_name, is_placed, place

    resolved, chosen = resolve_phase(recipe, phase, scale, home, reads_only=True)
    _, result = trained_run(resolved, chosen)
    wanted = f"average:{average_of}" if weights == "average" else weights
    prompting = "-prompting" * (generation_prompt == "add")
    name = f"{export_name(phase, wanted, dtype)}{result['params_digest'][:12]}{prompting}"
    folder = resolved.home.root / "exports" / resolved.recipe.run_name / name
    if is_placed(folder, resolved.digests):
        say(f"{phase}: exported already, to {folder}")
        return
    resolved.home.make_ready()
    resolved.home.exporting.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{name}-", dir=resolved.home.exporting) as made:
        target, root = f"{resolved.recipe_name}/{phase}", str(resolved.home.root)
        exported = export_target(target, made, scale, root, weights=wanted, dtype=dtype, generation_prompt=generation_prompt)
        place(Path(made), folder)
    say(f"{phase}: exported to {folder}: {', '.join(exported['files'])}")
