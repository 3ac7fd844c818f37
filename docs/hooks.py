"""Pages that mkdocs generates from the code: the commands, and the Python API."""

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from phasewise.flows.cli.help import MAX_WIDTH
from phasewise.flows.cli.main import main

API = (
    "phasewise.flows.api",
    "phasewise.flows.recipes.words",
    "phasewise.flows.recipes.recipe",
    "phasewise.flows.recipes.phase",
    "phasewise.trainer.config.run",
    "phasewise.trainer.config.model",
    "phasewise.validations.verdict",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "reference/cli.md", content=commands_page()))
    files.append(
        File.generated(config, "reference/api.md", content="# Python API\n\n" + "\n\n".join(f"::: {module}" for module in API) + "\n")
    )
    return files


def commands_page() -> str:
    """Return the help of every command as Markdown."""
    sections = ["# Commands", f"```text\n{_help(main, ('phasewise',))}\n```"]
    for path, command in _commands(main, ("phasewise",)):
        sections.append(f"## {' '.join(path)}\n\n```text\n{_help(command, path)}\n```")
    return "\n\n".join(sections) + "\n"


def _commands(group: click.Group, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            found += _commands(command, (*path, name))
        elif not command.hidden:
            found.append(((*path, name), command))
    return found


def _help(command: click.Command, path: tuple[str, ...]) -> str:
    context = click.Context(command, info_name=" ".join(path), terminal_width=MAX_WIDTH, help_option_names=["-h", "--help"])
    return command.get_help(context)
