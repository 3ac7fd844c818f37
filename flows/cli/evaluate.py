"""`phasewise evaluate --suite`."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.checks import check_benchmarks
from phasewise.flows.cli import terminal
from phasewise.flows.cli.terminal import shown_on_terminal
from phasewise.flows.recipes import scale_of
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.flows.status.phase_status import named_phase, parent_evaluation, trained_run
from phasewise.tasks.evaluation.benchmark_definitions import find_suite
from phasewise.tasks.evaluation.needles import Haystack, lengths_of, names_needles, needle_suite, words_of_folder
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.validations.evidence.floor import Floor, measure_floor
from phasewise.validations.evidence.gate import gate_notes, gate_tables

if TYPE_CHECKING:
    from phasewise.tasks.data.template import ChatTemplate
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel


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
        from phasewise.tasks.evaluation.phase_evaluation import evaluate_apart, request_evaluation

        evaluation = evaluate_apart(request_evaluation(run, result, resolved.plan, phase.evaluation.measured))
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
    return (
        f"{floor.right} of {floor.items} right, p = {floor.accuracy_p_value:.2g} ({floor.accuracy_test}); {floor.likelihoods}; "
        f"both: {floor.p_value:.2g}"
    )


WAYS = {
    "suite": {"suite", "benchmarks", "limit", "weights", "allow_code", "tokenizer", "context"},
    "text": {"text", "text_key", "tokenizer"},
    "held_out": {"held_out"},
}
"""Way to measure → the options that it has."""


@dataclass(frozen=True)
class Measured:
    """What was measured, how it is printed for people, and whether all that was asked for is there."""

    measured: dict[str, Any]
    print: Callable[[dict[str, Any]], None]
    is_complete: bool = True


def evaluate_by(target: str, scale: Scale | None, home: str | None, options: dict[str, Any]) -> Measured:
    """By a suite, by a text, or, where neither is asked for, as the phase's gate does.

    Raises:
        UsageError: two ways are asked for, or an option of another way.
        PhasewiseError: as the ways themselves.
    """
    given = {name: value for name, value in options.items() if value not in (None, False)}
    ways = [way for way in WAYS if way in given]
    if len(ways) > 1:
        raise click.UsageError(f"one measurement at a time: {_named(ways)} were given.")
    _refuse_idle(given, ways[0] if ways else None)
    match ways:
        case ["suite"]:
            measured = evaluate_suite(target, scale, home, SuiteOptions(**given))
            return Measured(measured, print_table, is_complete(measured))
        case ["text"] | ["held_out"]:
            from phasewise.flows.cli.corpus_fit import FitOptions, fit_target, print_fit

            given.pop("held_out", None)
            return Measured(fit_target(target, scale, home, FitOptions(**given)), print_fit)
        case _:
            return Measured(evaluate_target(target, scale_of(target, scale), home), print_evaluation)


def _refuse_idle(given: dict[str, Any], way: str | None) -> None:
    idle = set(given) - (WAYS[way] if way else set[str]())
    if idle:
        needed = [other for other in WAYS if idle <= WAYS[other]]
        raise click.UsageError(f"{_named(sorted(idle))} needs {' or '.join(map(_option, needed)) or 'another measurement'}.")


def _named(names: list[str]) -> str:
    return ", ".join(map(_option, names))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


Weights = Literal["last", "ema"]
MIN_WIDTH = 110
"""Columns of the table: what is cut off in a narrower window is a number."""


@dataclass(frozen=True)
class SuiteOptions:
    """What is asked for on the command line."""

    suite: str
    benchmarks: str | None = None
    limit: int | None = None
    weights: Weights = "last"
    allow_code: bool = False
    tokenizer: str | None = None
    context: int | None = None


class Found(NamedTuple):
    """A model that was named: where it is, and how it is opened.

    Attributes:
        held_out: component → cache of text that nothing of the recipe trains on; None where no recipe is known.
    """

    place: Path
    phase: str | None
    open: "Callable[[], JaxLanguageModel]"
    held_out: dict[str, Path] | None = None


def evaluate_suite(target: str, scale: Scale | None, home: str | None, options: SuiteOptions) -> dict[str, Any]:
    """A suite's benchmarks on a model, measured or, where they were measured before, read; in the shape of `--json`.

    Raises:
        ConfigError: no such suite, folder, recipe or phase.
        CheckpointError: the checkpoint is not whole, or lacks what was asked for.
        TrainingError: the phase is not trained.
        EvaluationError: the model's answers are not finite.
        TakenOver, StorageError: as `Resolved.kept`.
    """
    lengths = lengths_of(options.suite) if names_needles(options.suite) else None
    fixed = find_suite(options.suite) if lengths is None else None
    began = time.perf_counter()
    with shown_on_terminal(), ExitStack() as kept:
        found = _find(target, scale, home, options, kept)
        from phasewise.tasks.evaluation.suite import Options, run_suite

        benchmarks = Path(options.benchmarks).resolve() if options.benchmarks else None
        about = {"checkpoint": str(found.place), "phase": found.phase, "weights": options.weights}
        model = found.open()
        if options.context is not None:
            model.read_up_to(options.context)
        suite = fixed or needle_suite(lengths or (), model.max_length)
        haystack = _haystack(found, benchmarks, model)
        how = Options(benchmarks, options.limit, allow_code=options.allow_code, haystack=haystack)
        measured = run_suite(suite, model, how, place=found.place.resolve(), weights=options.weights, about=about)
    return {
        **about,
        "suite": suite.name,
        "results": measured.results,
        "bits_per_byte": {},
        "holes": [result["benchmark"] for result in measured.results if result["hole"]],
        "read": list(measured.read),
        "kept": str(measured.path),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _haystack(found: Found, benchmarks: Path | None, model: "JaxLanguageModel") -> Haystack | None:
    if benchmarks is not None:
        return partial(words_of_folder, benchmarks)
    held_out = found.held_out
    if held_out is None:
        return None

    def words() -> list[str]:
        from phasewise.tasks.evaluation.gate_benchmarks import words_of_held_out

        return words_of_held_out(held_out, model.tokenizer)

    return words


def is_complete(evaluation: dict[str, Any]) -> bool:
    """Every benchmark of the suite was measured."""
    return not evaluation["holes"]


def print_table(evaluation: dict[str, Any]) -> None:
    """The same for people: a row a benchmark, then what was not measured, and what stands in the way of a comparison."""
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else max(console.width, MIN_WIDTH)
    console.print(f"{evaluation['suite']} on {evaluation['checkpoint']}, weights {evaluation['weights']}", soft_wrap=True, markup=False)
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("benchmark:shots", "metric"):
        table.add_column(name, no_wrap=True)
    for name in ("value", "±", "floor", "right choice", "items", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    results = evaluation["results"]
    for result in results:
        table.add_row(*_cells(result))
    terminal.print_table(console, table)
    for result in results:
        if result["hole"]:
            console.print(f"{result['benchmark']} not measured: {result['hole']}", soft_wrap=True, markup=False)
        elif result["remarks"]:
            console.print(f"{result['benchmark']} not to be compared: {'; '.join(result['remarks'])}", soft_wrap=True, markup=False)
    read = f" ({len(evaluation['read'])} of them before)" if evaluation["read"] else ""
    measured = f"{len(results) - len(evaluation['holes'])} of {len(results)} measured{read}, in {evaluation['seconds']:.0f} s"
    console.print(f"{measured}. Kept in {evaluation['kept']}", soft_wrap=True, markup=False)


def _cells(result: dict[str, Any]) -> list[str]:
    if result["hole"]:
        return [result["benchmark"], result["metric"], "–"]
    numbers = (result["value"], result["stderr"], result["baseline"], result["choice_probability"])
    shown = ["" if number is None else f"{number:.3f}" for number in numbers]
    return [result["benchmark"], result["metric"], *shown, f"{result['items']:,}", f"{result['seconds']:.0f}"]


def _find(target: str, scale: Scale | None, home: str | None, options: SuiteOptions, kept: ExitStack) -> Found:
    place = Path(target)
    if (place / "config.json").is_file():
        if options.weights != "last":
            raise ConfigError(f"{place} has one set of weights: leave out --weights {options.weights}.")
        if options.tokenizer:
            raise ConfigError(f"{place} has a tokenizer of its own: leave out --tokenizer.")

        def open_folder() -> "JaxLanguageModel":
            from phasewise.tasks.evaluation.model_loading import model_of_folder

            return model_of_folder(place)

        return Found(place, None, open_folder)
    if (place / "about").is_dir():
        return _find_checkpoint(place, home, options)
    if place.is_dir():
        raise ConfigError(f"{place} must be a checkpoint of ours (with about/ and state/) or a folder with config.json, and is neither.")
    resolved, phase = resolve(target, scale_of(target, scale), home)
    chosen = named_phase(resolved, phase, "evaluate")
    if options.tokenizer:
        raise ConfigError(f"--tokenizer is for the folder of a checkpoint: {target} has its own tokenizer. Leave it out.")
    kept.enter_context(resolved.kept(f"`phasewise evaluate {target}`"))
    _run, result = trained_run(resolved, chosen)
    checkpoint = Path(result["checkpoint"])
    chats = resolved.plan.chats_of(chosen.components)
    held_out = {name: resolved.plan.components[name].held_out.folder for name in resolved.plan.benchmark_components}
    return Found(checkpoint, chosen.name, lambda: _open_checkpoint(checkpoint, resolved.plan.tokenizer, options.weights, chats), held_out)


def _find_checkpoint(place: Path, home: str | None, options: SuiteOptions) -> Found:
    from phasewise.tasks.evaluation.model_loading import find_chats, find_tokenizer
    from phasewise.trainer.checkpoints.state import read_about

    given = Path(options.tokenizer) if options.tokenizer else None
    run, root = read_about(place)["run"], Home.open(home).root if home else None
    tokenizer, chats = find_tokenizer(place, run, given, root), find_chats(place, run, root)
    return Found(place, None, lambda: _open_checkpoint(place, tokenizer, options.weights, chats))


def _open_checkpoint(place: Path, tokenizer: Path, weights: Weights, chats: Sequence["ChatTemplate"]) -> "JaxLanguageModel":
    from phasewise.tasks.evaluation.model_loading import model_of_checkpoint

    return model_of_checkpoint(place, tokenizer, weights=weights, chats=chats)
