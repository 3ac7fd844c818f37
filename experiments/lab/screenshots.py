"""The pictures of the README: `python -m experiments.lab.screenshots OUT --recipe HOME --refused HOME`.

One home has a training of Marin 8B at proxy scale (`phasewise run marin-8b`). In the other home Bison failed its verdict: `python -m
experiments.incidents.bison FOLDER` writes `FOLDER/home` with its command `run dropped.json`. The homes are only read.
"""

import argparse
import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from phasewise.deployments.site import create_app
from phasewise.flows.recipes import NAMES
from phasewise.flows.site.shelf import Shelf
from phasewise.flows.site.site import Site
from phasewise.tasks.home import Home
from tests.chromium import CHROMIUM
from tests.ports import free_port

WIDTH, MAX_BYTES, CHECKED_MS = 1300, 200_000, 300_000


class Shot(NamedTuple):
    """A picture of a page, `height` pixels high, from the element `scroll_to` or from the top of the page."""

    name: str
    home: str
    address: str
    height: int
    scroll_to: str | None = None


SHOTS = (
    Shot("recipe", "recipe", "marin-8b/proxy", 900),
    Shot("refused", "refused", "bison/proxy/bison/data", 900),
    Shot("compared", "recipe", "compare?left=marin-8b/proxy/kestrel&right=marin-8b/proxy/ocelot", 820, "#curves"),
)


@contextmanager
def served(home: Path, targets: Sequence[str]) -> Iterator[str]:
    port = free_port()
    app = create_app(Site(Shelf(Home(home, reads_only=True), targets)))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def take(browser: Browser, base: str, shot: Shot) -> bytes:
    """The picture in at most 256 colours."""
    page = browser.new_page(viewport={"width": WIDTH, "height": shot.height}, color_scheme="light")
    page.goto(base + shot.address)
    page.locator("[data-checking]").wait_for(state="detached", timeout=CHECKED_MS)
    page.wait_for_load_state("networkidle")
    if shot.scroll_to:
        page.locator(shot.scroll_to).evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top + window.scrollY - 24)")
    drawn = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    small = io.BytesIO()
    drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--refused", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    refused_by = [str(given.refused.parent / "dropped.json")]
    with sync_playwright() as playwright, served(given.recipe, NAMES) as recipe, served(given.refused, refused_by) as refused:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for shot in SHOTS:
            picture = take(browser, {"recipe": recipe, "refused": refused}[shot.home], shot)
            (given.out / f"page-{shot.name}.png").write_bytes(picture)
            print(f"page-{shot.name}.png: {len(picture):,} bytes{'' if len(picture) <= MAX_BYTES else ', too large for the README'}")
        browser.close()


if __name__ == "__main__":
    main()
