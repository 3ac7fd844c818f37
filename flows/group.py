"""How a command of `phasewise` ends that is refused or stopped."""

from typing import Any

import click

from trainer.base.errors import PhasewiseError


class Commands(click.Group):
    """Turns a refusal into one line and an exit code: 1 for a verdict or a refusal, 2 for wrong usage, 3 for a run that diverged."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from flows.recipes.python_file import allow_code

        try:
            with allow_code():
                return super().invoke(ctx)
        except PhasewiseError as error:
            click.echo(f"phasewise: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("phasewise: stopped; the same command goes on from here.", err=True)
            ctx.exit(130)
