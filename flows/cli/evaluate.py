"""`phasewise evaluate`: benchmarks of the gate or of a suite. Corpus fit is in `corpus_fit.py`."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
from phasewise.tasks.data.template import ChatTemplate
from phasewise.tasks.evaluation.benchmark_definitions import find_suite
from phasewise.tasks.evaluation.needles import NAME, Haystack, lengths_of, needle_suite, words_of_folder
from phasewise.tasks.evaluation.own_benchmarks import include_of, suite_of_tasks
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import State, enter_stage
from phasewise.tasks.training.pretrained import chat_template_of
from phasewise.trainer.base.errors import ConfigError
from phasewise.validations.evidence.floor import measure_floor
from phasewise.validations.evidence.gate import gate_notes, gate_tables
from phasewise.validations.limits import OWN_TEXT

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

Weights = Literal["last", "ema"]
Printer = Callable[[dict[str, Any]], None]
MIN_WIDTH = 110  # width of the table in a file
OPTIONS = {
    "suite": {"suite", "benchmarks", "limit", "weights", "allow_code", "tokenizer", "context"},
    "tasks": {"tasks", "include", "benchmarks", "limit", "weights", "allow_code", "tokenizer", "context"},
    "text": {"text", "text_key", "tokenizer", "against"},
    "held_out": {"held_out", "against"},
}
"""Option that selects a measurement → all options of the measurement."""


def evaluate_by(target: str, scale: Scale | None, home: str | None, options: dict[str, Any]) -> tuple[dict[str, Any], Printer]:
    """Measure by the selected option, else with the benchmarks of the phase's gate. Return the shape of `--json`, and a printer."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    names = {name: f"--{name.replace('_', '-')}" for name in options}
    chosen = [name for name in OPTIONS if name in given]
    if len(chosen) > 1:
        raise click.UsageError(f"one measurement at a time: {', '.join(names[name] for name in chosen)} were given.")
    if idle := set(given) - (OPTIONS[chosen[0]] if chosen else set[str]()):
        needed = [names[name] for name in OPTIONS if idle <= OPTIONS[name]]
        raise click.UsageError(f"{', '.join(names[name] for name in sorted(idle))} needs {' or '.join(needed) or 'another measurement'}.")
    if chosen in (["suite"], ["tasks"]):
        return evaluate_suite(target, scale, home, **given), print_table
    if chosen:
        from phasewise.flows.cli.corpus_fit import fit_target, print_comparison, print_fit

        given.pop("held_out", None)
        return fit_target(target, scale, home, **given), print_comparison if "against" in given else print_fit
    resolved, found = resolve(target, scale_of(target, scale), home)
    phase = named_phase(resolved, found, "evaluate")
    check_benchmarks(resolved.recipe, phase)
    resolved.home.make_ready()
    purpose = f"`phasewise evaluate {target}`"
    with resolved.kept(purpose), resolved.working(phase, purpose):
        run, result = trained_run(resolved, phase)
        enter_stage(resolved.home, resolved.recipe.run_name, phase.name, State.EVALUATING)
        from phasewise.tasks.evaluation.phase_evaluation import evaluate_apart, request_evaluation

        evaluation = evaluate_apart(request_evaluation(run, result, resolved.plan, phase.evaluation.measured))
    limits = phase.gates.model
    tables = gate_tables(evaluation, parent_evaluation(resolved, phase), limits)
    notes = list(gate_notes(tables, asks_floor=limits.must_beat_baseline))
    return evaluation | {"checkpoint": result["checkpoint"], "gate": notes}, print_evaluation


