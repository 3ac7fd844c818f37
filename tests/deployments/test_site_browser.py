import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from phasewise.deployments.site import create_app
from phasewise.flows.site.export import write_site
from phasewise.flows.site.shelf import Set, Shelf
from phasewise.flows.site.site import Site
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import State, enter_stage, working
from phasewise.tasks.report.html import CHECKING
from tests.chromium import CHROMIUM, NEEDS_CHROMIUM
from tests.flows.site.homes import RUN_NAME, row, site_of, write_home
from tests.ports import free_port

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
SHOWN = ("", "zoo/own/lion", "zoo/own/tiger/data")
SHOWN_LONG = (
    "zoo/own",
    "zoo/own/puma",
    "zoo/own/lion/model",
    "zoo/own/lion/text?component=law",
    "search?q=item",
    "compare?phase=zoo/own/lion&phase=zoo/own/tiger",
)
AXE = Path(__import__("axe_playwright_python").__file__).parent / "axe.min.js"
WAIT_MS = 20_000

pytestmark = NEEDS_CHROMIUM


class Seen:
    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.console: list[str] = []
        self.elsewhere: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith((base, "data:")) else self.elsewhere.append(request.url))


Open = Callable[..., Seen]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def served(site: Site) -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(site), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.05)
        assert thread.is_alive()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def base(home: Home) -> Iterator[str]:
    with served(site_of(home)) as url:
        yield url


@pytest.fixture
def open_page(browser: Browser, base: str) -> Iterator[Open]:
    contexts: list[Any] = []

    def open_at(path: str, *, at: str = base, **options: Any) -> Seen:
        given: dict[str, Any] = {"viewport": DESK, **options}
        context = browser.new_context(**given)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        seen = Seen(context.new_page(), at)
        seen.page.goto(at + path)
        return seen

    yield open_at
    for context in contexts:
        context.close()


def problems(seen: Seen, options: str = "{resultTypes: ['violations']}") -> list[str]:
    seen.page.evaluate(AXE.read_text())
    found = seen.page.evaluate(f"axe.run({options})")
    return [f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}" for one in found["violations"] for node in one["nodes"]]


@pytest.mark.parametrize("path", [*SHOWN, *(pytest.param(path, marks=pytest.mark.long) for path in SHOWN_LONG)])
def test_a_page_is_accessible_fits_a_phone_and_asks_nobody_else(open_page: Open, path: str) -> None:
    for viewport in (PHONE, DESK):
        seen = open_page(path, viewport=viewport)
        seen.page.wait_for_load_state("networkidle")
        assert (seen.console, seen.elsewhere) == ([], [])
        seen.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert problems(seen) == []
    dark = open_page(path, color_scheme="dark")
    dark.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert problems(dark, "{runOnly: ['color-contrast']}") == []


def test_numbers_and_curve_are_updated_while_one_watches(open_page: Open, tmp_path: Path) -> None:
    home = write_home(tmp_path / "home")
    metrics = home.run(RUN_NAME, "puma") / "metrics.jsonl"
    with served(site_of(home)) as url, working(home, RUN_NAME, "puma", "a test"):
        page = open_page("zoo/own/puma", at=url).page
        page.evaluate("window.sameDocument = true")
        enter_stage(home, RUN_NAME, "puma", State.TRAINING)
        curve = page.locator("[data-part=training] svg path").first.get_attribute("d")
        with metrics.open("a") as opened:
            opened.write("".join(json.dumps(row(step, loss=1.2345)) + "\n" for step in range(61, 71)))
        page.get_by_text("Training", exact=True).first.wait_for()
        page.locator("[data-part=training] dd b", has_text="70").first.wait_for()
        page.locator("[data-part=state]", has_text="Training: step 70 of 80").wait_for()
        page.locator(".live-word", has_text="updated while you watch").wait_for()
        assert "1.234" in page.locator("[data-part=training]").inner_text()
        assert page.locator("[data-part=training] svg path").first.get_attribute("d") != curve
        assert page.evaluate("window.sameDocument") is True
        assert float(page.locator("progress").get_attribute("value") or 0) == 75


def test_what_was_drawn_unchecked_is_drawn_again_once_it_is_checked(open_page: Open, home: Home) -> None:
    said = [CHECKING]

    class Checking(Site):
        def holds(self, found: Set) -> str:
            return said[0]

    with served(Checking(Shelf(home, ()))) as url:
        seen = open_page("zoo/own", at=url)
        note = seen.page.get_by_text(CHECKING)
        note.wait_for()
        said[0] = ""
        note.wait_for(state="detached")
        assert seen.console == []


