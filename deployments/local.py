"""`python -m deployments.local --port N [--home URL]`, which `phasewise up` becomes: everything that Prefect needs, on this machine.

A server with the home's database, a work pool, the deployments of `prefect.yaml` and a worker, until Ctrl-C or SIGTERM. Nothing that it
starts outlives it, however it ends: the server and the flow runs end when their standard input does.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import httpx

from deployments.catalogue import MAX_TRAININGS, read_deployments, register
from deployments.watch import watch
from deployments.worker import work
from flows.leftovers import close_leftovers
from flows.server import POOL, OwnServer, own_server, quiet_environment
from tasks.home import Home
from trainer.base.errors import PhasewiseError

EXIT_STOPPED, EXIT_INTERRUPTED = 0, 130
QUERY_SECONDS = 2


@click.command()
@click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
@click.option("--port", type=click.IntRange(1, 65_535), default=4200, show_default=True)
def main(home: str | None, port: int) -> None:
    """Bring up a Prefect server, its deployments and a worker on this machine, until Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        bring_up(Home.open(home), port)
    except PhasewiseError as error:
        click.echo(f"phasewise: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("phasewise: stopped before everything was up.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_STOPPED)


def bring_up(home: Home, port: int) -> None:
    """Bring everything up, wait for the signal to stop, and take down what was brought up.

    Raises:
        PhasewiseError: the port is taken, the home is in use, or a part did not come up.
    """
    read_deployments()
    os.environ["PHASEWISE_HOME"] = str(home.root)
    for name, value in {**quiet_environment(home), "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_SECONDS)}.items():
        os.environ.setdefault(name, value)
    if given := os.environ.get("PREFECT_API_URL"):
        _say(f"Using the Prefect server at {given}")
        asyncio.run(_serve(home, given, None))
        return
    with _port_is_free(port):
        _say("Starting the Prefect server …")
        with own_server(home, port, "`phasewise up`") as server:
            os.environ["PREFECT_API_URL"] = server.url
            asyncio.run(_serve(home, server.url, server))


async def _serve(home: Home, url: str, server: OwnServer | None) -> None:
    """Register and work; a server that is ours (`server`) is cleared of what is left, and watched."""
    if server and (left := await close_leftovers(home, POOL)):
        _say(f"{left} flow {'run' if left == 1 else 'runs'} of an earlier server had ended without saying so: marked as crashed")
    _say("Registering the deployments …")
    try:
        names = await register(home.root)
    except httpx.HTTPError as error:
        raise PhasewiseError(f"the Prefect server at {url} did not take the deployments: {error}. Check PREFECT_API_URL.") from None
    watching = asyncio.create_task(watch(home, server)) if server else None
    try:
        await work(lambda: _say(instructions(home, url, names)), watching)
    finally:
        if watching:
            watching.cancel()


def instructions(home: Home, url: str, names: list[str]) -> str:
    """What to do next, in plain text."""
    prefect = Path(sys.executable).with_name("prefect")
    return "\n".join(
        [
            "",
            f"Prefect UI:  {url.removesuffix('/api')}",
            f"Home:        {home.root}",
            f"Deployments: {', '.join(names)}",
            "",
            "Start a run",
            "  in the UI:  Deployments, a name, Run, Custom run: the form has every parameter",
            f"  in a shell: PREFECT_API_URL={url} {prefect} deployment run {names[0]} --param scale=proxy",
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
