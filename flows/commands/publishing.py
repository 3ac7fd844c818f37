"""`phasewise export`, `report`, `card` and `verify`: what leaves the home."""

import sys
from typing import Any

import click

from phasewise.flows.options import PLACE, FiniteFloat, Scale, home_option, json_option, scale_option, set_option
from phasewise.flows.printing import print_found


@click.command()
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
    from phasewise.flows.commands.export import export_target, print_export

    exported = export_target(target, out, scale, home, **options)
    print_found(exported, print_export, as_json=as_json)


@click.command()
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
    from phasewise.flows.commands.report import print_written, write_report_site

    print_found(write_report_site(out, home, recipes), print_written, as_json=as_json)


@click.command()
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
    from phasewise.flows.commands.card import card_of_target, print_card

    print_found(card_of_target(target, out, scale, home, options), print_card, as_json=as_json)


@click.command()
@click.argument("folder", metavar="CARD", type=click.Path(exists=True, file_okay=False))
@click.option("--home", type=PLACE, metavar="URL", help="Compare each claim with the bytes in this home.")
@click.option("--export", type=PLACE, metavar="FOLDER", help="The exported folder that the card names.")
@click.option("--public-key", type=PLACE, metavar="FILE", help="Of who says to have signed, as PEM.")
@click.option(
    "--source", multiple=True, metavar="COMPONENT=FOLDER", help="Where source files are that are not in the home; may be repeated."
)
@click.option("--max-gib", type=FiniteFloat(min=0), default=64, show_default=True, help="Read no more than this of caches and checkpoint.")
@json_option
def verify(folder: str, as_json: bool, **options: Any) -> None:
    """Check a card from bytes, offline. Exit 1 where a claim does not hold, and where something could not be checked."""
    from phasewise.flows.commands.card import print_verification, verify_folder

    verification = verify_folder(folder, options)
    print_found(verification, print_verification, as_json=as_json)
    sys.exit(0 if verification["passes"] else 1)
