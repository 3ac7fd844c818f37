"""The server of our page: `python -m phasewise.deployments.site --home URL --port N [--host H] [--prefect URL]`.

It reads the home and answers GET. `phasewise up` starts it as a process of its own; it ends when its standard input does.
"""

import errno
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import parse_qsl

import click
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse

from phasewise.deployments.site_process import TOKEN_VARIABLE
from phasewise.flows.prefect.access import LOOPBACK, OwnAddress
from phasewise.flows.recipes import NAMES
from phasewise.flows.site import pages
from phasewise.flows.site.address import GATES, NAME, Gate, Links, PhaseAddress
from phasewise.flows.site.shelf import Shelf
from phasewise.flows.site.site import Site
from phasewise.flows.site.tables import asked_of
from phasewise.tasks.home import Home
from phasewise.tasks.report.html import static_files
from phasewise.tasks.store.publisher import publish_seconds
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, print_refusal, refusal_of, refused_by_system
from phasewise.trainer.process.child_process import end_with_parent

TOKEN_COOKIE, TOKEN_HEADER, TOKEN_QUERY = "phasewise-site", "x-phasewise-token", "token"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".html": "text/html; charset=utf-8"}
MAX_PATH, MAX_QUERY = 2_000, 8_000
"""Characters of an address; evidence is the deepest page, and searches are sentences."""
Next = Callable[[Request], Awaitable[Response]]


def create_app(site: Site, *, names: Iterable[str] = LOOPBACK, token: str | None = None) -> FastAPI:
    """The pages of a home.

    Args:
        names: host names that it is reached by. Where one of them is not this machine's alone, addresses in digits pass as well.
        token: what a reader must show; None asks for nothing.
    """
    app = FastAPI(title="Phasewise", docs_url=None, redoc_url=None, openapi_url=None)
    known_names = {name.lower() for name in names}

    @app.middleware("http")
    async def guard(request: Request, go_on: Next) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _finished(PlainTextResponse("This page is only read.\n", 405, {"Allow": "GET, HEAD"}))
        if problem := _problem_of_address(request.scope["path"], request.scope["query_string"]):
            return _finished(PlainTextResponse(f"The address {problem}.\n", 400))
        if token is not None and (answer := _asks_for_token(request, token)):
            return _finished(answer)
        return _finished(await go_on(request))

    app.add_middleware(OwnAddress, names=known_names, takes_digits=not known_names <= {*LOOPBACK})
    _add_files(app, site)  # before the pages: their addresses would match some of pages

    @app.get("/", response_class=HTMLResponse)
    def home() -> str:
        return pages.home_page(site, Links(""))

    @app.get("/compare", response_class=HTMLResponse)
    def compare(left: str = "", right: str = "") -> str:
        return pages.compare_page(site, Links("compare"), left, right)

    @app.get("/search", response_class=HTMLResponse)
    def search(q: Annotated[str, Query()] = "") -> str:
        return pages.search_page(site, Links("search"), q)

    @app.get("/live/{recipe}/{scale}/{phase}")
    def live(recipe: str, scale: str, phase: str) -> JSONResponse:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        return JSONResponse(pages.live(site, Links(f"live/{files.address}"), found, files))

    @app.get("/{recipe}/{scale}", response_class=HTMLResponse)
    def recipe(recipe: str, scale: str) -> str:
        found = site.shelf.find(recipe, scale)
        if found is None:
            raise NotHere(f"There is no recipe {recipe} at {scale} scale: the home has nothing of it, and it is not known here.")
        return pages.recipe_page(site, Links(found.path), found)

    @app.get("/{recipe}/{scale}/{phase}", response_class=HTMLResponse)
    def phase(recipe: str, scale: str, phase: str) -> str:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        return pages.phase_page(site, Links(str(files.address)), found, files)

    @app.get("/{recipe}/{scale}/{phase}/{gate}", response_class=HTMLResponse)
    def verdict(request: Request, recipe: str, scale: str, phase: str, gate: str) -> str:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        named = _gate(gate)
        return pages.verdict_page(site, Links(f"{files.address}/{gate}"), found, files, named, asked_of(request.query_params))

    _add_problems(app, site)
    return app


class NotHere(Exception):
    """There is no such page."""


def _add_files(app: FastAPI, site: Site) -> None:
    ours = static_files()

    @app.get("/-/static/{name}")
    def static(name: str) -> Response:
        if name not in ours:
            raise NotHere(f"There is no file {name!r}.")
        return Response(ours[name], media_type=TYPES[Path(name).suffix])

    @app.get("/-/report/{run_name}/report.html")
    def report(run_name: str) -> Response:
        answer = _file(site.shelf.home.report(_name(run_name)), "report.html")
        answer.headers["Content-Security-Policy"] = REPORT_POLICY  # it carries its style, and needs nothing beside it
        return answer

    @app.get("/-/docs/{run_name}/{path:path}")
    def docs(run_name: str, path: str) -> Response:
        return _file(site.shelf.home.report(_name(run_name)) / "data-docs", path)

    @app.get("/-/evidence/{run_name}/{phase}/{gate}/{path:path}")
    def evidence(run_name: str, phase: str, gate: str, path: str) -> Response:
        return _file(site.shelf.home.verdict(_name(run_name), _name(phase), _gate(gate)).with_suffix("") / "report", path)


