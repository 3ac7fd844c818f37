"""`phasewise evaluate --suite`."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows import tables
from phasewise.flows.recipes import scale_of
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.flows.terminal import shown_on_terminal
from phasewise.flows.trained import named_phase, trained_run
from phasewise.tasks.evaluation.suites.needle import Haystack, lengths_of, names_needles, needle_suite, words_of_folder
from phasewise.tasks.evaluation.suites.suites import find_suite
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError

if TYPE_CHECKING:
    from phasewise.tasks.data.template import ChatTemplate
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

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
        from phasewise.tasks.evaluation.suites.run import Options, run_suite

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
    """The words that needles are hidden in: of the folder of benchmarks where one is given, else of the recipe's held-out text."""
    if benchmarks is not None:
        return partial(words_of_folder, benchmarks)
    held_out = found.held_out
    if held_out is None:
        return None

    def words() -> list[str]:
        from phasewise.tasks.evaluation.suites.gated_needles import words_of_held_out

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
    tables.print_table(console, table)
    for result in results:
        if result["hole"]:
            console.print(f"{result['benchmark']} not measured: {result['hole']}", soft_wrap=True, markup=False)
        elif result["remarks"]:
            console.print(f"{result['benchmark']} not to be compared: {'; '.join(result['remarks'])}", soft_wrap=True, markup=False)
    read = f" ({len(evaluation['read'])} of them before)" if evaluation["read"] else ""
    measured = f"{len(results) - len(evaluation['holes'])} of {len(results)} measured{read}, in {evaluation['seconds']:.0f} s"
    console.print(f"{measured}. Kept in {evaluation['kept']}", soft_wrap=True, markup=False)


def _cells(result: dict[str, Any]) -> list[str]:
    """Of a row; a hole has no numbers."""
    if result["hole"]:
        return [result["benchmark"], result["metric"], "–"]
    numbers = (result["value"], result["stderr"], result["baseline"], result["choice_probability"])
    shown = ["" if number is None else f"{number:.3f}" for number in numbers]
    return [result["benchmark"], result["metric"], *shown, f"{result['items']:,}", f"{result['seconds']:.0f}"]


def _find(target: str, scale: Scale | None, home: str | None, options: SuiteOptions, kept: ExitStack) -> Found:
    """The model: a Hugging Face folder, a checkpoint of ours, or the last one of a phase, whose work is kept until `kept` is left."""
    place = Path(target)
    if (place / "config.json").is_file():
        return _find_folder(place, options)
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


def _find_folder(place: Path, options: SuiteOptions) -> Found:
    if options.weights != "last":
        raise ConfigError(f"{place} has one set of weights: leave out --weights {options.weights}.")
    if options.tokenizer:
        raise ConfigError(f"{place} has a tokenizer of its own: leave out --tokenizer.")

    def open_folder() -> "JaxLanguageModel":
        from phasewise.tasks.evaluation.loading import model_of_folder

        return model_of_folder(place)

    return Found(place, None, open_folder)


def _find_checkpoint(place: Path, home: str | None, options: SuiteOptions) -> Found:
    from phasewise.tasks.evaluation.opening import find_chats, find_tokenizer
    from phasewise.trainer.checkpoints.checkpointer import read_about

    given = Path(options.tokenizer) if options.tokenizer else None
    run, root = read_about(place)["run"], Home.open(home).root if home else None
    tokenizer, chats = find_tokenizer(place, run, given, root), find_chats(place, run, root)
    return Found(place, None, lambda: _open_checkpoint(place, tokenizer, options.weights, chats))


def _open_checkpoint(place: Path, tokenizer: Path, weights: Weights, chats: Sequence["ChatTemplate"]) -> "JaxLanguageModel":
    from phasewise.tasks.evaluation.loading import model_of_checkpoint

    return model_of_checkpoint(place, tokenizer, weights=weights, chats=chats)
