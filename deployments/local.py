"""`python -m phasewise.deployments.local --port N`, the process of `phasewise up`: Prefect's server, deployments, workers and our page.

It runs until Ctrl-C or SIGTERM. Its servers and flow runs end with it, also if it is killed: they end when their standard input ends.
"""

import asyncio
import functools
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click
import httpx

from phasewise.deployments.declared import MAX_TRAININGS, PAGE, START, Deployment, Pool, Source, declare, declare_pools, read_folder
from phasewise.deployments.register import register, register_notification
from phasewise.deployments.site_process import OwnSite, bind_problem, own_site
from phasewise.flows.prefect.access import AUTH_NAME, OPEN_PATH, hide_from_children, keep_links
from phasewise.flows.prefect.server import SERVED, OwnServer, apply_settings, check_given_server, own_server
from phasewise.flows.prefect.stale_runs import Rerun, Sweep, close_leftovers, close_missed
from phasewise.flows.recipes import NAMES, load_written
from phasewise.flows.recipes.python_file import allow_code
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, print_refusal, refused_by_system
from phasewise.trainer.base.storage import without_secrets
from phasewise.trainer.base.wording import name_some, near
from phasewise.trainer.process.child_process import collect_rarely, stop_seconds

T = TypeVar("T")
NAME = "this machine"
RUN_MODULE = "phasewise.deployments.flow_process"
RETRY_SECONDS, LOOK_SECONDS, SWEEP_SECONDS = 2.0, 1.0, 5.0
SWEEPS_A_SCHEDULE = 3
"""Missed and waiting runs are looked for in one of so many sweeps. A phase wakes the runs that wait for it at its end."""
REPORT_SECONDS = 10.0  # time for a stopped flow run to report its end, after the time to save
OTHERS_RARER = 2  # workers of the other pools poll less often than the worker of the first


async def work(on_started: Callable[[], None], supervision: "asyncio.Task[None] | None" = None) -> None:
    """Run the flow runs of the served pools until SIGINT or SIGTERM. Then stop active flow runs, so that they save and report.

    Raises:
        PhasewiseError: a worker ended by itself, or the server ended too often.
    """
    import psutil

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    started: set[str] = set()
    workers = {pool: asyncio.create_task(_work_in(pool, started, on_started)) for pool in SERVED}
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, *workers.values(), *([supervision] if supervision else [])}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for pool, task in workers.items():
        if not stop.is_set() and task.done():
            raise PhasewiseError(f"the worker of pool {pool} ended by itself: {task.exception() or 'no reason given'}.")
    if supervision and not supervision.done():
        supervision.cancel()  # it would restart the flow runs that are stopped below
        supervision = None
    # Workers stay up until the flow runs have ended: the workers report how they ended
    running = [child for child in psutil.Process().children() if RUN_MODULE in child.cmdline()]
    if running:
        click.echo(f"stopping {len(running)} flow {'run' if len(running) == 1 else 'runs'}", err=True)
    for process in running:
        process.terminate()
    deadline = loop.time() + stop_seconds() + REPORT_SECONDS
    while any(process.is_running() for process in running) and loop.time() < deadline:
        await asyncio.sleep(0.1)
    for task in workers.values():
        task.cancel()
    await asyncio.wait(workers.values())
    if supervision:
        supervision.result()


async def _work_in(pool: str, started: set[str], on_all_started: Callable[[], None]) -> None:
    from prefect.settings import PREFECT_WORKER_QUERY_SECONDS, temporary_settings
    from prefect.workers.process import ProcessWorker

    before = set(SERVED[: SERVED.index(pool)])
    while not before <= started:
        await asyncio.sleep(0.1)

    def note(message: str) -> None:
        if "started" in message:
            started.add(pool)
            if started == set(SERVED):
                on_all_started()

    seconds = PREFECT_WORKER_QUERY_SECONDS.value() * (OTHERS_RARER if before else 1)
    with temporary_settings({PREFECT_WORKER_QUERY_SECONDS: seconds}):
        worker = ProcessWorker(work_pool_name=pool, name=NAME, create_pool_if_not_found=False)
        for name in ("get_and_submit_flow_runs", "sync_with_backend"):
            setattr(worker, name, patient(getattr(worker, name)))
        await worker.start(printer=note)


