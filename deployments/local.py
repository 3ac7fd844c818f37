"""`python -m phasewise.deployments.local --port N [--home URL] [--recipes FOLDER]`, which `phasewise up` becomes: Prefect, and our page.

A server with the home's database, work pools, the deployments of all recipes, workers and the server of our page, until Ctrl-C or SIGTERM.
Nothing that it starts outlives it, however it ends: the servers and the flow runs end when their standard input does.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import httpx

from phasewise.deployments.declared import MAX_TRAININGS, Deployment, Pool, Source, declare, declare_pools
from phasewise.deployments.notify import register_notification
from phasewise.deployments.own_recipes import read_folder
from phasewise.deployments.register import register
from phasewise.deployments.site_process import Bound, OwnSite, own_site
from phasewise.deployments.watch import watch
from phasewise.deployments.worker import work
from phasewise.flows.prefect.access import AUTH_NAME, hide_from_children, keep_links, opened
from phasewise.flows.prefect.missed_schedules import close_missed
from phasewise.flows.prefect.server import SERVED, OwnServer, own_server, quiet_environment
from phasewise.flows.prefect.stale_runs import close_leftovers
from phasewise.flows.recipes import NAMES
from phasewise.flows.recipes.python_file import allow_code
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import PhasewiseError, print_refusal, refused_by_system
from phasewise.trainer.base.storage import without_secrets
from phasewise.trainer.process.child_process import collect_rarely

EXIT_STOPPED, EXIT_INTERRUPTED = 0, 130
QUERY_SECONDS = 2


@click.command()
@click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
@click.option("--port", type=click.IntRange(1, 65_535), default=4200, show_default=True)
@click.option("--recipes", metavar="FOLDER", help="Deployments of the recipes in this folder, too; its .py files are run once, here.")
@click.option("--site-port", type=click.IntRange(1, 65_535), metavar="N", help="Of our page [default: the first free one after PORT].")
@click.option("--site-host", default="127.0.0.1", show_default=True, metavar="H", help="What our page is bound to.")
@click.option("--notify", metavar="TYPE/NAME", help="A notification block of Prefect's, for phases that are refused or wait for a person.")
def main(home: str | None, port: int, recipes: str | None, site_port: int | None, site_host: str, notify: str | None) -> None:
    """Bring up a Prefect server, its deployments and a worker on this machine, until Ctrl-C."""
    collect_rarely()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with refused_by_system(home or os.environ.get("PHASEWISE_HOME") or ".phasewise"):
            bring_up(placed(Home.open(home), Path(recipes) if recipes else None, notify), port, Bound(site_host, site_port))
    except PhasewiseError as error:
        print_refusal(f"phasewise: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("phasewise: stopped before everything was up.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_STOPPED)


@dataclass(frozen=True)
class Place:
    """What is brought up: a home, and what can be started in it.

    Attributes:
        own: the files of recipes that are not this project's.
        notify: the notification block that `--notify` names.
    """

    home: Home
    deployments: list[Deployment]
    pools: list[Pool]
    own: tuple[str, ...] = ()
    notify: str | None = None


def bring_up(place: Place, port: int, bound: Bound) -> None:
    """Bring everything up, wait for the signal to stop, and take down what was brought up.

    Args:
        bound: where the page is served.

    Raises:
        PhasewiseError: the port is taken, the home is in use, or a part did not come up.
    """
    home = place.home
    os.environ["PHASEWISE_HOME"] = str(home.root)
    for name, value in {**quiet_environment(home), "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_SECONDS)}.items():
        os.environ.setdefault(name, value)
    if given := os.environ.get("PREFECT_API_URL"):
        _say(f"Using the Prefect server at {without_secrets(given)}")
        hide_from_children()
        with own_site(home, bound, prefect_port=port, prefect_url=given.removesuffix("/api"), recipes=place.own) as site:
            asyncio.run(_serve(place, given, None, site))
        return
    with _port_is_free(port):
        _say("Starting the Prefect server …")
        with (
            own_server(home, port, "`phasewise up`") as server,
            own_site(home, bound, prefect_port=port, prefect_url=server.ui, is_own_prefect=True, recipes=place.own) as site,
        ):
            os.environ["PREFECT_API_URL"] = server.url
            hide_from_children(server.auth)
            asyncio.run(_serve(place, server.url, server, site))


def placed(home: Home, recipes: Path | None = None, notify: str | None = None) -> Place:
    """A home with the deployments of this project's recipes, and of those in a folder.

    Raises:
        PhasewiseError: a recipe is refused.
    """
    sources = [Source.named(name) for name in NAMES]
    if recipes:
        with allow_code():
            sources += read_folder(recipes, home)
    own = tuple(source.given for source in sources if source.given not in NAMES)
    return Place(home, declare(sources), declare_pools(sources), own, notify)


async def _serve(place: Place, url: str, server: OwnServer | None, site: OwnSite | None) -> None:
    from prefect.client.orchestration import get_client

    home = place.home
    if server and (left := await close_leftovers(home, SERVED)):
        _say(f"{left} flow {'run' if left == 1 else 'runs'} of an earlier server had ended without saying so: marked as crashed")
    _say(f"Registering {len(place.deployments)} deployments …")
    try:
        retired = await register(place.deployments, place.pools)
        async with get_client() as client:
            notified = await register_notification(client, place.notify)
    except httpx.HTTPError as error:
        raise PhasewiseError(
            f"the Prefect server at {without_secrets(url)} did not take the deployments: {error}. Check PREFECT_API_URL."
        ) from None
    if notified:
        _say(f"Who is notified of phases that are refused or wait for a person: {notified}")
    if missed := await close_missed():
        _say(f"{missed} scheduled {'run was' if missed == 1 else 'runs were'} missed, with a later one of the same schedule: that one runs")
    if retired:
        _say(f"No longer declared, and removed: {', '.join(retired)}")
    watching = asyncio.create_task(watch(home, server))
    try:
        await work(lambda: _say(instructions(place, url, site, server.auth if server else None)), watching)
    finally:
        watching.cancel()


def instructions(place: Place, url: str, site: OwnSite | None = None, auth: str | None = None) -> str:
    """What to do next, in plain text. Links with secrets are in a file of the home, and said on a terminal alone: other output is kept."""
    prefect = Path(sys.executable).with_name("prefect")
    ui = url.removesuffix("/api")
    links = opened(ui, auth) if auth else ui, site.problem or site.link(auth) if site else "no page"
    kept = keep_links(place.home, links)
    shown = links if sys.stdout.isatty() else (ui, site.problem or site.url if site else "no page")
    secret = f'PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(kept.with_name(AUTH_NAME)))})" ' if auth else ""
    recipes = sorted({deployment.tags[1] for deployment in place.deployments})
    unserved = [pool.name for pool in place.pools if pool.name not in SERVED]
    return "\n".join(
        [
            "",
            f"Prefect UI:  {shown[0]}",
            f"Everything:  {shown[1]}",
            f"Links:       {kept}: with the secrets that both pages ask for once. Only you can read it.",
            f"Home:        {place.home.root}",
            f"Deployments: {len(place.deployments)}, of {', '.join(recipes)}",
            f"Work pools:  {', '.join(SERVED)} work here; {', '.join(unserved)} wait for machines with such slices",
            "",
            "Start a run",
            "  in the UI:  Deployments, a name such as train-recipe/marin-8b, Run, Custom run: the form lists what can be chosen",
            f"  in a shell: PREFECT_API_URL={url} {secret}{prefect} deployment run train-recipe/marin-8b",
            f"At most {MAX_TRAININGS} training at a time; others wait. Schedules are examples, inactive until you switch them on.",
            "",
            "Stop: Ctrl-C. Runs at work save and end with it; started again, they go on from what is done.",
        ]
    )


@contextlib.contextmanager
def _port_is_free(port: int) -> Iterator[None]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PhasewiseError(f"port {port} cannot be used ({error.strerror}): choose another with --port.") from None
    yield


def _say(text: str) -> None:
    click.echo(text)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
