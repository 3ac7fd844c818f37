"""`phasewise tokenizer`, as the command line has it."""

import click

from phasewise.flows.options import PLACE, Scale, given_scale_option, home_option, json_option, scale_option, set_option
from phasewise.flows.printing import print_found
from phasewise.tasks.data.tokenizer_training import SPLITS, SplitName

VOCAB_SIZE = click.option("--vocab-size", type=int, required=True, metavar="N", help="Entries, with 256 bytes and two special tokens.")


@click.group()
def tokenizer() -> None:
    """Train a tokenizer on judged text, cut it to a smaller size, compare tokenizers."""


@tokenizer.command()
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
def train(
    target: str, scale: Scale, home: str | None, as_json: bool, *, out: str, vocab_size: int, split: SplitName, max_bytes: int,
    chat_tokens: bool,
) -> None:  # fmt: skip
    """Train byte-level BPE on the training text of a recipe's phases, or of one phase, and write it to the folder OUT.

    Every phase must have a verdict on its data that lets it train: `phasewise run` judges.
    """
    from phasewise.flows.commands.tokenizer_train import print_manifest, train_tokenizer

    written = train_tokenizer(target, scale, home, out, vocab_size=vocab_size, split=split, max_bytes=max_bytes, chat_tokens=chat_tokens)
    print_found(written, print_manifest, as_json=as_json)


@tokenizer.command()
@click.argument("name", metavar="TOKENIZER")
@click.argument("out", type=PLACE, metavar="OUT")
@VOCAB_SIZE
@json_option
def truncate(name: str, out: str, *, vocab_size: int, as_json: bool) -> None:
    """Write the tokenizer in the folder TOKENIZER with its first N entries to OUT: the one that training at this size gives."""
    from phasewise.flows.commands.tokenizer_train import print_manifest, truncate_tokenizer

    print_found(truncate_tokenizer(name, out, vocab_size=vocab_size), print_manifest, as_json=as_json)


@tokenizer.command()
@click.argument("names", metavar="TOKENIZER…", nargs=-1, required=True)
@click.option("--on", required=True, metavar="RECIPE[/PHASE]|FOLDER", help="Held-out text of a recipe, or the text in a folder.")
@click.option("--max-bytes", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N", help="Of each subset.")
@click.option("--text-key", default="text", show_default=True, metavar="KEY", help="With a FOLDER: the field of JSON lines and tables.")
@given_scale_option
@set_option
@home_option
@json_option
def compare(names: tuple[str, ...], on: str, max_bytes: int, text_key: str, scale: Scale | None, home: str | None, as_json: bool) -> None:
    """Compare tokenizers on the same text: bytes and words per token, by component and script; round trip, digits, white space.

    A TOKENIZER is a folder with a tokenizer.json, or such a file.
    """
    from phasewise.flows.commands.tokenizer_compare import compare_tokenizers, print_comparison

    found = compare_tokenizers(names, on, scale, home, max_bytes=max_bytes, text_key=text_key)
    print_found(found, print_comparison, as_json=as_json)