def test_tables_are_sorted_and_filtered_with_the_keyboard(open_page: Open) -> None:
    page = open_page("zoo/own").page
    button = page.get_by_role("button", name="Phase", exact=True)
    names = page.locator("section[aria-labelledby=phases] tbody th a")
    button.focus()
    page.keyboard.press("Enter")
    assert names.all_inner_texts() == ["lion", "puma", "tiger"]
    page.keyboard.press("Enter")
    assert names.all_inner_texts() == ["tiger", "puma", "lion"]
    assert page.locator("th[aria-sort=descending]").count() == 1
    losses = page.locator("section[aria-labelledby=phases] tbody td:nth-child(6)")
    for _ in range(2):
        page.get_by_role("button", name="Final loss").click()
        assert losses.all_inner_texts() == ["4.200", "–", "–"]  # missing numbers stay last
    page = open_page("zoo/own/lion/model").page
    page.locator("section[aria-labelledby=checks] summary").click()
    rows = page.locator("section[aria-labelledby=checks] tbody tr:visible")
    every = rows.count()
    page.locator("section[aria-labelledby=checks] input").fill("finite response")
    assert 0 < rows.count() < every


def test_charts_answer_pointer_and_keyboard_and_zoom_together(open_page: Open) -> None:
    seen = open_page("compare?phase=zoo/own/lion&phase=zoo/own/tiger")
    page = seen.page
    loss, other = page.locator("figure[data-chart]").nth(0), page.locator("figure[data-chart]").nth(1)
    drawn = other.locator("svg").inner_html()
    box = loss.locator("svg").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    assert re.search(r"^step \d+ ?\s*lion \d\.\d+ ?\s*tiger \d\.\d+", loss.locator(".readout").inner_text())
    assert other.locator(".readout").inner_text().startswith(loss.locator(".readout").inner_text().split()[0])
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50, steps=3)
    page.mouse.up()
    assert other.locator("svg").inner_html() != drawn
    loss.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    first = loss.locator(".readout").inner_text()
    page.keyboard.press("ArrowLeft")
    assert loss.locator(".readout").inner_text() != first
    page.get_by_role("button", name="Whole range").click()
    page.mouse.move(0, 0)
    assert other.locator("svg path.curve").count() == 2
    page.get_by_label("Smoothing").fill("0.9")
    assert loss.locator("path.curve").count() == 2 * loss.locator("path.faded").count() == 4
    page.get_by_label("Log values").check()
    page.get_by_role("button", name="Size of the chart Loss").click()
    assert (loss.bounding_box() or {})["width"] > 2 * box["width"]
    page.wait_for_timeout(500)
    page.reload()
    assert page.get_by_label("Log values").is_checked()
    assert problems(seen) == []
    assert seen.console == []


def test_the_search_box_suggests_and_a_recipe_s_table_marks_phases_to_compare(open_page: Open) -> None:
    page = open_page("zoo/own").page
    page.locator("#search-box").focus()
    page.locator("#suggestions option[value='model: d model']").wait_for(state="attached")
    for name in ("lion", "puma", "tiger"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare marked phases").click()
    assert sorted(page.locator("h1").inner_text().split(", ")) == ["lion", "puma", "tiger"]
    assert page.locator("figure[data-chart]").first.locator("path.curve").count() == 3


def test_every_page_reads_without_a_script(open_page: Open) -> None:
    page = open_page("zoo/own/tiger/data", java_script_enabled=False).page
    page.locator("#table-leaked_items summary").click()
    page.locator("#table-leaked_items").get_by_role("searchbox").fill("test-0007")
    page.locator("#table-leaked_items").get_by_role("button", name="Filter").click()
    assert "Rows 1 to 1 of 1 that match, of 250" in page.locator("#table-leaked_items").inner_text()
    assert page.locator("#table-leaked_items").get_by_role("searchbox").input_value() == "test-0007"


def test_exported_pages_work_from_the_disk(open_page: Open, home: Home, tmp_path: Path) -> None:
    write_site(site_of(home), tmp_path / "out")
    base = (tmp_path / "out").as_uri() + "/"
    seen = open_page("search/index.html?q=lion", at=base)
    rows = seen.page.locator("tbody tr:visible")
    assert rows.count() == sum("lion" in text for text in seen.page.locator("tbody tr").all_text_contents()) > 0
    seen.page.goto(base + "index.html")
    seen.page.get_by_role("link", name="tiger").click()
    seen.page.get_by_role("link", name="on its data").click()
    assert "Refused" in seen.page.locator(".status").first.inner_text()
    seen.page.wait_for_function("getComputedStyle(document.querySelector('main')).maxWidth == '1180px'")
    assert (seen.console, seen.elsewhere) == ([], [])