def patient(request: Callable[[], Awaitable[T]]) -> Callable[[], Coroutine[Any, Any, T]]:
    """Retry a request until the server answers. Prefect's worker gives up after some minutes, and ends its flow runs."""

    @functools.wraps(request)
    async def retried() -> T:
        while True:
            try:
                return await request()
            except httpx.TransportError:
                await asyncio.sleep(RETRY_SECONDS)

    return retried


async def supervise(home: Home, server: OwnServer | None) -> None:
    """Print errors of the server and restart it. Close orphaned and missed flow runs, wake waiting ones, restart crashed ones.

    Args:
        server: None if another program runs the server. Then only flow runs with a process in this home are touched.

    Raises:
        PhasewiseError: the server ended too often.
    """
    from phasewise.flows.prefect.flow_decorator import wake  # it loads Prefect

    sweep = Sweep(home, SERVED)
    rerun = Rerun(home, datetime.now(UTC), SERVED if server else ())
    since_sweep, sweeps = 0.0, 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if server:
            for error in server.new_errors():
                click.echo(f"phasewise: the Prefect server reports: {error} (see {server.log})", err=True)
            if line := server.restart_if_ended():
                click.echo(f"phasewise: {line}", err=True)
        since_sweep += LOOK_SECONDS
        if since_sweep >= SWEEP_SECONDS:
            with suppress(httpx.HTTPError):  # the server is busy or down: the next sweep is soon
                await sweep.look()
                sweeps += 1
                if sweeps % SWEEPS_A_SCHEDULE == 0:
                    await close_missed()
                    await wake(home)
                for name in await rerun.look(but=sweep.asked):
                    click.echo(f"phasewise: '{name}' crashed, and is started once more", err=True)
            since_sweep = 0.0


EXIT_STOPPED, EXIT_INTERRUPTED = 0, 130
QUERY_SECONDS = 3


@dataclass(frozen=True)
class Plan:
    """The home, its deployments and work pools, the recipe files of the user, and the block of `--notify`."""

    home: Home
    deployments: list[Deployment]
    pools: list[Pool]
    recipe_files: tuple[str, ...]
    notify: str | None


@click.command()
@click.option("--home", metavar="URL", help="Folder of everything [default: PHASEWISE_HOME, else ./.phasewise].")
@click.option("--port", type=click.IntRange(1, 65_535), default=4200, show_default=True)
@click.option("--recipe", "names", multiple=True, metavar="NAME", help="Deploy only this included recipe. Repeat for others.")
@click.option("--recipes", metavar="FOLDER", help="Deploy the recipes of this folder, too. Its .py files run once, here.")
@click.option("--site-port", type=click.IntRange(1, 65_535), metavar="N", help="Of our page [default: the first free one after PORT].")
@click.option("--site-host", default="127.0.0.1", show_default=True, metavar="H", help="Host that our page is bound to.")
@click.option("--notify", metavar="TYPE/NAME", help="A notification block of Prefect, for phases that are refused or wait for a person.")
def main(
    home: str | None, port: int, names: tuple[str, ...], recipes: str | None, site_port: int | None, site_host: str, notify: str | None
) -> None:
    """Run a Prefect server, its deployments and workers on this machine, until Ctrl-C."""
    collect_rarely()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with refused_by_system(home or os.environ.get("PHASEWISE_HOME") or ".phasewise"):
            opened_home = Home.open(home)
            if unknown := [name for name in names if name not in NAMES]:
                raise ConfigError(f"--recipe: expected an included recipe, found {unknown[0]!r}, {near(unknown[0], NAMES)}")
            sources = [Source(name, load_written(name)) for name in NAMES if name in (names or NAMES)]
            own: list[Source] = []
            if recipes:
                with allow_code():
                    own = read_folder(Path(recipes), opened_home)
            sources += own
            files = tuple(source.given for source in own)
            bring_up(Plan(opened_home, declare(sources), declare_pools(sources), files, notify), port, site_host, site_port)
    except PhasewiseError as error:
        print_refusal(f"phasewise: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("phasewise: stopped before everything was up.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_STOPPED)


