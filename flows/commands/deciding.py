"""`phasewise approve`, as the command line has it."""

from typing import Any

import click

from phasewise.flows.options import Scale, home_option, json_option, scale_option, set_option
from phasewise.flows.printing import print_found


@click.command()
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
    from phasewise.flows.commands.approve import approve_phase, print_decision

    if not given["reason"].strip():
        raise click.UsageError("--reason needs a sentence: why is this decided?")
    print_found(approve_phase(target, scale, home, approves=not reject, **given), print_decision, as_json=as_json)