def _add_problems(app: FastAPI, site: Site) -> None:
    @app.exception_handler(NotHere)
    @app.exception_handler(ConfigError)
    async def not_here(request: Request, error: Exception) -> Response:
        if request.url.path.startswith("/live/"):
            return JSONResponse({"problem": str(error)}, 404)
        return HTMLResponse(pages.problem_page(site, Links(""), "There is no such page", str(error)), 404)

    @app.exception_handler(404)
    async def no_such_address(request: Request, error: Exception) -> Response:
        said = f"Pages are at /RECIPE/SCALE/PHASE/GATE; found {request.url.path}."
        return HTMLResponse(pages.problem_page(site, Links(""), "There is no such page", said), 404)

    @app.exception_handler(OSError)
    async def unreadable(_request: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{refusal_of(error, site.shelf.home.root)}\n", 503)


def _problem_of_address(path: str, query: bytes) -> str:
    texts = (path, *(part for pair in parse_qsl(query.decode("latin-1"), keep_blank_values=True) for part in pair))
    if len(path) > MAX_PATH or len(query) > MAX_QUERY:
        return f"is too long: expected at most {MAX_PATH} characters and {MAX_QUERY} in the query, found {len(path)} and {len(query)}"
    if not path.isprintable() or any("\0" in text or "\ufffd" in text for text in texts):
        return "holds characters that no page's address has"
    return ""


def _gate(text: str) -> Gate:
    named: dict[str, Gate] = {gate: gate for gate in GATES}
    if text not in named:
        raise NotHere(f"A verdict is on {', '.join(GATES)}; found {text!r}.")
    return named[text]


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise NotHere(f"{text!r} is no name of a run.")
    return text


def _file(folder: Path, path: str) -> Response:
    """A page or a style sheet below the folder, and nothing else."""
    wanted = folder / path
    try:
        wanted = wanted.resolve()
        if wanted.is_relative_to(folder.resolve()) and wanted.suffix in (".html", ".css") and wanted.is_file():
            return Response(wanted.read_bytes(), media_type=TYPES[wanted.suffix])
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    raise NotHere(f"There is no file {path!r}.")


def _asks_for_token(request: Request, token: str) -> Response | None:
    shown = request.query_params.get(TOKEN_QUERY)
    if shown is not None:
        if not _is_same(shown, token):
            return _refused()
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != TOKEN_QUERY]
        url = request.url.replace(query="").include_query_params(**dict(rest))
        answer = RedirectResponse("/" + (url.path + (f"?{url.query}" if url.query else "")).lstrip("/"), 303)
        answer.set_cookie(_cookie(request), token, httponly=True, samesite="strict", max_age=30 * 24 * 3600)
        return answer
    given = (request.headers.get(TOKEN_HEADER), request.cookies.get(_cookie(request)))
    return None if any(one is not None and _is_same(one, token) for one in given) else _refused()


def _cookie(request: Request) -> str:
    return f"{TOKEN_COOKIE}-{request.url.port or 80}"


def _is_same(shown: str, token: str) -> bool:
    return secrets.compare_digest(shown.encode(), token.encode())


def _refused() -> Response:
    said = f"This page asks for its token: add ?token=TOKEN to the address once. It is in {TOKEN_VARIABLE}, or in HOME/prefect/links.\n"
    return PlainTextResponse(said, 401)


def _finished(answer: Response) -> Response:
    for name, value in {"Content-Security-Policy": POLICY, **HEADERS}.items():
        answer.headers.setdefault(name, value)
    return answer


def names_of(host: str) -> tuple[str, ...]:
    """The host names that a server bound to `host` answers to."""
    return (*LOOPBACK, *(() if host in LOOPBACK else (host, socket.gethostname(), socket.getfqdn())))


def _read_ahead(site: Site) -> None:
    with suppress(PhasewiseError, OSError):
        site.shelf.home.look_at_all()
        pages.home_page(site, Links(""))
        for found in site.shelf.sets():
            if found.in_home:
                pages.recipe_page(site, Links(found.path), found)


def _look_again(home: Home) -> NoReturn:
    said = ""
    while True:
        time.sleep(publish_seconds())
        try:
            home.look_at_all()
            said = ""
        except (PhasewiseError, OSError) as error:
            if str(error) != said:
                said = str(error)
                click.echo(f"phasewise: the page shows what was read before: {said}", err=True)


@click.command()
@click.option("--home", required=True, metavar="URL")
@click.option("--host", default=LOOPBACK[0], show_default=True)
@click.option("--port", type=click.IntRange(1, 65_535), required=True)
@click.option("--prefect", default="", metavar="URL", help="The address of Prefect's UI.")
@click.option("--own-prefect", is_flag=True, help="It is the server of this home.")
@click.option("--recipe", "recipes", multiple=True, metavar="RECIPE", help="More recipes, by file; may be repeated.")
@click.option("--with-parent", is_flag=True, help="End when standard input does.")
def main(home: str, host: str, port: int, prefect: str, own_prefect: bool, recipes: tuple[str, ...], with_parent: bool) -> None:
    """Serve the page of a home, until it is ended."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        click.echo(f"phasewise: the page needs a token: set {TOKEN_VARIABLE}.", err=True)
        sys.exit(2)
    if with_parent:
        end_with_parent(0)
    try:
        with refused_by_system(home):
            place = Home.at(home, reads_only=True)
    except PhasewiseError as error:
        print_refusal(f"phasewise: {error}")
        sys.exit(error.exit_code)
    import uvicorn

    site = Site(Shelf(place, (*NAMES, *recipes)), prefect=prefect, is_own_prefect=own_prefect)
    threading.Thread(target=_read_ahead, args=(site,), daemon=True, name="read ahead").start()
    if not place.is_local:
        threading.Thread(target=_look_again, args=(place,), daemon=True, name="looks at the store").start()
    app = create_app(site, names=names_of(host), token=token)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)


if __name__ == "__main__":
    main()