def bring_up(plan: Plan, port: int, site_host: str, site_port: int | None) -> None:
    """Start the servers, deployments and workers, wait for the stop signal, and stop them.

    Raises:
        PhasewiseError: the port is in use, the home is in use, or a server did not start.
    """
    home = plan.home
    os.environ["PHASEWISE_HOME"] = str(home.root)
    apply_settings(home, PREFECT_WORKER_QUERY_SECONDS=str(QUERY_SECONDS))
    if given := os.environ.get("PREFECT_API_URL"):
        click.echo(f"Using the Prefect server at {without_secrets(given)}")
        hide_from_children()
        check_given_server()
        ui = given.removesuffix("/api")
        with own_site(home, site_host, site_port, prefect_port=port, prefect_url=ui, recipes=plan.recipe_files) as site:
            asyncio.run(_serve(plan, given, None, site))
        return
    if problem := bind_problem("127.0.0.1", port):
        raise PhasewiseError(f"port {port} cannot be used ({problem}): choose another with --port.")
    click.echo("Starting the Prefect server …")
    with own_server(home, port, "`phasewise up`") as server:
        ui = server.url.removesuffix("/api")
        with own_site(
            home, site_host, site_port, prefect_port=port, prefect_url=ui, is_own_prefect=True, recipes=plan.recipe_files
        ) as site:
            os.environ["PREFECT_API_URL"] = server.url
            hide_from_children(server.auth)
            asyncio.run(_serve(plan, server.url, server, site))


async def _serve(plan: Plan, url: str, server: OwnServer | None, site: OwnSite) -> None:
    from prefect.context import AsyncClientContext

    with AsyncClientContext() as shared:  # `get_client` of all tasks: each new client would read all certificates of the machine
        async with shared.client as client:
            if server and (closed := await close_leftovers(plan.home, SERVED)):
                click.echo(
                    f"{closed} flow {'run' if closed == 1 else 'runs'} of an earlier server ended without a report: marked as crashed"
                )
            click.echo(f"Registering {len(plan.deployments)} deployments …")
            try:
                deployments = [one.but(description=one.description.replace(PAGE, site.url)) for one in plan.deployments]
                retired = await register(deployments, plan.pools)
                first = await client.read_deployment_by_name(f"train-recipe/{START}")
                block = await register_notification(client, plan.notify)
            except httpx.HTTPError as error:
                raise PhasewiseError(
                    f"the Prefect server at {without_secrets(url)} rejected the deployments: {error}. Check PREFECT_API_URL."
                ) from None
            if block:
                click.echo(f"Notifications of phases that are refused or wait for a person: {block}")
            if missed := await close_missed():
                click.echo(
                    f"{missed} scheduled {'run was' if missed == 1 else 'runs were'} missed. The latest run of the same schedule starts"
                )
            if retired:
                click.echo(f"No longer declared, and removed: {name_some(retired, 5)}")
            supervision = asyncio.create_task(supervise(plan.home, server))
            try:
                start = f"/deployments/deployment/{first.id}?tab=Description"
                await work(lambda: click.echo(_instructions(plan, url, site, server.auth if server else None, start)), supervision)
            finally:
                supervision.cancel()


def _instructions(plan: Plan, url: str, site: OwnSite, auth: str | None, start: str) -> str:
    prefect = Path(sys.executable).with_name("prefect")
    ui = url.removesuffix("/api")
    # Browsers never send the part after # to a server
    links = f"{ui}{OPEN_PATH}#{auth}&{quote(start, safe='')}" if auth else f"{ui}{start}", site.problem or site.link(auth)
    kept = keep_links(plan.home, links)
    # Links with secrets are for a terminal and a private file: other output may be stored
    shown = links if sys.stdout.isatty() else (ui, site.problem or site.url)
    secret = f'PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(kept.with_name(AUTH_NAME)))})" ' if auth else ""
    recipes = [one.name for one in plan.deployments if one.flow == "train-recipe" and one.name != START]
    unserved = [pool.name for pool in plan.pools if pool.name not in SERVED]
    return f"""
Prefect UI:  {shown[0]}
Everything:  {shown[1]}
Links:       {kept}: with the secrets that both pages ask for once. Only you can read it.
Home:        {plan.home.root}
Deployments: {len(plan.deployments)}, of {", ".join(recipes)}
Work pools:  {", ".join(SERVED)} work here; {", ".join(unserved)} wait for machines with such slices

Start a run
  in the UI:  Deployments, a name such as {recipes[0]}, Run, Custom run: the form lists the choices. {START} explains the others
  in a shell: PREFECT_API_URL={url} {secret}{prefect} deployment run train-recipe/{recipes[0]}
At most {MAX_TRAININGS} training runs at a time; others wait. Schedules are inactive examples: activate them in the UI.

Stop: Ctrl-C. Active runs save and stop. After a restart they resume."""


if __name__ == "__main__":
    main()
