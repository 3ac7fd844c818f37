"""`phasewise evaluate`."""

from typing import Any

from rich.console import Console

from phasewise.flows.declared import check_benchmarks
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.record import parent_evaluation
from phasewise.flows.resolved import resolve
from phasewise.flows.trained import named_phase, trained_run
from phasewise.validations.evidence.floor import Floor, measure_floor
from phasewise.validations.evidence.gate import gate_tables
from phasewise.validations.expectations.gate_notes import gate_notes


def evaluate_target(target: str, scale: Scale, home: str | None) -> dict[str, Any]:
    """Benchmarks and held-out bits per byte of a phase's last checkpoint, measured or, where they were measured before, read.

    `gate` of it has a note on each benchmark: its score beside the parent's, where that was measured, and what the gate can see.

    Raises:
        ConfigError: no phase is named, or it names a benchmark that nothing measures.
        TrainingError: the phase is not trained.
        TakenOver, StorageError: as `Resolved.kept`.
    """
    resolved, found = resolve(target, scale, home)
    phase = named_phase(resolved, found, "evaluate")
    check_benchmarks(resolved.recipe, phase)
    with resolved.kept(f"`phasewise evaluate {target}`"):
        run, result = trained_run(resolved, phase)
        from phasewise.tasks.evaluation.apart import evaluate_apart
        from phasewise.tasks.evaluation.asked import ask

        evaluation = evaluate_apart(ask(run, result, resolved.plan, phase.evaluation.measured))
    limits = phase.gates.model
    tables = gate_tables(evaluation, parent_evaluation(resolved, phase), limits)
    return evaluation | {"checkpoint": result["checkpoint"], "gate": list(gate_notes(tables, asks_floor=limits.must_beat_baseline))}


def print_evaluation(evaluation: dict[str, Any]) -> None:
    """The same for people."""
    console = Console(highlight=False)
    console.print(f"{evaluation['phase']}, weights {evaluation['weights']}: {evaluation['checkpoint']}", soft_wrap=True)
    for found in evaluation["results"]:
        error = f" ± {found['stderr']:.3f}" if found["stderr"] is not None else ""
        console.print(f"  {found['benchmark']} {found['metric']} {found['value']:.3f}{error} (dumb baseline {found['baseline']:.3f})")
        console.print(f"    {_beside_floor(measure_floor(found))}", soft_wrap=True)
    for note in evaluation.get("gate", ()):
        console.print(f"  gate: {note}", soft_wrap=True)
    for name, value in sorted(evaluation["bits_per_byte"].items()):
        console.print(f"  {name} {value:.3f} bits per byte")
    console.print(f"  macro {evaluation['macro_bits_per_byte']:.3f} bits per byte")
    if (ema := evaluation.get("ema_macro_bits_per_byte")) is not None:
        console.print(f"  macro of the moving average {ema:.3f}")
    if (mean := evaluation.get("mean_macro_bits_per_byte")) is not None:
        steps = ", ".join(f"{step:,}" for step in evaluation["mean_of_steps"])
        console.print(f"  macro of the mean of checkpoints {steps}: {mean:.3f}")


def _beside_floor(floor: Floor) -> str:
    """How often a model that knows nothing would do as well, by each test and by both."""
    return (
        f"{floor.right} of {floor.items} right, p = {floor.accuracy_p_value:.2g} ({floor.accuracy_test}); {floor.likelihoods}; "
        f"both: {floor.p_value:.2g}"
    )
