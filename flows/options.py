"""The options that several commands of `phasewise` have."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import click

Scale = Literal["proxy", "full", "own"]
Command = Callable[..., Any]

home_option = click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else there.")


given_scale_option = click.option(
    "--scale",
    type=click.Choice(["proxy", "full", "own"]),
    help="Sizes to run at [default: a recipe with sizes of its own is run as it is written, another one at proxy scale].",
)
"""`--scale` as it is given, for a command whose target may be no recipe."""


def scale_option(command: Command) -> Command:
    """`--scale`: the command is given the scale that is asked for, or else the default one of its target."""

    @functools.wraps(command)
    def at_scale(*, target: str, scale: Scale | None, **others: Any) -> Any:
        from flows.recipes import scale_of

        return command(target=target, scale=scale_of(target, scale), **others)

    return given_scale_option(at_scale)


def _set(ctx: click.Context, _parameter: click.Parameter, settings: tuple[str, ...]) -> None:
    """In force until the command ends."""
    if settings:
        from flows.recipes.assignments import setting

        ctx.with_resource(setting(settings))


set_option = click.option(
    "--set",
    multiple=True,
    metavar="PHASE.FIELD=VALUE",
    expose_value=False,
    callback=_set,
    help="Another value for a trial, in the sizes of the scale that is run; recipe.FIELD is the recipe's own. May be repeated.",
)
