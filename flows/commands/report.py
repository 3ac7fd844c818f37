"""`phasewise report`: the page that shows everything, as files."""

from pathlib import Path
from typing import Any

import click

from phasewise.flows.recipes import NAMES
from phasewise.flows.site.export import check_place, write_site
from phasewise.flows.site.shelf import Shelf
from phasewise.flows.site.site import Site
from phasewise.tasks.home import Home
from phasewise.trainer.base.wording import plural


def write_report_site(out: str, home: str | None, recipes: tuple[str, ...]) -> dict[str, Any]:
    """Write the pages of everything in the home to the folder `out`.

    Raises:
        ConfigError: as `flows.site.export.write_site`, or the home cannot be read.
        StorageError: as `Home.look_at_all`.
    """
    check_place(Path(out).expanduser().absolute())
    place = Home.at(home, reads_only=True)
    place.look_at_all()
    shelf = Shelf(place, (*NAMES, *recipes))
    written = write_site(Site(shelf), Path(out))
    return {"folder": str(written.folder), "pages": written.pages, "recipes": list(written.recipes), "problems": shelf.problems}


def print_written(found: dict[str, Any]) -> None:
    """For people: where it is."""
    click.echo(f"{plural(found['pages'], 'page')} on {', '.join(found['recipes'])}: {found['folder']}/index.html")
    for problem in found["problems"]:
        click.echo(f"left out: {problem}")
