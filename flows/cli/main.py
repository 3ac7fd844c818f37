"""`phasewise`: the command line. Heavy libraries are imported by the command that needs them."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from phasewise.flows.cli.help import DETAILS, MAX_WIDTH
from phasewise.flows.cli.options import (
    PLACE,
    Commands,
    FiniteFloat,
    Scale,
    given_scale_home_options,
    given_scale_option,
    given_scale_set_options,
    home_json_options,
    home_option,
    json_option,
    max_tokens_option,
    print_found,
    scale_home_options,
    scale_set_options,
    set_option,
    slice_option,
    target_argument,
    work_options,
)
from phasewise.trainer.process.accelerator import spare_search
from phasewise.trainer.process.child_process import collect_rarely, python_command

if TYPE_CHECKING:
    from phasewise.tasks.data.tokenizer_training import SplitName

NAMED = re.compile(rb"\bPHASEWISE_[A-Z]+(?:_[A-Z]+)*\b")


def words_of_unread(environment: Mapping[str, str]) -> list[str]:
    """Return one warning per unknown variable, with the most similar known name."""
    given = sorted(name for name in set(environment) - {"PHASEWISE_HOME"} if re.match("PHASEWISE_(?!TEST_)", name))
    if not given:
        return []
    from phasewise.trainer.base.identity import HOUSE, ROOMS
    from phasewise.trainer.base.wording import near

    files = (path for room in ROOMS for path in (HOUSE / room).rglob("*.py"))
    known = {name.decode() for path in files for name in NAMED.findall(path.read_bytes())}
    warnings: list[str] = []
    for name in given:
        if name not in known:
            hint = near(name, sorted(known), cutoff=0.85)
            warnings.append(f"{name}: unknown setting of Phasewise, ignored{f', {hint}' if hint.endswith('?') else '.'}")
    return warnings


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH})
@click.version_option(package_name="phasewise")
def main() -> None:
    """Train language models phase by phase. Checks of data and evaluations decide about the next phase.

    RECIPE is a name (marin-8b), a .json file or a .py file (FILE.py:NAME for one of several recipes). RECIPE/PHASE is one of its phases.
    """
    for words in words_of_unread(os.environ):
        click.echo(words, err=True)
    os.environ["PYTHONSAFEPATH"] = "1"  # Dask's workers and the processes of pools are started by libraries, without -P
    if not any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        os.environ.setdefault("COLUMNS", str(MAX_WIDTH))  # else Rich takes 80
    spare_search()  # before JAX is imported
    collect_rarely()


@main.command()
@target_argument()
@given_scale_set_options
@max_tokens_option
@slice_option
@click.option("--retrain", multiple=True, metavar="PHASE", help="Allow to train this phase and its descendants again. Repeatable.")
@click.option("--extend", multiple=True, metavar="PHASE", help="Continue this trained phase to a raised stop_step. Repeatable.")
@work_options
def run(target: str, scale: Scale | None, home: str | None, as_json: bool, **allowed: Any) -> None:
    """Train a recipe on this machine, phase by phase. Resumes unfinished work."""
    if sys.stderr.isatty():
        click.echo(f"{target}: reading the recipe …", err=True)  # the imports are slow
    from phasewise.flows.cli.run import run_recipe
    from phasewise.flows.recipes import scale_of

    summary = run_recipe(target, scale_of(target, scale), home, **allowed, as_json=as_json)
    print_found(summary, None, as_json=as_json)


@main.command("try")
@target_argument("RECIPE/PHASE")
@click.option("--arm", "arms", multiple=True, required=True, metavar="NAME:FIELD=VALUE|NAME:PHASE", help="An arm. Repeatable.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Trainings of each arm.")
@click.option("--control", metavar="PHASE", help="Phase of the control. Default: the phase itself.")
@given_scale_set_options
@max_tokens_option
@work_options
def try_arms(target: str, scale: Scale | None, home: str | None, as_json: bool, **experiment: Any) -> None:
    """Compare changes of a phase with the phase itself. Arms and control start from a common checkpoint, with equal data order per seed."""
    from phasewise.flows.cli.experiments import print_experiment, try_target
    from phasewise.flows.recipes import scale_of

    print_found(try_target(target, scale_of(target, scale), home, **experiment), print_experiment, as_json=as_json)


@main.command()
@click.argument("names", metavar="[NAME]…", nargs=-1)
@work_options
def figures(names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Run figures of the published runs as experiments at small scale. Without a NAME, run every figure."""
    from phasewise.flows.cli.experiments import print_figures, run_figures

    found = run_figures(names, home)
    print_found({"figures": found}, lambda value: print_figures(value["figures"]), as_json=as_json)


