"""`python -m phasewise.deployments.site --home URL --port N`: the server of our page. It only reads the home."""

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
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse

from phasewise.deployments.site_process import TOKEN_VARIABLE
from phasewise.flows.prefect.access import LOOPBACK, OwnAddress
from phasewise.flows.recipes import NAMES
from phasewise.flows.site import pages
from phasewise.flows.site.documents import asked_of
from phasewise.flows.site.shelf import GATES, NAME, Gate, Links, PhaseAddress, Shelf
from phasewise.flows.site.site import Site
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
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".html": "text/html; charset=utf-8"}
MAX_PATH, MAX_QUERY = 2_000, 8_000
"""Characters of a URL. Evidence has the longest paths, searches the longest queries."""


class NotHere(Exception):
    """The page does not exist."""


def create_app(site: Site, *, names: Iterable[str] = LOOPBACK, token: str | None = None) -> FastAPI:
    """Create the server of a home's pages.

    Args:
        names: host names of the server. If one of them is not a loopback name, numeric addresses are accepted as well.
        token: secret that readers give. None is for tests.
    """
    app = FastAPI(title="Phasewise", docs_url=None, redoc_url=None, openapi_url=None)
    known_names = {name.lower() for name in names}

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer: Response | None = None
        path, query = request.scope["path"], request.scope["query_string"]
        texts = (path, *(part for pair in parse_qsl(query.decode("latin-1"), keep_blank_values=True) for part in pair))
        if request.method not in ("GET", "HEAD"):
            answer = PlainTextResponse("This page is read-only.\n", 405, {"Allow": "GET, HEAD"})
        elif len(path) > MAX_PATH or len(query) > MAX_QUERY:
            limits = f"expected at most {MAX_PATH} characters and {MAX_QUERY} in the query, found {len(path)} and {len(query)}"
            answer = PlainTextResponse(f"The address is too long: {limits}.\n", 400)
        elif not path.isprintable() or any("\0" in text or "\ufffd" in text for text in texts):
            answer = PlainTextResponse("The address has characters that page addresses never have.\n", 400)
        elif token is not None:
            answer = _check_token(request, token)
        answer = answer or await call_next(request)
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    app.add_middleware(GZipMiddleware, minimum_size=2**14, compresslevel=1)  # charts have their points as text
    app.add_middleware(OwnAddress, names=known_names, takes_digits=not known_names <= {*LOOPBACK})
    _add_files(app, site)  # before the pages: the pages' patterns match these paths as well
    _add_pages(app, site)

    @app.exception_handler(404)
    @app.exception_handler(NotHere)
    @app.exception_handler(ConfigError)
    async def not_here(request: Request, error: Exception) -> Response:
        text = str(error)
        if not isinstance(error, NotHere | ConfigError):
            text = f"Pages are at /RECIPE/SCALE/PHASE/GATE; found {request.url.path}."
        elif request.url.path.startswith("/live/"):
            return JSONResponse({"problem": text}, 404)
        return HTMLResponse(site.render("problem.html", Links(""), title="Page not found", said=text), 404)

    @app.exception_handler(OSError)
    async def unreadable(_request: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{refusal_of(error, site.shelf.home.root)}\n", 503)

    return app


def _add_files(app: FastAPI, site: Site) -> None:
    static_content = static_files()

    @app.get("/-/static/{name}")
    def static(name: str) -> Response:
        if name not in static_content:
            raise NotHere(f"{name}: file not found.")
        return Response(static_content[name], media_type=TYPES[Path(name).suffix])

    @app.get("/-/report/{run_name}/report.html")
    def report(run_name: str) -> Response:
        answer = _read_file(site.shelf.home.report(_name(run_name)), "report.html")
        answer.headers["Content-Security-Policy"] = REPORT_POLICY  # the report has inline styles
        return answer

    @app.get("/-/experiment/{run_name}/{name}/report.html")
    def experiment(run_name: str, name: str) -> Response:
        answer = _read_file(site.shelf.home.experiment(_name(run_name), _name(name)), "report.html")
        answer.headers["Content-Security-Policy"] = REPORT_POLICY
        return answer

    @app.get("/-/docs/{run_name}/{path:path}")
    def docs(run_name: str, path: str) -> Response:
        return _read_file(site.shelf.home.report(_name(run_name)) / "data-docs", path)

    @app.get("/-/evidence/{run_name}/{phase}/{gate}/{path:path}")
    def evidence(run_name: str, phase: str, gate: str, path: str) -> Response:
        return _read_file(site.shelf.home.verdict(_name(run_name), _name(phase), _gate(gate)).with_suffix("") / "report", path)


def _add_pages(app: FastAPI, site: Site) -> None:
    @app.get("/", response_class=HTMLResponse)
    def home() -> str:
        return pages.home_page(site, Links(""))

    @app.get("/compare", response_class=HTMLResponse)
    def compare(phase: Annotated[list[str], Query(default_factory=list)]) -> str:
        return pages.compare_page(site, Links("compare"), phase)

    @app.get("/search", response_class=HTMLResponse)
    def search(q: Annotated[str, Query()] = "") -> str:
        return pages.search_page(site, Links("search"), q)

    @app.get("/suggest")
    def suggest() -> JSONResponse:
        return JSONResponse(pages.suggestions(site))

    @app.get("/live")
    def live_home() -> JSONResponse:
        return JSONResponse(pages.live_home(site, Links("live")))

    @app.get("/live/{recipe}/{scale}/{phase}")
    def live(recipe: str, scale: str, phase: str) -> JSONResponse:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        return JSONResponse(pages.live(site, Links(f"live/{files.address}"), found, files))

    @app.get("/{recipe}/{scale}", response_class=HTMLResponse)
    def recipe(recipe: str, scale: str) -> str:
        found = site.shelf.find(recipe, scale)
        if found is None:
            raise NotHere(f"recipe {recipe} at {scale} scale: neither in the home nor a known recipe.")
        return pages.recipe_page(site, Links(found.path), found)

    @app.get("/{recipe}/{scale}/{phase}", response_class=HTMLResponse)
    def phase(recipe: str, scale: str, phase: str) -> str:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        return pages.phase_page(site, Links(str(files.address)), found, files)

    @app.get("/{recipe}/{scale}/{phase}/text", response_class=HTMLResponse)
    def text(request: Request, recipe: str, scale: str, phase: str, component: str = "") -> str:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        number = asked_of(request.query_params).page
        return pages.documents_page(site, Links(f"{files.address}/text"), found, files, component, number)

    @app.get("/{recipe}/{scale}/{phase}/step/{step}", response_class=HTMLResponse)
    def step(recipe: str, scale: str, phase: str, step: int) -> str:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        return pages.step_page(site, Links(f"{files.address}/step/{step}"), found, files, step)

    @app.get("/{recipe}/{scale}/{phase}/{gate}", response_class=HTMLResponse)
    def verdict(request: Request, recipe: str, scale: str, phase: str, gate: str) -> str:
        found, files = pages.find_phase(site, PhaseAddress(recipe, scale, phase))
        named = _gate(gate)
        return pages.verdict_page(site, Links(f"{files.address}/{gate}"), found, files, named, asked_of(request.query_params))


def _gate(text: str) -> Gate:
    for gate in GATES:
        if text == gate:
            return gate
    raise NotHere(f"expected a verdict on {', '.join(GATES)}, found {text!r}.")


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise NotHere(f"expected the name of a run, found {text!r}.")
    return text


def _read_file(folder: Path, path: str) -> Response:
    """Return a page or style sheet of the folder. Paths out of the folder, also by links, are not found."""
    file = folder / path
    try:
        file = file.resolve()
        if file.is_relative_to(folder.resolve()) and file.suffix in (".html", ".css") and file.is_file():
            return Response(file.read_bytes(), media_type=TYPES[file.suffix])
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    raise NotHere(f"{path}: file not found.")


def _check_token(request: Request, token: str) -> Response | None:
    """Return a redirect that moves the query's token into a cookie, a refusal, or None for a request with the token."""
    cookie = f"{TOKEN_COOKIE}-{request.url.port or 80}"
    in_query = request.query_params.get(TOKEN_QUERY)
    given = [in_query] if in_query is not None else [request.headers.get(TOKEN_HEADER), request.cookies.get(cookie)]
    if not any(one is not None and secrets.compare_digest(one.encode(), token.encode()) for one in given):
        return PlainTextResponse(
            f"This page needs its token: add ?token=TOKEN to the address once. It is in {TOKEN_VARIABLE}, or in HOME/prefect/links.\n", 401
        )
    if in_query is None:
        return None
    rest = {name: value for name, value in request.query_params.multi_items() if name != TOKEN_QUERY}
    url = request.url.replace(query="").include_query_params(**rest)
    answer = RedirectResponse("/" + (url.path + (f"?{url.query}" if url.query else "")).lstrip("/"), 303)
    answer.set_cookie(cookie, token, httponly=True, samesite="strict", max_age=30 * 24 * 3600)
    return answer


def names_of(host: str) -> tuple[str, ...]:
    """Return the host names of a server that is bound to `host`."""
    return LOOPBACK if host in LOOPBACK else (*LOOPBACK, host, socket.gethostname(), socket.getfqdn())


def _read_ahead(site: Site) -> None:
    with suppress(PhasewiseError, OSError):
        site.shelf.home.look_at_all()
        pages.home_page(site, Links(""))
        for found in site.shelf.sets():
            if found.in_home:
                pages.recipe_page(site, Links(found.path), found)


def _sync_from_store(home: Home) -> NoReturn:
    printed = ""
    while True:
        time.sleep(publish_seconds())
        try:
            home.look_at_all()
            printed = ""
        except (PhasewiseError, OSError) as error:
            if str(error) != printed:
                printed = str(error)
                click.echo(f"phasewise: the page shows earlier content: {printed}", err=True)


@click.command()
@click.option("--home", required=True, metavar="URL")
@click.option("--host", default=LOOPBACK[0], show_default=True)
@click.option("--port", type=click.IntRange(1, 65_535), required=True)
@click.option("--prefect", default="", metavar="URL", help="The address of Prefect's UI.")
@click.option("--own-prefect", is_flag=True, help="It is the server of this home.")
@click.option("--recipe", "recipes", multiple=True, metavar="RECIPE", help="More recipes, by file. Repeatable.")
@click.option("--with-parent", is_flag=True, help="End when standard input ends.")
def main(home: str, host: str, port: int, prefect: str, own_prefect: bool, recipes: tuple[str, ...], with_parent: bool) -> None:
    """Serve the page of a home."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        click.echo(f"phasewise: the page needs a token: set {TOKEN_VARIABLE}.", err=True)
        sys.exit(2)
    if with_parent:
        end_with_parent(0)
    try:
        with refused_by_system(home):
            opened = Home.at(home, reads_only=True)
    except PhasewiseError as error:
        print_refusal(f"phasewise: {error}")
        sys.exit(error.exit_code)
    import uvicorn

    site = Site(Shelf(opened, (*NAMES, *recipes)), prefect=prefect, is_own_prefect=own_prefect)
    threading.Thread(target=_read_ahead, args=(site,), daemon=True, name="read ahead").start()
    if not opened.is_local:
        threading.Thread(target=_sync_from_store, args=(opened,), daemon=True, name="sync from store").start()
    app = create_app(site, names=names_of(host), token=token)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)


if __name__ == "__main__":
    main()