def print_evaluation(evaluation: dict[str, Any]) -> None:
    """Print a line per benchmark with its comparison to chance, the notes of the gate, and bits per byte."""
    console = Console(highlight=False)
    console.print(f"{evaluation['phase']}, weights {evaluation['weights']}: {evaluation['checkpoint']}", soft_wrap=True)
    for found in evaluation["results"]:
        error = f" ± {found['stderr']:.3f}" if found["stderr"] is not None else ""
        console.print(f"  {found['benchmark']} {found['metric']} {found['value']:.3f}{error} (dumb baseline {found['baseline']:.3f})")
        floor = measure_floor(found)
        accuracy = f"{floor.right} of {floor.items} right, p = {floor.accuracy_p_value:.2g} ({floor.accuracy_test})"
        console.print(f"    {accuracy}; {floor.likelihoods}; both: {floor.p_value:.2g}", soft_wrap=True)
    for note in evaluation.get("gate", ()):
        console.print(f"  gate: {note}", soft_wrap=True)
    for name, value in sorted(evaluation["bits_per_byte"].items()):
        console.print(f"  {name} {value:.3f} bits per byte")
    for name, one in sorted(evaluation.get(OWN_TEXT, {}).items()):
        console.print(f"  {OWN_TEXT} {name} {one['bits_per_byte']:.3f} bits per byte", markup=False)
    console.print(f"  macro {evaluation['macro_bits_per_byte']:.3f} bits per byte")
    if (ema := evaluation.get("ema_macro_bits_per_byte")) is not None:
        console.print(f"  macro of the moving average {ema:.3f}")
    if (mean := evaluation.get("mean_macro_bits_per_byte")) is not None:
        steps = ", ".join(f"{step:,}" for step in evaluation["mean_of_steps"])
        console.print(f"  macro of the mean of checkpoints {steps}: {mean:.3f}")


def evaluate_suite(
    target: str,
    scale: Scale | None,
    home: str | None,
    *,
    suite: str = "",
    tasks: str = "",
    include: str | None = None,
    benchmarks: str | None = None,
    limit: int | None = None,
    weights: Weights = "last",
    allow_code: bool = False,
    tokenizer: str | None = None,
    context: int | None = None,
) -> dict[str, Any]:
    """Measure or read the benchmarks of a suite, or named tasks, on a model, in the shape of `--json`."""
    lengths = lengths_of(suite) if suite.partition(":")[0] == NAME else None
    own = include_of(include)
    fixed = None if lengths is not None else suite_of_tasks(tasks, own) if tasks else find_suite(suite)
    began = time.perf_counter()
    with shown_on_terminal(), ExitStack() as stack:
        place = find_model(target, scale, home, weights, tokenizer, stack)
        path, phase, held_out = place.path, place.phase, place.held_out
        from phasewise.tasks.evaluation.suite import Options, run_suite

        folder = Path(benchmarks).resolve() if benchmarks else None
        about = {"checkpoint": str(path), "phase": phase, "weights": weights}
        model = place.open_model()
        if context is not None:
            model.read_up_to(context)
        found = fixed or needle_suite(lengths or (), model.max_length)
        haystack: Haystack | None = None
        if folder is not None:
            haystack = partial(words_of_folder, folder)
        elif held_out is not None:
            from phasewise.tasks.evaluation.gate_benchmarks import words_of_held_out

            haystack = partial(words_of_held_out, held_out, model.tokenizer)
        settings = Options(folder, limit, allow_code=allow_code, haystack=haystack, include=own)
        measured = run_suite(found, model, settings, place=path.resolve(), weights=weights, about=about)
    return {
        **about,
        "suite": found.name,
        "results": measured.results,
        "bits_per_byte": {},
        "holes": [result["benchmark"] for result in measured.results if result["hole"]],
        "read": list(measured.read),
        "kept": str(measured.path),
        "seconds": round(time.perf_counter() - began, 3),
    }