@main.command()
@target_argument()
@scale_set_options
@click.option("--full", is_flag=True, help="Read every byte of every file. Default: only files with a changed size or time.")
@home_json_options
def status(target: str, scale: Scale, full: bool, home: str | None, as_json: bool) -> None:
    """Show the state of each phase, outdated results and the reasons. Exit 1 if a phase is unfinished or a file changed."""
    from phasewise.flows.cli.status import describe, is_done, print_description

    description = describe(target, scale, home, reads_all=full)
    print_found(description, print_description, as_json=as_json)
    sys.exit(0 if is_done(description) else 1)


@main.command()
@target_argument()
@scale_home_options
def goodput(target: str, scale: Scale, home: str | None, as_json: bool) -> None:
    """Show the wall time of each phase by use: productive updates, compilation, data loading, checkpoints, checks, idle, queue."""
    from phasewise.flows.cli.status import describe_goodput, print_goodput

    print_found(describe_goodput(target, scale, home), print_goodput, as_json=as_json)


@main.command()
@target_argument()
@scale_set_options
@click.option("--at", "step", type=click.IntRange(min=0), metavar="STEP", help="Show the values in effect after STEP updates.")
@click.option("--branches", is_flag=True, help="Include branches in the table.")
@click.option("--notes", is_flag=True, help="Show differences between the published code and reports, and values missing from both.")
@click.option("--results", is_flag=True, help="Show published results: scores, losses, counts, dates, hardware.")
@click.option("--sources", is_flag=True, help="Show the source of each value: published code, library default, report, this project.")
@click.option("--diff", nargs=2, metavar="PHASE OTHER", help="Compare two phases, also of different recipes (RECIPE/PHASE).")
@click.option("--slice", "on_slice", metavar="S", help="Add estimated days and chip-hours on this slice to the table.")
@click.option("--component", metavar="NAME", help="Show files, revision and filters of a component, and its share of each phase.")
@home_json_options
def show(target: str, scale: Scale, home: str | None, as_json: bool, **options: Any) -> None:
    """Show a recipe as a table of phases, or all values of one phase."""
    from phasewise.flows.cli.show import ShowOptions, describe_asked

    given = [name for name, value in options.items() if value not in (None, False) and name not in ("branches", "on_slice")]
    if len(given) > 1:
        raise click.UsageError(
            f"expected one of these options at a time, found {', '.join('--' + name.replace('step', 'at') for name in given)}."
        )
    description, print_answer = describe_asked(target, scale, ShowOptions(**options), home)
    print_found(description, print_answer, as_json=as_json)


@main.command()
@target_argument()
@scale_set_options
@json_option
def lineage(target: str, scale: Scale, as_json: bool) -> None:
    """Show the phases, their parents, and the changes of each hand-off. For one phase, show its ancestors."""
    from phasewise.flows.cli.show import describe_lineage, print_lineage

    description = describe_lineage(target, scale)
    print_found(description, print_lineage, as_json=as_json)


@main.command()
@target_argument()
@given_scale_option
@click.option("--slice", "slice_name", metavar="S", help="Replace the recipe's slice, for example by v4-2048, h100-8 or '2x v5e-256'.")
@click.option("--estimate", "estimated", is_flag=True, help="Estimate from sizes and rooflines, without a compiler.")
@set_option
@click.option("--region", metavar="REGION", help="Region of the slice. The report lists reads from a home in another region, in bytes.")
@click.option("--price-per-gib", "usd_per_gib", type=FiniteFloat(min=0), metavar="USD", help="Price of reads from another region.")
@click.option("--machine-code", is_flag=True, help="Compile to machine code. Takes minutes per setup and gives the same figures.")
@home_json_options
def preflight(target: str, scale: Scale | None, home: str | None, as_json: bool, **options: Any) -> None:
    """Compile for the slice and report memory, FLOPs, time and chip-hours. Exit 1 if a phase does not fit."""
    from phasewise.flows.cli.preflight import preflight_target, print_preflight
    from phasewise.flows.cli.terminal import shown_on_terminal

    with shown_on_terminal():
        report = preflight_target(target, scale, home, **options)
    print_found(report, print_preflight, as_json=as_json)
    sys.exit(0 if all(setup["fits"] for setup in report["phases"]) else 1)


