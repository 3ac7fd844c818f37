"""`phasewise`: the command line. Heavy libraries are imported by the command that needs them."""

import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click

from phasewise.flows.cli.options import (
    PLACE,
    Commands,
    FiniteFloat,
    Scale,
    evaluation_options,
    given_scale_option,
    home_option,
    json_option,
    max_tokens_option,
    says_first_word,
    scale_option,
    set_option,
    slice_option,
)
from phasewise.flows.cli.terminal import nothing, print_found
from phasewise.tasks.data.tokenizer_training import SPLITS, SplitName
from phasewise.trainer.base.identity import HOUSE, ROOMS
from phasewise.trainer.process.child_process import collect_rarely, python_command
from phasewise.trainer.process.environment import spare_search

BEGINNING = "PHASEWISE_"
OF_TESTS = "PHASEWISE_TEST_"
NEAR = 0.85
NAMED = re.compile(rb"\bPHASEWISE_[A-Z]+(?:_[A-Z]+)*\b")


def begin(environment: Mapping[str, str]) -> None:
    """Before any command: say what nothing reads, and settle what must be before jax is imported."""
    for words in words_of_unread(environment):
        click.echo(words, err=True)
    os.environ["PYTHONSAFEPATH"] = "1"  # Dask's workers and the processes of pools are started by libraries, without -P
    spare_search()
    collect_rarely()