def print_table(evaluation: dict[str, Any]) -> None:
    """Print a row per benchmark, then the reasons that benchmarks were not measured or are not comparable."""
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
        if result["hole"]:
            table.add_row(result["benchmark"], result["metric"], "–")
            continue
        numbers = [result[name] for name in ("value", "stderr", "baseline", "choice_probability")]
        shown = ["" if number is None else f"{number:.3f}" for number in numbers]
        table.add_row(result["benchmark"], result["metric"], *shown, f"{result['items']:,}", f"{result['seconds']:.0f}")
    terminal.print_table(console, table)
    for result in results:
        if result.get("ungraded"):
            low, high = result["interval"] or (0, 1)
            found = f"{result['ungraded']:,} of {result['items']:,} items not graded, 95 % interval {low:.3f} to {high:.3f}"
            console.print(f"{result['benchmark']}: {found}", soft_wrap=True, markup=False)
        if result["hole"]:
            console.print(f"{result['benchmark']} not measured: {result['hole']}", soft_wrap=True, markup=False)
        elif result["remarks"]:
            console.print(f"{result['benchmark']} not to be compared: {'; '.join(result['remarks'])}", soft_wrap=True, markup=False)
    read = f" ({len(evaluation['read'])} of them before)" if evaluation["read"] else ""
    measured = f"{len(results) - len(evaluation['holes'])} of {len(results)} measured{read}, in {evaluation['seconds']:.0f} s"
    console.print(f"{measured}. Kept in {evaluation['kept']}", soft_wrap=True, markup=False)


class Found(NamedTuple):
    """A model's folder, and functions that open the model and its chat templates. A folder has no phase and no caches."""

    path: Path
    phase: str | None
    open_model: "Callable[[], JaxLanguageModel]"
    held_out: dict[str, Path] | None  # component → cache of held-out text
    chats: Callable[[], "Sequence[ChatTemplate]"]


def find_model(target: str, scale: Scale | None, home: str | None, weights: Weights, tokenizer: str | None, stack: ExitStack) -> Found:
    """Find the model of a phase, of a checkpoint's folder, or of a Hugging Face folder."""
    path = Path(target)
    if (path / "config.json").is_file():
        if weights != "last":
            raise ConfigError(f"{path} has one set of weights: leave out --weights {weights}.")
        if tokenizer:
            raise ConfigError(f"{path} has its own tokenizer: leave out --tokenizer.")
        from phasewise.tasks.evaluation.model_loading import model_of_folder

        return Found(path, None, partial(model_of_folder, path), None, partial(_chats_of_folder, path))
    if (path / "about").is_dir():
        from phasewise.tasks.evaluation.model_loading import find_chats, find_tokenizer, model_of_checkpoint
        from phasewise.trainer.checkpoints.state import read_about

        run, root = read_about(path)["run"], Home.open(home).root if home else None
        file = find_tokenizer(path, run, Path(tokenizer) if tokenizer else None, root)
        chats = find_chats(path, run, root)
        return Found(path, None, partial(model_of_checkpoint, path, file, weights=weights, chats=chats), None, lambda: chats)
    if path.is_dir():
        raise ConfigError(f"{path}: expected a checkpoint with about/ and state/, or a folder with config.json, found another folder.")
    resolved, phase = resolve(target, scale_of(target, scale), home)
    chosen = named_phase(resolved, phase, "evaluate")
    if tokenizer:
        raise ConfigError(f"--tokenizer is for the folder of a checkpoint: {target} has its own tokenizer. Leave it out.")
    stack.enter_context(resolved.kept(f"`phasewise evaluate {target}`"))
    checkpoint = Path(trained_run(resolved, chosen)[1]["checkpoint"])
    from phasewise.tasks.evaluation.model_loading import model_of_checkpoint

    plan = resolved.plan
    held_out = {name: plan.components[name].held_out.folder for name in plan.benchmark_components}
    chats = plan.chats_of(chosen.components)
    open_model = partial(model_of_checkpoint, checkpoint, plan.tokenizer, weights=weights, chats=chats)
    return Found(checkpoint, chosen.name, open_model, held_out, lambda: chats)


def _chats_of_folder(path: Path) -> Sequence[ChatTemplate]:
    try:
        return [ChatTemplate(chat_template_of(str(path.resolve())), path.name)]
    except ConfigError:
        return []
