"""How a command of `phasewise` ends that is refused or stopped."""

import os
from typing import Any

import click

from phasewise.flows.options import HOME
from phasewise.trainer.base.system_errors import print_refusal, refusal_of


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