def words_of_unread(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that no code names, with the one that may be meant.

    The names are those in the code, which is read only where the environment has such a variable.
    """
    given = sorted(name for name in environment if name.startswith(BEGINNING) and not name.startswith(OF_TESTS))
    if not given:
        return []
    known = sorted(names_in_code())
    return [_words_of_unread(name, known) for name in given if name not in known]


def names_in_code() -> set[str]:
    """All variables that the code of the house names."""
    files = (path for room in ROOMS for path in (HOUSE / room).rglob("*.py"))
    return {name.decode() for path in files for name in NAMED.findall(path.read_bytes())}


def _words_of_unread(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=NEAR)
    meant = f": do you mean {near[0]}?" if near else "."
    return f"{name} is no setting of Phasewise, and nothing reads it{meant}"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="phasewise")
def main() -> None:
    """Train language models phase by phase, on data that was judged, through gates that were passed.

    RECIPE is a name (marin-8b), a .py file (FILE.py:NAME where it has several) or a .json file; RECIPE/PHASE is one of its phases.
    """
    begin(os.environ)


@main.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@says_first_word
@scale_option
@set_option
@max_tokens_option
@slice_option
@click.option("--retrain", multiple=True, metavar="PHASE", help="May be trained again, with what starts from it; may be repeated.")
@home_option
@json_option
def run(target: str, scale: Scale, home: str | None, as_json: bool, retrain: tuple[str, ...]) -> None:
    """Train here, phase by phase, gate by gate; go on with what is half done.

    Where data or settings of a trained phase changed, it is refused without --retrain; at proxy scale less than ten minutes are not.
    """
    from phasewise.flows.cli.run import run_recipe

    print_found(run_recipe(target, scale, home, retrain=retrain, as_json=as_json), nothing, as_json=as_json)


@main.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@scale_option
@set_option
@click.option("--full", is_flag=True, help="Read every byte of the files, not only of those whose size or times have changed.")
@home_option
@json_option
def status(target: str, scale: Scale, full: bool, home: str | None, as_json: bool) -> None:
    """Say what holds of each phase, what must be done again, and why; do nothing. Exit 1 if a phase is not done or a file changed."""
    from phasewise.flows.cli.status import describe, is_done, print_description

    description = describe(target, scale, home, reads_all=full)
    print_found(description, print_description, as_json=as_json)
    sys.exit(0 if is_done(description) else 1)


@main.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@scale_option
@set_option
@click.option("--at", "step", type=click.IntRange(min=0), metavar="STEP", help="What is in force after so many updates.")
@click.option("--branches", is_flag=True, help="The table with its branches.")
@click.option("--notes", is_flag=True, help="Where the record's code and its reports differ, and what they do not state.")
@click.option("--results", is_flag=True, help="What the record reported: scores, losses, gaps, counts, dates, hardware.")
@click.option("--sources", is_flag=True, help="Where each value comes from: the record's code, a default, a report, this project.")
@click.option("--diff", nargs=2, metavar="PHASE OTHER", help="What two phases differ in; either may be of another recipe (RECIPE/PHASE).")
@click.option("--slice", "on_slice", metavar="S", help="With the table: days and chip-hours on this slice, estimated.")
@click.option("--component", metavar="NAME", help="Where a component's text is: files, revision, filters, and its share of each phase.")
@home_option
@json_option
def show(target: str, scale: Scale, home: str | None, as_json: bool, **options: Any) -> None:
    """Show a recipe as a table of phases, or everything of one phase."""
    from phasewise.flows.cli.show import ShowOptions, describe_asked

    given = [name for name, value in options.items() if value not in (None, False) and name not in ("branches", "on_slice")]
    if len(given) > 1:
        raise click.UsageError(f"one question at a time: {', '.join('--' + name.replace('step', 'at') for name in given)} were given.")
    description, print_answer = describe_asked(target, scale, ShowOptions(**options), home)
    print_found(description, print_answer, as_json=as_json)


@main.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@scale_option
@set_option
@json_option
def lineage(target: str, scale: Scale, as_json: bool) -> None:
    """Show the phases, their parents, and what each hand-off changes and declares; of a phase, all that it rests on."""
    from phasewise.flows.cli.lineage import describe, print_description

    description = describe(target, scale)
    print_found(description, print_description, as_json=as_json)


@main.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@given_scale_option
@click.option("--slice", "slice_name", metavar="S", help="This slice in place of the recipe's, such as v4-2048, h100-8 or '2x v5e-256'.")
@click.option("--estimate", is_flag=True, help="Compile nothing: sizes and rooflines alone, and it says so.")
@set_option
@click.option("--region", metavar="REGION", help="Where the slice is: reads from a home in another region are named, with bytes.")
@click.option("--price-per-gib", type=FiniteFloat(min=0), metavar="USD", help="The store's price of such reads.")
@click.option("--machine-code", is_flag=True, help="Go on until the machine code is there: minutes a setup, and the same figures.")
@home_option
@json_option
def preflight(
    target: str,
    scale: Scale | None,
    slice_name: str | None,
    home: str | None,
    as_json: bool,
    machine_code: bool,
    estimate: bool,
    region: str | None,
    price_per_gib: float | None,
) -> None:
    """Compile for the slice: memory, FLOPs, time, chip-hours. Exit 1 where a phase does not fit.

    At full scale where none is named. For GPUs nothing is compiled: their figures are estimates, and say so.
    """
    from phasewise.flows.cli.preflight import preflight_target, print_preflight
    from phasewise.flows.cli.terminal import shown_on_terminal

    with shown_on_terminal():
        report = preflight_target(
            target,
            slice_name,
            home,
            scale=scale,
            machine_code=machine_code,
            estimated=estimate,
            region=region,
            usd_per_gib=price_per_gib,
        )
    print_found(report, print_preflight, as_json=as_json)
    sys.exit(0 if all(setup["fits"] for setup in report["phases"]) else 1)


@main.group()
def data() -> None:
    """Build caches, and check that what is cached is what is configured."""


@data.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@scale_option
@set_option
@max_tokens_option
@click.option("--plan", "plans", is_flag=True, help="Read nothing: say which files, how many bytes and tokens, how many hours.")
@click.option("--price-per-hour", type=FiniteFloat(min=0), metavar="USD", help="With --plan: what all workers cost, for the dollars.")
@home_option
@json_option
def prepare(target: str, scale: Scale, home: str | None, as_json: bool, plans: bool, price_per_hour: float | None) -> None:
    """Build every cache that is not there yet."""
    from phasewise.flows.cli.data import plan, print_plan
    from phasewise.flows.cli.data import prepare as prepare_command

    if plans:
        print_found(plan(target, scale, home, price_per_hour), print_plan, as_json=as_json)
        return
    if price_per_hour is not None:
        raise click.UsageError("--price-per-hour goes with --plan.")
    print_found(prepare_command(target, scale, home), nothing, as_json=as_json)


@data.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@scale_option
@set_option
@max_tokens_option
@click.option("--full", is_flag=True, help="Read every source again, also those that look as they did when they were last read.")
@home_option
@json_option
def verify(target: str, scale: Scale, home: str | None, full: bool, as_json: bool) -> None:
    """Compare what is cached with what the sources demand now. Exit 1 where they differ."""
    from phasewise.flows.cli.data import print_verification
    from phasewise.flows.cli.data import verify as verify_command

    verification = verify_command(target, scale, home, full=full)
    print_found(verification, print_verification, as_json=as_json)
    sys.exit(0 if verification["passes"] else 1)


@main.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@click.option("--benchmarks", required=True, type=PLACE, metavar="DIR", help="Benchmark items: JSON lines, a folder a benchmark.")
@click.option("--suite", metavar="S", help="Only the benchmarks of this suite of `evaluate`, as they are put to a model.")
@click.option("--min-score", type=FiniteFloat(0, 1, min_open=True), default=0.7, show_default=True, help="Share of a part that counts.")
@click.option("--tokenizer", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Of token caches outside a home.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Files, or members of archives (a.zip!/b.pdf), not to be scanned; may be repeated."
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes [default: one, or as many as cores where it pays].")
@home_option
@json_option
def scan(paths: tuple[str, ...], benchmarks: str, as_json: bool, **options: Any) -> None:
    """Look for benchmark items in files, folders and token caches.

    Read, whatever their names: JSON lines, JSON, text, Parquet, Arrow, WARC, packed by gzip, zstd, xz, bzip2 or lz4, and in zip and tar.
    Listed: what holds no text (images, sounds, arrays, tables of numbers), hidden files, what --exclude takes out.

    Exit 1 where an item is found, or where anything else was not read to its end.
    """
    from phasewise.flows.cli.scan import ScanOptions, passes, print_report, scan_paths

    report = scan_paths(paths, benchmarks, ScanOptions(**options))
    print_found(report, print_report, as_json=as_json)
    sys.exit(0 if passes(report) else 1)


@main.command()
@click.argument("kind", metavar="KIND")
@click.argument("length", metavar="LENGTH", type=int)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def order(kind: str, length: int, seed: int, as_json: bool) -> None:
    """Judge how a permutation mixes: feistel, feistel_levanter or linear. Exit 1 where it differs from a random one."""
    from phasewise.flows.cli.order import judge_order, print_judgement

    judgement = judge_order(kind, length, seed)
    print_found(judgement, print_judgement, as_json=as_json)
    sys.exit(0 if judgement["passes"] else 1)


@main.command()
@click.argument("target", metavar="RECIPE/PHASE|CHECKPOINT|FOLDER")
@evaluation_options
@given_scale_option
@set_option
@home_option
@json_option
def evaluate(target: str, scale: Scale | None, home: str | None, as_json: bool, **options: Any) -> None:
    """Measure a phase's last checkpoint: by its gate's benchmarks, or by --suite, or by how well it fits a text (--text, --held-out).

    With --suite and --text also any CHECKPOINT, or a FOLDER that transformers reads. Exit 1 where a benchmark of the suite could not be
    measured: it is in the table with the reason.
    """
    from phasewise.flows.cli.evaluate import evaluate_by

    found = evaluate_by(target, scale, home, options)
    print_found(found.measured, found.print, as_json=as_json)
    sys.exit(0 if found.is_complete else 1)


@main.command()
@click.argument("file", type=PLACE, metavar="FILE")
@click.option("--from", "origin", metavar="RECIPE", help="With the phases of this recipe in short; a FILE.json is a whole copy of it.")
@click.option(
    "--text", default="text", show_default=True, type=PLACE, metavar="FOLDER", help="Your text: text, Markdown or JSON lines, as it is."
)
def new(file: str, origin: str | None, text: str) -> None:
    """Write a recipe of your own to FILE.py: two phases over a folder of text, which train in minutes on this machine."""
    from phasewise.flows.cli.new import write_new

    click.echo("\n".join(write_new(file, origin, text)))


@main.command()
def schema() -> None:
    """Print the JSON schema of a recipe in a .json file."""
    from phasewise.flows.cli.new import schema as schema_of_recipe

    print_found(schema_of_recipe(), nothing, as_json=True)


@main.command()
@click.argument("target", metavar="RECIPE[/PHASE]")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="What the update trained on that made step N, as metrics count.")
@click.option("--row", type=click.IntRange(min=0), metavar="R", help="Only this row of the batch.")
@click.option("--text", type=PLACE, metavar="FILE", help="Where the text of this file trains, as a document or inside one.")
@click.option("--document", metavar="ID", help="Where the document with this id trains, or those whose id begins so.")
@click.option("--source-file", type=PLACE, metavar="PATH", help="Where the documents of this source file train.")
@click.option("--inside", is_flag=True, help="With --text: search inside every document, however many there are.")
@click.option("--rows", "most", type=click.IntRange(min=0), default=40, show_default=True, metavar="N", help="Rows to show; 0 is all.")
@scale_option
@set_option
@home_option
@json_option
def trace(target: str, scale: Scale, home: str | None, as_json: bool, most: int, **question: Any) -> None:
    """Say what trained at a step of a phase, or where a text, a document or a file trains; no run is needed.

    Exit 1 where it is in no cache, and where a phase was trained on other data than the recipe gives now.
    """
    from phasewise.flows.cli.trace import Question, is_as_trained, print_answer, print_remarks
    from phasewise.flows.cli.trace import trace as trace_command

    answer = trace_command(target, scale, home, Question(**question))
    print_found(answer, lambda found: print_answer(found, most=most), as_json=as_json)
    print_remarks(answer)
    sys.exit(0 if is_as_trained(answer) else 1)


@main.command()
@home_option
@click.option("--port", type=click.IntRange(1, 65_535), default=4200, show_default=True)
@click.option(
    "--recipes", type=PLACE, metavar="FOLDER", help="Deployments of the recipes in this folder, too; its .py files are run once, here."
)
@click.option("--site-port", type=click.IntRange(1, 65_535), metavar="N", help="Of the page that shows everything [default: PORT + 1].")
@click.option("--site-host", default="127.0.0.1", show_default=True, metavar="H", help="Another than this machine alone: with a token.")
@click.option("--notify", metavar="TYPE/NAME", help="A notification block of Prefect's, for phases that are refused or wait for a person.")
def up(home: str | None, port: int, recipes: str | None, site_port: int | None, site_host: str, notify: str | None) -> None:
    """Start a Prefect server with its UI, workers, the deployments and a page that shows everything, on this machine."""
    command = python_command("phasewise.deployments.local", "--port", str(port), "--site-host", site_host)
    given = {"--home": home, "--recipes": recipes, "--site-port": str(site_port) if site_port else None, "--notify": notify}
    os.execv(sys.executable, command + [word for name, value in given.items() if value for word in (name, value)])


@main.command()
@click.argument("target", metavar="RECIPE/PHASE")
@click.option("--reject", is_flag=True, help="The phase is refused, instead of going on.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept beside the verdict and shown with it.")
@click.option("--who", metavar="NAME", help="Your name [default: the user of this machine].")
@click.option(
    "--gate", type=click.Choice(["data", "health", "model", "recovery"]), help="Which one, where several wait, or one was decided."
)
@scale_option
@set_option
@home_option
@json_option
def approve(target: str, scale: Scale, home: str | None, as_json: bool, *, reject: bool, **given: Any) -> None:
    """Let a phase go on whose verdict, or whose training (`recovery`), waits for a person, or refuse it.

    A flow run that is suspended by it goes on.
    """
    from phasewise.flows.cli.approve import approve_phase, print_decision

    if not given["reason"].strip():
        raise click.UsageError("--reason needs a sentence: why is this decided?")
    print_found(approve_phase(target, scale, home, approves=not reject, **given), print_decision, as_json=as_json)


@main.command()
@click.argument("target", metavar="RECIPE/PHASE")
@click.argument("out", type=PLACE, metavar="OUT")
@scale_option
@set_option
@click.option(
    "--weights",
    metavar="WHICH",
    default="last",
    show_default=True,
    help="The last; ema, their moving average; or average:N, the mean of the last N checkpoints that are kept.",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True, help="Type of what is written.")
@click.option(
    "--generation-prompt",
    type=click.Choice(["add", "none"]),
    help="Of a chat template that opens no answer when asked for one: add what does, or leave it.",
)
@home_option
@json_option
def export(target: str, out: str, scale: Scale, home: str | None, as_json: bool, **options: Any) -> None:
    """Write a phase's weights to the folder OUT as transformers reads them: safetensors, config, tokenizer."""
    from phasewise.flows.cli.publish import export_target, print_export

    exported = export_target(target, out, scale, home, **options)
    print_found(exported, print_export, as_json=as_json)


@main.command()
@click.option("--site", "out", required=True, type=PLACE, metavar="OUT", help="A folder that is new, or was written by this command.")
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    type=PLACE,
    metavar="FILE",
    help="A recipe of your own that the home has runs of; may be repeated.",
)
@home_option
@json_option
def report(out: str, recipes: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Write the page that `phasewise up` serves, with everything that the home has, as files to the folder OUT."""
    from phasewise.flows.cli.publish import print_written, write_report_site

    print_found(write_report_site(out, home, recipes), print_written, as_json=as_json)


@main.command()
@click.argument("target", metavar="RECIPE/PHASE")
@click.argument("out", type=PLACE, metavar="OUT")
@scale_option
@set_option
@click.option("--key", type=PLACE, metavar="FILE", help="Sign with this private key: Ed25519 or ECDSA on P-256, as PEM.")
@click.option("--export", type=PLACE, metavar="FOLDER", help="Name an exported folder of the phase, file by file.")
@click.option("--licence", metavar="NAME", help="Of the model, in your words. It rests on no bytes: a signature alone speaks for it.")
@click.option(
    "--source", multiple=True, metavar="COMPONENT=FOLDER", help="Where source files are that are not in the home; may be repeated."
)
@home_option
@json_option
def card(target: str, out: str, scale: Scale, home: str | None, as_json: bool, **options: Any) -> None:
    """Write an account of a phase to the folder OUT, each claim with the digest of the bytes that it rests on."""
    from phasewise.flows.cli.publish import card_of_target, print_card

    print_found(card_of_target(target, out, scale, home, options), print_card, as_json=as_json)


@main.command("verify")
@click.argument("folder", metavar="CARD", type=click.Path(exists=True, file_okay=False))
@click.option("--home", type=PLACE, metavar="URL", help="Compare each claim with the bytes in this home.")
@click.option("--export", type=PLACE, metavar="FOLDER", help="The exported folder that the card names.")
@click.option("--public-key", type=PLACE, metavar="FILE", help="Of who says to have signed, as PEM.")
@click.option(
    "--source", multiple=True, metavar="COMPONENT=FOLDER", help="Where source files are that are not in the home; may be repeated."
)
@click.option("--max-gib", type=FiniteFloat(min=0), default=64, show_default=True, help="Read no more than this of caches and checkpoint.")
@json_option
def verify_card(folder: str, as_json: bool, **options: Any) -> None:
    """Check a card from bytes, offline. Exit 1 where a claim does not hold, and where something could not be checked."""
    from phasewise.flows.cli.publish import print_verification, verify_folder

    verification = verify_folder(folder, options)
    print_found(verification, print_verification, as_json=as_json)
    sys.exit(0 if verification["passes"] else 1)


VOCAB_SIZE = click.option("--vocab-size", type=int, required=True, metavar="N", help="Entries, with 256 bytes and two special tokens.")


@main.group()
def tokenizer() -> None:
    """Train a tokenizer on judged text, cut it to a smaller size, compare_tokenizers tokenizers."""


@tokenizer.command("train")
@click.argument("target", metavar="RECIPE[/PHASE]")
@click.argument("out", type=PLACE, metavar="OUT")
@VOCAB_SIZE
@click.option(
    "--split",
    type=click.Choice(SPLITS),
    default="trinity",
    show_default=True,
    help="How text is cut before pairs are merged.",
)
@click.option("--chat-tokens", is_flag=True, help="With the special tokens that the chat templates of the recipe's phases write.")
@click.option("--max-bytes", type=click.IntRange(min=1), default=100_000_000, show_default=True, metavar="N", help="Of each component.")
@scale_option
@set_option
@home_option
@json_option
def train_tokenizer(
    target: str, scale: Scale, home: str | None, as_json: bool, *, out: str, vocab_size: int, split: SplitName, max_bytes: int,
    chat_tokens: bool,
) -> None:  # fmt: skip
    """Train byte-level BPE on the training text of a recipe's phases, or of one phase, and write it to the folder OUT.

    Every phase must have a verdict on its data that lets it train_tokenizer: `phasewise run` judges.
    """
    from phasewise.flows.cli.tokenizer import print_manifest, train_tokenizer

    written = train_tokenizer(target, scale, home, out, vocab_size=vocab_size, split=split, max_bytes=max_bytes, chat_tokens=chat_tokens)
    print_found(written, print_manifest, as_json=as_json)


@tokenizer.command("truncate")
@click.argument("name", metavar="TOKENIZER")
@click.argument("out", type=PLACE, metavar="OUT")
@VOCAB_SIZE
@json_option
def truncate_tokenizer(name: str, out: str, *, vocab_size: int, as_json: bool) -> None:
    """Write the tokenizer in the folder TOKENIZER with its first N entries to OUT: the one that training at this size gives."""
    from phasewise.flows.cli.tokenizer import print_manifest, truncate_tokenizer

    print_found(truncate_tokenizer(name, out, vocab_size=vocab_size), print_manifest, as_json=as_json)


@tokenizer.command("compare")
@click.argument("names", metavar="TOKENIZER…", nargs=-1, required=True)
@click.option("--on", required=True, metavar="RECIPE[/PHASE]|FOLDER", help="Held-out text of a recipe, or the text in a folder.")
@click.option("--max-bytes", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N", help="Of each subset.")
@click.option("--text-key", default="text", show_default=True, metavar="KEY", help="With a FOLDER: the field of JSON lines and tables.")
@given_scale_option
@set_option
@home_option
@json_option
def compare_tokenizers(
    names: tuple[str, ...], on: str, max_bytes: int, text_key: str, scale: Scale | None, home: str | None, as_json: bool
) -> None:
    """Compare tokenizers on the same text: bytes and words per token, by component and script; round trip, digits, white space.

    A TOKENIZER is a folder with a tokenizer.json, or such a file.
    """
    from phasewise.flows.cli.tokenizer import compare_tokenizers, print_comparison

    found = compare_tokenizers(names, on, scale, home, max_bytes=max_bytes, text_key=text_key)
    print_found(found, print_comparison, as_json=as_json)


if __name__ == "__main__":
    main()
