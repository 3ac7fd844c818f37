"""The options that several commands of `phasewise` have."""

import functools
import math
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args

import click

from phasewise.trainer.base.errors import print_refusal, refusal_of


class Commands(click.Group):
    """Turns a refusal into one line and an exit code: 1 for a verdict or a refusal, 2 for wrong usage, 3 for a run that diverged."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from phasewise.flows.recipes.python_file import allow_code

        try:
            with allow_code():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            refusal = refusal_of(error, ctx.meta.get(HOME) or os.environ.get("PHASEWISE_HOME") or ".phasewise")
            if refusal is None:
                raise
            print_refusal(f"phasewise: {refusal}")
            ctx.exit(refusal.exit_code)
        except KeyboardInterrupt:
            click.echo("phasewise: stopped; the same command goes on from here.", err=True)
            ctx.exit(130)


Scale = Literal["proxy", "130m", "370m", "1b", "3b", "full", "own"]
Command = Callable[..., Any]


class FiniteFloat(click.FloatRange):
    """A number within bounds: NaN is within none, and infinity is not a number that decides anything."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error that names the option."""
        found = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"expected a finite number, found {value}.", param, ctx)
        return super().convert(found, param, ctx)


class NamedPlace(click.ParamType):
    """A path or a URL that is not empty: an empty word is most often a variable that is not set."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The place, or a usage error that names the option."""
        if not value.strip():
            self.fail(f"expected a path or a URL, found {value!r}: leave the option out, or name one.", param, ctx)
        if "\0" in value:
            self.fail("expected a path or a URL, found a zero byte in it.", param, ctx)
        return value


PLACE = NamedPlace()
HOME = f"{__name__}.home"
"""The home of a command, in what its contexts share: an error that names no file names this one's disk."""


def _home(ctx: click.Context, _parameter: click.Parameter, home: str | None) -> str | None:
    ctx.meta[HOME] = home
    return home


home_option = click.option(
    "--home", type=PLACE, metavar="URL", callback=_home, help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise]."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else there.")


given_scale_option = click.option(
    "--scale",
    type=click.Choice(get_args(Scale)),
    help="Sizes to run at [default: a recipe with sizes of its own is run as it is written, another one at proxy scale].",
)
"""`--scale` as it is given, for a command whose target may be no recipe."""


def says_first_word(command: Command) -> Command:
    """On a terminal, a line before anything is loaded: reading a recipe and what runs it takes seconds."""

    @functools.wraps(command)
    def said(*, target: str, **others: Any) -> Any:
        if sys.stderr.isatty():
            click.echo(f"{target}: reading the recipe …", err=True)
        return command(target=target, **others)

    return said


def scale_option(command: Command) -> Command:
    """`--scale`: the command is given the scale that is asked for, or else the default one of its target."""

    @functools.wraps(command)
    def at_scale(*, target: str, scale: Scale | None, **others: Any) -> Any:
        from phasewise.flows.recipes import scale_of

        return command(target=target, scale=scale_of(target, scale), **others)

    return given_scale_option(at_scale)


def _set(ctx: click.Context, _parameter: click.Parameter, settings: tuple[str, ...]) -> None:
    """In force until the command ends."""
    if settings:
        from phasewise.flows.recipes.assignments import setting, settings_in_force

        ctx.with_resource(setting((*settings_in_force(), *settings)))


def _slice(ctx: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    if name is None:
        return
    from phasewise.flows.recipes.assignments import setting, settings_in_force

    ctx.with_resource(setting((*settings_in_force(), f"*.slice={name}")))


slice_option = click.option(
    "--slice",
    metavar="S",
    expose_value=False,
    callback=_slice,
    help="Train every phase on this slice in place of the recipe's: h100-1, '2x h100-8', cpu-2; local is the devices that are here.",
)


def _max_tokens(ctx: click.Context, _parameter: click.Parameter, tokens: int | None) -> None:
    if tokens is None:
        return
    from phasewise.flows.recipes.assignments import setting, settings_in_force

    ctx.with_resource(setting((*settings_in_force(), f"recipe.max_tokens={tokens}")))


max_tokens_option = click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    expose_value=False,
    callback=_max_tokens,
    help="Read about so many tokens of all components together [default: all; at a scale between what it draws, and a quarter more].",
)


set_option = click.option(
    "--set",
    multiple=True,
    metavar="PHASE.FIELD=VALUE",
    expose_value=False,
    callback=_set,
    help="Another value for a trial, in the sizes of the scale that is run; recipe.FIELD is the recipe's own. May be repeated.",
)


_EVALUATION_OPTIONS = (
    click.option(
        "--suite", metavar="S", help="Benchmarks of this suite: core, core+mmlu, generation, leaderboard, trinity, folder, niah[:LENGTH]."
    ),
    click.option("--benchmarks", type=PLACE, metavar="DIR", help="With --suite: their items, as JSON lines [default: the hub]."),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="With --suite: only the first N items of each part, for a look."),
    click.option("--weights", type=click.Choice(["last", "ema"]), help="With --suite: the last, or their moving average [default: last]."),
    click.option(
        "--context", type=click.IntRange(min=2), metavar="N", help="With --suite: read N tokens, more than the model was trained on."
    ),
    click.option("--allow-code", is_flag=True, help="With --suite: run programs that the model writes, in a sandbox."),
    click.option(
        "--text", type=PLACE, metavar="DIR", help="Corpus fit on this text: bits per byte and perplexity of each file and folder in DIR."
    ),
    click.option("--held-out", is_flag=True, help="Corpus fit on the phase's held-out documents, each component a subset."),
    click.option("--text-key", metavar="KEY", help="With --text: the field of JSON lines and tables [default: text]."),
    click.option(
        "--tokenizer", type=PLACE, metavar="FILE", help="With --suite and --text: tokenizer.json of a CHECKPOINT whose home is not here."
    ),
)


def evaluation_options(command: Command) -> Command:
    """What `phasewise evaluate` measures; none that is not given has a value."""
    for option in reversed(_EVALUATION_OPTIONS):
        command = option(command)
    return command