@main.command()
@target_argument("RECIPE/PHASE")
@scale_set_options
@click.option("--proxies", type=click.IntRange(8, 4096), default=64, show_default=True, metavar="N", help="Number of short trainings.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Steps of each training. Default: the steps of the phase.")
@click.option("--max-epochs", type=FiniteFloat(min=0, min_open=True), metavar="N", help="Most epochs of a component. Default: the gate's.")
@click.option("--target", "targets", multiple=True, metavar="COMPONENT", help="Minimise the loss on this component. Default: on all.")
@click.option("--zero", multiple=True, metavar="COMPONENT", help="Allow a mixture without this component. Repeatable.")
@click.option("--seeds", type=click.IntRange(0, 100), default=0, show_default=True, metavar="N", help="Check the result with N seeds.")
@click.option("--out", type=PLACE, metavar="FILE", help="New .json file of the recipe. Default: a file in the home.")
@work_options
def mixture(target: str, scale: Scale, home: str | None, as_json: bool, targets: tuple[str, ...], **options: Any) -> None:
    """Search the mixture of a phase by short trainings and a law of their losses, and write a recipe with its predicted gain."""
    from phasewise.flows.cli.experiments import print_mixture, search_target

    print_found(search_target(target, scale, home, target=targets, **options), print_mixture, as_json=as_json)


@main.group()
def data() -> None:
    """Build token caches, or compare them with their sources."""


@data.command()
@target_argument()
@scale_set_options
@max_tokens_option
@click.option("--plan", "plans", is_flag=True, help="Only list files, bytes, tokens and hours.")
@click.option("--price-per-hour", type=FiniteFloat(min=0), metavar="USD", help="With --plan: price of all workers per hour.")
@work_options
def prepare(target: str, scale: Scale, home: str | None, as_json: bool, plans: bool, price_per_hour: float | None) -> None:
    """Build all missing caches."""
    from phasewise.flows.cli.data import plan, prepare, print_plan

    if plans:
        print_found(plan(target, scale, home, price_per_hour), print_plan, as_json=as_json)
        return
    if price_per_hour is not None:
        raise click.UsageError("--price-per-hour requires --plan.")
    print_found(prepare(target, scale, home), None, as_json=as_json)


@data.command()
@click.argument("name", metavar="NAME")
@click.argument("folder", type=PLACE, metavar="FOLDER")
@json_option
def fetch(name: str, folder: str, as_json: bool) -> None:
    """Download a public text, such as paloma, for `evaluate --text FOLDER` and `evaluation.held_out`."""
    from phasewise.flows.cli.data import fetch as fetch_text

    found = fetch_text(name, folder)
    words = f"{found['name']}: {found['files']} files, {len(found['subsets'])} subsets, {found['bytes']:,} bytes in {found['folder']}"
    print_found(found, lambda _: click.echo(words), as_json=as_json)


@data.command()
@target_argument()
@scale_set_options
@max_tokens_option
@click.option("--full", is_flag=True, help="Read every source again. Default: only sources with a changed size or time.")
@home_json_options
def verify(target: str, scale: Scale, home: str | None, full: bool, as_json: bool) -> None:
    """Compare caches with their sources. Exit 1 if they differ."""
    from phasewise.flows.cli.data import print_verification, verify

    verification = verify(target, scale, home, full=full)
    print_found(verification, print_verification, as_json=as_json)
    sys.exit(0 if verification["passes"] else 1)


@main.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@click.option("--benchmarks", required=True, type=PLACE, metavar="DIR", help="Benchmark items: JSON lines in one folder per benchmark.")
@click.option("--suite", metavar="S", help="Only the benchmarks of this evaluation suite, with its prompts.")
@click.option(
    "--min-score", type=FiniteFloat(0, 1, min_open=True), default=0.7, show_default=True, help="Minimum matching share of an item."
)
@click.option("--tokenizer", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Tokenizer of token caches outside a home.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Skip files or archive members (a.zip!/b.pdf). Repeatable.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Number of processes. Default: one, or one per core for large inputs."
)
@home_json_options
def scan(paths: tuple[str, ...], benchmarks: str, as_json: bool, **options: Any) -> None:
    """Search files, folders and token caches for benchmark items."""
    from phasewise.flows.cli.scan import print_report, scan_paths

    report = scan_paths(paths, benchmarks, **options)
    print_found(report, print_report, as_json=as_json)
    sys.exit(1 if report["hits"] or report["not_searched"] or any(found["is_fault"] for found in report["unread"]) else 0)


