"""The options that several commands of `phasewise` have."""

import functools
import json
import logging
import math
import os
from collections.abc import Callable
from typing import Any, Literal, get_args

import click
from click.shell_completion import CompletionItem

from phasewise.flows.cli.help import EXAMPLES, EXIT_CODES, GROUPS, MAX_WIDTH
from phasewise.trainer.base.errors import print_refusal, refusal_of


class RecipeCommand(click.Command):
    """A command, which runs the code of a recipe file if it gets one."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        from phasewise.flows.recipes.python_file import allow_code

        with allow_code():
            return super().invoke(ctx)


class Subcommands(click.Group):
    """A group of commands."""

    command_class = RecipeCommand


class Commands(Subcommands):
    """The commands of `phasewise`. An error becomes one line and an exit code."""

    group_class = Subcommands

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, then examples and exit codes."""
        tables = {group: tuple(commands.items()) for group, commands in GROUPS.items()} | {"Examples": EXAMPLES, "Exit codes": EXIT_CODES}
        for heading, rows in tables.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=MAX_WIDTH // 2)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
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
            click.echo("phasewise: stopped. The same command resumes.", err=True)
            ctx.exit(130)


Scale = Literal["proxy", "130m", "370m", "1b", "3b", "full", "own"]
Command = Callable[..., Any]


class FiniteFloat(click.FloatRange):
    """A finite number within bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or raise a usage error."""
        found = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"expected a finite number, found {value}.", param, ctx)
        return super().convert(found, param, ctx)


class NamedPlace(click.ParamType):
    """A path or a URL. An empty value is rejected, since it usually comes from an unset shell variable."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path or URL, or raise a usage error."""
        if not value.strip():
            self.fail(f"expected a path or a URL, found {value!r}. Omit the option, or give a value.", param, ctx)
        if "\0" in value:
            self.fail("expected a path or a URL, found a zero byte in it.", param, ctx)
        return value


PLACE = NamedPlace()
HOME = f"{__name__}.home"  # key of the home in `click.Context.meta`: an error without a file names the disk of the home


def print_found(value: Any, for_people: Callable[[Any], None] | None, *, as_json: bool) -> None:
    """Print a result as one JSON object or for people. None prints nothing for people: the command already printed its lines."""
    if as_json:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=os.fspath))
    elif for_people:
        for_people(value)


def target_argument(metavar: str = "RECIPE[/PHASE]") -> Callable[[Command], Command]:
    """Return the argument `target`. The shell completes names of recipes, files, and after a slash the phases of a recipe."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, given: str) -> list[CompletionItem]:
        from phasewise.flows.recipes import NAMES, load_written

        recipe, slash, _ = given.rpartition("/")
        if slash and recipe in NAMES:  # the code of a recipe file does not run here
            names = [f"{recipe}/{phase.name}" for phase in load_written(recipe).phases]
            return [CompletionItem(name) for name in names if name.startswith(given)]
        return [*(CompletionItem(name) for name in NAMES if name.startswith(given)), CompletionItem(given, type="file")]

    return click.argument("target", metavar=metavar, shell_complete=complete)


home_option = click.option(
    "--home",
    type=PLACE,
    metavar="URL",
    callback=lambda ctx, _parameter, home: ctx.meta.setdefault(HOME, home),
    help="Folder or URL of all data. Default: PHASEWISE_HOME, else ./.phasewise.",
)


def _explain(ctx: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        from phasewise.tasks.progress import LOGGER

        LOGGER.setLevel(logging.DEBUG)
        ctx.call_on_close(lambda: LOGGER.setLevel(logging.INFO))


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=_explain, help="Explain the statistics of each verdict, and list details."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")

given_scale_option = click.option(
    "--scale", type=click.Choice(get_args(Scale)), help="Size of the run. Default: proxy, or own for a recipe with its own sizes."
)
"""`--scale` without a default, for commands with other targets than recipes."""

Decorator = Callable[[Command], Command]


def scale_option(command: Command) -> Command:
    """Add `--scale`, with the default of the target."""

    @functools.wraps(command)
    def at_scale(*, target: str, scale: Scale | None, **others: Any) -> Any:
        from phasewise.flows.recipes import scale_of

        return command(target=target, scale=scale_of(target, scale), **others)

    return given_scale_option(at_scale)


def _trial_option(name: str, template: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return an option whose values become settings of `--set` while the command runs."""

    def apply(ctx: click.Context, _parameter: click.Parameter, given: Any) -> None:
        values = given if isinstance(given, tuple) else (given,)
        settings = [template.format(value) for value in values if value is not None]
        if settings:
            from phasewise.flows.recipes.assignments import setting, settings_in_force

            ctx.with_resource(setting((*settings_in_force(), *settings)))

    return click.option(name, expose_value=False, callback=apply, **attributes)


set_option = _trial_option(
    "--set",
    "{}",
    multiple=True,
    metavar="[PHASE.]NAME=VALUE",
    help="Change an argument (peak) or a field (gates.data.max_epochs) of a phase, or of every phase, for a trial. Repeatable.",
)
slice_option = _trial_option(
    "--slice",
    "*.slice={}",
    metavar="S",
    help="Replace the slice of every phase: h100-1, '2x h100-8', cpu-2, or local for the devices of this machine.",
)
max_tokens_option = _trial_option(
    "--max-tokens",
    "recipe.max_tokens={}",
    type=click.IntRange(min=1),
    metavar="N",
    help="Limit of the tokens read from all components together. Default: all tokens, or 1.25 times the need of the scale.",
)


def _both(outer: Decorator, inner: Decorator) -> Decorator:
    return lambda command: outer(inner(command))


home_json_options, scale_set_options = _both(home_option, json_option), _both(scale_option, set_option)
given_scale_set_options, work_options = _both(given_scale_option, set_option), _both(_both(home_option, verbose_option), json_option)
scale_home_options = _both(scale_set_options, home_json_options)
given_scale_home_options = _both(given_scale_set_options, home_json_options)