@main.command()
@click.argument("kind", metavar="KIND")
@click.argument("length", metavar="LENGTH", type=int)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def order(kind: str, length: int, seed: int, as_json: bool) -> None:
    """Measure the mixing of a permutation: feistel, linear, or Levanter's of these. Exit 1 if it differs from a random permutation."""
    from phasewise.flows.cli.data import judge_order, print_judgement

    judgement = judge_order(kind, length, seed)
    print_found(judgement, print_judgement, as_json=as_json)
    sys.exit(0 if judgement["passes"] else 1)


@main.command()
@click.option("--benchmark", metavar="NAME", help="Part of a benchmark's name. Default: all.")
@click.option("--model", metavar="NAME", help="Part of the name of a model, or RECIPE/PHASE. Default: all.")
@click.option("--own", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Output of evaluate --json to rank.")
@json_option
def results(benchmark: str | None, model: str | None, own: str | None, as_json: bool) -> None:
    """Print published scores of this project's recipes and of other models, with ranks."""
    from phasewise.flows.cli.results import find_results, print_results

    print_found(find_results(benchmark, model, own), print_results, as_json=as_json)


def writing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that decide how a model continues a text."""
    options = (
        click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Maximum new tokens. Default: 128, or half of the context."),
        click.option(
            "--temperature", type=FiniteFloat(min=0), default=0.8, show_default=True, metavar="T", help="0 takes the likeliest token."
        ),
        click.option("--top-k", type=click.IntRange(min=0), default=0, metavar="N", help="Draw from the N likeliest tokens. 0 is off."),
        click.option(
            "--top-p",
            type=FiniteFloat(min=0, max=1, min_open=True),
            default=1.0,
            metavar="P",
            help="Draw from the likeliest tokens with probability P together. 1 is off.",
        ),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--weights", type=click.Choice(["last", "ema"]), default="last", show_default=True),
        click.option("--tokenizer", type=PLACE, metavar="FILE", help="tokenizer.json of a CHECKPOINT outside its home."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@target_argument("RECIPE/PHASE|CHECKPOINT|FOLDER")
@click.argument("prompts", metavar="[PROMPT…]", nargs=-1)
@writing_options
@given_scale_home_options
def sample(target: str, prompts: tuple[str, ...], scale: Scale | None, home: str | None, as_json: bool, **options: Any) -> None:
    """Continue each PROMPT with a model, and print the text as it is written. Without a PROMPT the model writes a document."""
    from phasewise.flows.cli.sample import Writing, print_piece, sample

    where = {name: options.pop(name) for name in ("weights", "tokenizer")}
    show = (lambda _: None) if as_json else print_piece
    found = sample(target, scale, home, prompts, Writing(**options), **where, show=show)
    if as_json:
        print_found(found, None, as_json=True)


@data.command()
@target_argument("RECIPE/PHASE|CHECKPOINT|FOLDER")
@click.argument("seeds", type=PLACE, metavar="SEEDS")
@click.argument("out", type=PLACE, metavar="OUT")
@click.option("--kind", type=click.Choice(["rephrase", "answer"]), default="rephrase", show_default=True)
@click.option("--prompt", default="{text}\n\n", metavar="TEXT", help="Text before the continuation, with {text} for the seed.")
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Continuations of each seed.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Draw N seeds at random. Default: all.")
@click.option("--min-words", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Fewest words of a document.")
@click.option("--benchmarks", type=PLACE, metavar="DIR", help="Leave out documents with test items of this folder.")
@writing_options
@given_scale_home_options
def generate(
    target: str, seeds: str, out: str, scale: Scale | None, home: str | None, as_json: bool, *, kind: Any, prompt: str, samples: int,
    min_words: int, count: int | None, benchmarks: str | None, **options: Any,
) -> None:  # fmt: skip
    """Write documents from SEEDS with a model to the folder OUT, with the provenance of each."""
    from phasewise.flows.cli.sample import Writing, generate, print_generated
    from phasewise.tasks.data.generation import Task

    where = {name: options.pop(name) for name in ("weights", "tokenizer")}
    task = Task(kind=kind, prompt=prompt, samples=samples, min_words=min_words)
    written = generate(target, scale, home, (seeds, out), task, Writing(**options), count=count, benchmarks=benchmarks, **where)
    print_found(written, print_generated, as_json=as_json)


@main.command()
@target_argument("RECIPE/PHASE|CHECKPOINT|FOLDER")
@click.option("--system", metavar="TEXT", help="System text of the conversation.")
@writing_options
@given_scale_set_options
@home_option
def chat(target: str, scale: Scale | None, home: str | None, system: str | None, **options: Any) -> None:
    """Answer each line of standard input with the chat template of the training. Ctrl-D ends."""
    from phasewise.flows.cli.sample import Writing, chat, print_piece, typed_lines

    where = {name: options.pop(name) for name in ("weights", "tokenizer")}
    chat(target, scale, home, typed_lines(), Writing(**options), **where, system=system, show=print_piece)


@main.command()
@target_argument("RECIPE/PHASE|CHECKPOINT|FOLDER")
@click.option("--suite", metavar="S", help="Suite of benchmarks: core, core+mmlu, generation, leaderboard, trinity, folder, niah[:LENGTH].")
@click.option("--tasks", metavar="NAME[:SHOTS],…", help="Benchmarks by name: ours, own ones of --include, or any task of lm-eval.")
@click.option("--include", type=PLACE, metavar="DIR", help="With --tasks: folder of own benchmarks, as YAML of lm-eval or as JSON lines.")
@click.option(
    "--benchmarks",
    type=PLACE,
    metavar="DIR",
    help="With --suite, --tasks: folder of the items as JSON lines. Default: the Hugging Face Hub.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="With --suite, --tasks: only the first N items of each part.")
@click.option("--weights", type=click.Choice(["last", "ema"]), help="With --suite, --tasks: last weights (default) or moving average.")
@click.option("--context", type=click.IntRange(min=2), metavar="N", help="With --suite, --tasks: context of N tokens.")
@click.option("--allow-code", is_flag=True, help="With --suite, --tasks: run generated programs in a sandbox, and the code of own YAML.")
@click.option("--text", type=PLACE, metavar="DIR", help="Bits per byte and perplexity of each file and folder in DIR.")
@click.option("--held-out", is_flag=True, help="Bits per byte of the phase's held-out documents, by component.")
@click.option("--text-key", metavar="KEY", help="With --text: text field of JSON lines and tables. Default: text.")
@click.option("--against", metavar="TARGET", help="With --text, --held-out: another checkpoint or phase, compared token by token.")
@click.option("--tokenizer", type=PLACE, metavar="FILE", help="With --suite, --tasks, --text: tokenizer.json of a CHECKPOINT.")
@given_scale_home_options
def evaluate(target: str, scale: Scale | None, home: str | None, as_json: bool, **options: Any) -> None:
    """Measure the last checkpoint of a phase with the benchmarks of its gate, with --suite, --tasks, or by the fit to a text (--text,
    --held-out)."""
    from phasewise.flows.cli.evaluate import evaluate_by

    measured, print_measured = evaluate_by(target, scale, home, options)
    print_found(measured, print_measured, as_json=as_json)
    sys.exit(1 if measured.get("holes") else 0)


@main.command()
@click.argument("file", type=PLACE, metavar="FILE")
@click.option("--from", "origin", metavar="RECIPE", help="Start from a short form of this recipe. With FILE.json, copy it completely.")
@click.option("--text", default="text", show_default=True, type=PLACE, metavar="FOLDER", help="Folder of text, Markdown or JSON lines.")
def new(file: str, origin: str | None, text: str) -> None:
    """Write your own recipe to FILE.py: two phases over a folder of text. They train in minutes on this machine."""
    from phasewise.flows.cli.new import write_new

    click.echo("\n".join(write_new(file, origin, text)))


@main.command()
def schema() -> None:
    """Print the JSON schema of a recipe in a .json file."""
    from phasewise.flows.recipes.recipe import Recipe

    print_found({"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}, None, as_json=True)


@main.command()
@target_argument()
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Show the training text of the update that produced step N.")
@click.option("--row", type=click.IntRange(min=0), metavar="R", help="Show only this row of the batch.")
@click.option("--text", type=PLACE, metavar="FILE", help="Find the text of this file in the training data.")
@click.option("--document", metavar="ID", help="Find a document by its id or a prefix of the id.")
@click.option("--source-file", type=PLACE, metavar="PATH", help="Find the documents of this source file.")
@click.option("--inside", is_flag=True, help="With --text: search inside all documents, without a limit.")
@click.option(
    "--rows", "most", type=click.IntRange(min=0), default=40, show_default=True, metavar="N", help="Maximum number of rows. 0 shows all."
)
@scale_home_options
def trace(target: str, scale: Scale, home: str | None, as_json: bool, most: int, **question: Any) -> None:
    """Show the training text of a step, or the steps that train on a text, a document or a file. Works before training."""
    from phasewise.flows.cli.trace import Question, print_answer, trace

    answer = trace(target, scale, home, Question(**question))
    print_found(answer, lambda found: print_answer(found, most=most), as_json=as_json)
    for remark in answer["remarks"]:
        click.echo(f"phasewise: {remark}", err=True)
    sys.exit(1 if any(phase["trained"] == "otherwise" for phase in answer["phases"]) else 0)


@main.command()
@target_argument("RECIPE/PHASE")
@click.option("--step", type=click.IntRange(min=1), required=True, metavar="N", help="Explain the loss of this step.")
@click.option("--replay", "replays", is_flag=True, help="Also train the step again from a checkpoint, with each layer frozen in turn.")
@scale_home_options
def why(target: str, scale: Scale, home: str | None, as_json: bool, step: int, *, replays: bool) -> None:
    """Rank the causes of a step's loss: rows with their documents, components, layers, declared changes."""
    from phasewise.flows.cli.trace import print_why, why

    found = why(target, scale, home, step, replays=replays)
    print_found(found, print_why, as_json=as_json)
    for remark in found["remarks"]:
        click.echo(f"phasewise: {remark}", err=True)
    sys.exit(1 if found["trained"] == "otherwise" else 0)


@main.command()
@home_option
@click.option("--port", type=click.IntRange(1, 65_535), default=4200, show_default=True)
@click.option("--recipe", "names", multiple=True, metavar="NAME", help="Deploy only this included recipe. Repeat for others.")
@click.option("--recipes", type=PLACE, metavar="FOLDER", help="Also deploy the recipes in this folder. Runs its .py files.")
@click.option("--site-port", type=click.IntRange(1, 65_535), metavar="N", help="Port of the page. Default: first free port after PORT.")
@click.option(
    "--site-host",
    default="127.0.0.1",
    show_default=True,
    metavar="H",
    help="Address of the page. The page requires its token on every address.",
)
@click.option("--notify", metavar="TYPE/NAME", help="Prefect notification block for refused or waiting phases.")
def up(
    home: str | None, port: int, names: tuple[str, ...], recipes: str | None, site_port: int | None, site_host: str, notify: str | None
) -> None:
    """Start a Prefect server with its UI, a worker, the deployments and the page, on this machine."""
    command = python_command("phasewise.deployments.local", "--port", str(port), "--site-host", site_host)
    command += [word for name in names for word in ("--recipe", name)]
    given = {"--home": home, "--recipes": recipes, "--site-port": str(site_port) if site_port else None, "--notify": notify}
    os.execv(sys.executable, command + [word for name, value in given.items() if value for word in (name, value)])


@main.command()
@click.argument("recipes", metavar="[FILE]…", nargs=-1)
@click.option("--delete", "deletes", is_flag=True, help="Delete the listed files. Default: only list them.")
@click.option("--trials", "with_trials", is_flag=True, help="Include the runs of trials with --set.")
@home_json_options
def gc(recipes: tuple[str, ...], home: str | None, as_json: bool, *, deletes: bool, with_trials: bool) -> None:
    """List files of the home that may go, with their sizes: outdated data, archived runs, unused evidence, unfinished files."""
    from phasewise.flows.cli.status import collect_garbage, print_garbage

    print_found(collect_garbage(recipes, home, deletes=deletes, with_trials=with_trials), print_garbage, as_json=as_json)


@main.command()
@home_json_options
def doctor(home: str | None, as_json: bool) -> None:
    """Examine packages, devices, disk and settings of this machine. Exit 1 if something is wrong."""
    from phasewise.flows.cli.doctor import examine, print_examination

    found = examine(home)
    print_found(found, print_examination, as_json=as_json)
    sys.exit(1 if found["problems"] else 0)


@main.group()
def bench() -> None:
    """Measure this machine."""


@bench.command()
@click.option("--only", metavar="SECTION,…", help="Of parity, kernels, mfu, resume, loader. Default: all.")
@click.option("--minutes", type=FiniteFloat(min=0.1), default=8, show_default=True, metavar="N", help="Time of all sections together.")
@click.option("--out", type=PLACE, metavar="FILE", help="New JSON file of the page. Default: a file in the home.")
@home_json_options
def accelerator(home: str | None, as_json: bool, **options: Any) -> None:
    """Measure the GPUs or TPUs of this machine: parity with the CPU, kernels, MFU, resume after a kill, loader."""
    from phasewise.flows.cli.doctor import bench_accelerator, print_page

    page = bench_accelerator(home, **options)
    print_found(page, print_page, as_json=as_json)
    sys.exit(0 if page["passes"] else 1)


@main.command()
@target_argument("RECIPE/PHASE")
@click.option("--reject", is_flag=True, help="Reject the phase.")
@click.option("--reason", required=True, metavar="TEXT", help="Reason, stored and shown with the verdict.")
@click.option("--who", metavar="NAME", help="Your name. Default: the user of this machine.")
@click.option("--gate", type=click.Choice(["data", "health", "model", "recovery"]), help="The gate, if several wait or have a decision.")
@scale_home_options
def approve(target: str, scale: Scale, home: str | None, as_json: bool, *, reject: bool, **given: Any) -> None:
    """Approve or reject a phase with a verdict or a rollback (`recovery`) that waits for a person."""
    from phasewise.flows.cli.approve import approve_phase, print_decision

    if not given["reason"].strip():
        raise click.UsageError("--reason: expected a sentence, found nothing.")
    print_found(approve_phase(target, scale, home, approves=not reject, **given), print_decision, as_json=as_json)


@main.command()
@target_argument("RECIPE/PHASE")
@click.argument("out", type=PLACE, metavar="OUT")
@scale_set_options
@click.option(
    "--weights",
    metavar="WHICH",
    default="last",
    show_default=True,
    help="last, ema (moving average), or average:N (mean of the last N kept checkpoints).",
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True, help="Data type of the written weights."
)
@click.option(
    "--generation-prompt",
    type=click.Choice(["add", "none"]),
    help="For a chat template without a generation prompt: add one, or leave the template unchanged.",
)
@home_json_options
def export(target: str, out: str, scale: Scale, home: str | None, as_json: bool, **options: Any) -> None:
    """Write the weights of a phase to the folder OUT in Hugging Face format: safetensors, config, tokenizer."""
    from phasewise.flows.cli.publish import export_target, print_export

    exported = export_target(target, out, scale, home, **options)
    print_found(exported, print_export, as_json=as_json)


@main.command()
@click.option("--site", "out", required=True, type=PLACE, metavar="OUT", help="A new folder, or one from an earlier `report`.")
@click.option("--recipe", "recipes", multiple=True, type=PLACE, metavar="FILE", help="Your own recipe with runs in the home. Repeatable.")
@home_json_options
def report(out: str, recipes: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Write the page of `phasewise up` with all results of the home as static files to the folder OUT."""
    from phasewise.flows.cli.publish import print_written, write_report

    print_found(write_report(out, home, recipes), print_written, as_json=as_json)


@main.command()
@target_argument("RECIPE/PHASE")
@click.argument("out", type=PLACE, metavar="OUT")
@scale_set_options
@click.option("--key", type=PLACE, metavar="FILE", help="Private key for the signature: Ed25519 or ECDSA on P-256, as PEM.")
@click.option("--export", type=PLACE, metavar="FOLDER", help="Exported folder of the phase. The card lists its files.")
@click.option("--licence", metavar="NAME", help="Licence of the model. Only the signature vouches for it.")
@click.option("--source", multiple=True, metavar="COMPONENT=FOLDER", help="Folder of source files outside the home. Repeatable.")
@home_json_options
def card(target: str, out: str, scale: Scale, home: str | None, as_json: bool, **options: Any) -> None:
    """Write a model card of a phase to the folder OUT. Each claim has the digests of its files."""
    from phasewise.flows.cli.publish import card_of_target, print_card

    print_found(card_of_target(target, out, scale, home, options), print_card, as_json=as_json)


@main.command("verify")
@click.argument("folder", metavar="CARD", type=click.Path(exists=True, file_okay=False))
@click.option("--home", type=PLACE, metavar="URL", help="Compare each claim with the bytes in this home.")
@click.option("--export", type=PLACE, metavar="FOLDER", help="Exported folder listed in the card.")
@click.option("--public-key", type=PLACE, metavar="FILE", help="Public key of the signer, as PEM.")
@click.option("--source", multiple=True, metavar="COMPONENT=FOLDER", help="Folder of source files outside the home. Repeatable.")
@click.option("--max-gib", type=FiniteFloat(min=0), default=64, show_default=True, help="Maximum size of caches and checkpoint to read.")
@json_option
def verify_card(folder: str, as_json: bool, **options: Any) -> None:
    """Check a card against the bytes of a home, offline. Exit 1 if a claim is false or could not be checked."""
    from phasewise.flows.cli.publish import print_verification, verify_folder

    verification = verify_folder(folder, options)
    print_found(verification, print_verification, as_json=as_json)
    sys.exit(0 if verification["passes"] else 1)


SPLITS: tuple["SplitName", ...] = ("trinity", "llama3", "gpt2", "llama2", "neox")
VOCAB_SIZE = click.option(
    "--vocab-size", type=int, required=True, metavar="N", help="Number of entries, including 256 bytes and two special tokens."
)


@main.group()
def tokenizer() -> None:
    """Train, truncate and compare tokenizers."""


@tokenizer.command("train")
@target_argument("RECIPE[/PHASE]|FOLDER")
@click.argument("out", type=PLACE, metavar="OUT")
@VOCAB_SIZE
@click.option(
    "--split", type=click.Choice(SPLITS), default="trinity", show_default=True, help="Rule that splits text before pairs are merged."
)
@click.option("--chat-tokens", is_flag=True, help="Include the special tokens of the chat templates of the recipe.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    default=100_000_000,
    show_default=True,
    metavar="N",
    help="Maximum bytes of text per component or file.",
)
@given_scale_home_options
def train_tokenizer(
    target: str, scale: Scale | None, home: str | None, as_json: bool, *, out: str, vocab_size: int, split: "SplitName", max_bytes: int,
    chat_tokens: bool,
) -> None:  # fmt: skip
    """Train byte-level BPE on the training text of a recipe's phases, or on the text of a folder, and write it to the folder OUT."""
    from phasewise.flows.cli.tokenizer import print_manifest, train_tokenizer

    written = train_tokenizer(target, scale, home, out, vocab_size=vocab_size, split=split, max_bytes=max_bytes, chat_tokens=chat_tokens)
    print_found(written, print_manifest, as_json=as_json)


@tokenizer.command("truncate")
@click.argument("name", metavar="TOKENIZER")
@click.argument("out", type=PLACE, metavar="OUT")
@VOCAB_SIZE
@json_option
def truncate_tokenizer(name: str, out: str, *, vocab_size: int, as_json: bool) -> None:
    """Write the first N entries of TOKENIZER to the folder OUT. Training at this size gives the same tokenizer."""
    from phasewise.flows.cli.tokenizer import print_manifest, truncate_tokenizer

    print_found(truncate_tokenizer(name, out, vocab_size=vocab_size), print_manifest, as_json=as_json)


@tokenizer.command("compare")
@click.argument("names", metavar="TOKENIZER…", nargs=-1, required=True)
@click.option("--on", required=True, metavar="RECIPE[/PHASE]|FOLDER", help="Held-out text of a recipe, or text in a folder.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N", help="Maximum bytes per subset."
)
@click.option("--text-key", default="text", show_default=True, metavar="KEY", help="With a FOLDER: text field of JSON lines and tables.")
@given_scale_home_options
def compare_tokenizers(
    names: tuple[str, ...], on: str, max_bytes: int, text_key: str, scale: Scale | None, home: str | None, as_json: bool
) -> None:
    """Compare tokenizers on the same text: bytes and words per token by component and script, round trip, digits, white space."""
    from phasewise.flows.cli.tokenizer import compare_tokenizers, print_comparison

    found = compare_tokenizers(names, on, scale, home, max_bytes=max_bytes, text_key=text_key)
    print_found(found, print_comparison, as_json=as_json)


for group in (main, data, bench, tokenizer):
    for name, command in group.commands.items():
        command.help = f"{command.help}\n\n{DETAILS.get(name, '')}".strip()

if __name__ == "__main__":
    main()
