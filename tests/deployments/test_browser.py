"""Operated in Prefect's pages and ours, as people do it: forms, a phase that waits, a run that is watched and cancelled, a refusal."""

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.chromium import CHROMIUM, NEEDS_CHROMIUM
from tests.deployments.up import Up, ask, final_state, logs_of, state_of, wait_for

pytestmark = [NEEDS_CHROMIUM, pytest.mark.timeout(900)]  # a guard against hanging: on a busy machine a first training takes minutes
SHOWN_MS = 20_000
"""What a page or a click does comes within this."""
CHECKED_MS = 300_000
"""Within this a busy machine knows whether what a home says still holds."""
REASON_SECONDS = 10


@pytest.fixture(scope="module")
def page(up: Up) -> Iterator[Page]:
    """A browser that has opened the link that `up` says, and has gone to Prefect's pages from there."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(SHOWN_MS)
        expect.set_options(timeout=SHOWN_MS)
        page.goto(up.links[1])
        assert page.url == f"{up.site}/"  # neither token nor secret stays in the address
        page.get_by_role("link", name="Prefect").click()
        page.wait_for_url(lambda url: url.startswith(up.ui) and "/-/open" not in url)
        yield page
        browser.close()


def open_form(up: Up, page: Page, name: str) -> None:
    deployment = ask(up, f"deployments/name/{name}")["id"]
    page.goto(f"{up.ui}/deployments/deployment/{deployment}/run")
    page.get_by_role("button", name="Submit").wait_for()


def choose_first(page: Page, place: int) -> None:
    """The first choice of the select at that place."""
    page.locator(".p-select-button__control").nth(place).focus()
    page.keyboard.press("ArrowDown")
    page.locator(".p-select-option--highlighted").wait_for()
    page.keyboard.press("Enter")


def submit(page: Page) -> str:
    """Start what the form says, with one click: the form does not ask the server twice. The run."""
    with page.expect_response(lambda answer: answer.url.endswith("/create_flow_run"), timeout=SHOWN_MS) as answer:
        page.get_by_role("button", name="Submit").click()
    assert answer.value.status == 201, answer.value.text()
    return answer.value.json()["id"]


def show(up: Up, page: Page, run: str) -> None:
    page.goto(f"{up.ui}/runs/flow-run/{run}")


def ended(up: Up, page: Page, run: str) -> dict[str, Any]:
    """The state in which the run ends. Nothing is looked at meanwhile: Prefect's pages, drawn and updated, take more work than the run."""
    page.goto("about:blank")
    return final_state(up, run)


@pytest.fixture(scope="module")
def waiting(up: Up, page: Page) -> str:
    """A run of a phase whose parent is not done, started by its form, which asks for no recipe, phase or home."""
    open_form(up, page, "train-phase/short-ocelot")
    expect(page.get_by_text("Retrain (Optional)")).to_be_visible()
    labels = page.locator("main, .p-layout-default, body").first.inner_text()
    assert not re.search(r"^(Recipe|Phase|Home|Scale)\b", labels, re.MULTILINE)
    run = submit(page)
    page.goto("about:blank")
    wait_for(up, "that it waits", lambda: state_of(up, run)["name"].startswith("Waiting"))
    return run


def test_a_phase_whose_parent_is_not_done_is_seen_to_wait(up: Up, page: Page, waiting: str) -> None:
    show(up, page, waiting)
    expect(page.get_by_text("Waiting for kestrel").first).to_be_visible()
    assert ask(up, f"flow_runs/{waiting}")["state"]["type"] == "SCHEDULED"


@pytest.fixture(scope="module")
def training(up: Up, page: Page) -> str:
    """A phase that trains for long, started by its form."""
    open_form(up, page, "train-phase/long-kestrel")
    run = submit(page)
    page.goto("about:blank")
    wait_for(up, "a line about the loss", lambda: any(line.startswith("train kestrel: ") for line in logs_of(up, run)))
    return run


def test_what_trains_is_watched_on_our_page(up: Up, page: Page, training: str) -> None:
    page.goto(f"{up.site}/long/proxy/kestrel")
    expect(page.locator("[data-checking]")).to_have_count(0, timeout=CHECKED_MS)  # once that is known, the page is loaded again
    expect(page.get_by_text("Live: the numbers below are updated")).to_be_visible()
    part = page.locator("[data-part=training]")
    before = part.inner_text()
    page.evaluate("window.stays = true")
    expect(part).not_to_have_text(before, use_inner_text=True)
    assert page.evaluate("window.stays")  # the numbers came without loading the page again
    assert state_of(up, training)["type"] == "RUNNING"


def test_a_run_is_cancelled_and_what_waits_goes_on_waiting(up: Up, page: Page, training: str, waiting: str) -> None:
    show(up, page, training)
    expect(page.get_by_text("Running").first).to_be_visible()
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    assert final_state(up, training)["type"] == "CANCELLED"
    expect(page.get_by_text("Cancelled").first).to_be_visible()
    assert ask(up, f"flow_runs/{waiting}")["state"]["name"] == "Waiting for kestrel"


class Refused(NamedTuple):
    """A run that was refused for its data, and the reason."""

    run: str
    reason: str


@pytest.fixture(scope="module")
def bison(up: Up, page: Page) -> Refused:
    """Bison, with test items among its mathematics."""
    open_form(up, page, "train-phase/bison-bison")
    run = submit(page)
    state = ended(up, page, run)
    assert state["type"] == "FAILED"
    return Refused(run, state["message"].splitlines()[0])


def test_why_bison_was_refused_is_found_from_its_run_within_ten_seconds(up: Up, page: Page, bison: Refused) -> None:
    began = time.monotonic()
    show(up, page, bison.run)
    expect(page.get_by_text(bison.reason).first).to_be_visible()
    read = time.monotonic() - began
    page.get_by_text("Artifacts", exact=True).first.click()
    page.get_by_text("bison-proxy-bison-data").first.click()
    link = page.get_by_role("link", name=re.compile("evidence|page", re.IGNORECASE)).first
    page.goto(str(link.get_attribute("href")))
    expect(page.get_by_role("heading", name="bison: the verdict on its data")).to_be_visible()
    expect(page.locator(".status.failed")).to_contain_text("Refused:")
    page.get_by_role("link", name=re.compile("^Evidence: ")).first.click()
    expect(page.locator("table").filter(has_text="test.json").first).to_be_visible()
    seconds = time.monotonic() - began
    print(f"the reason is read after {read:.1f} s, the evidence after {seconds:.1f} s")
    assert read < REASON_SECONDS


def test_a_recipe_is_started_by_its_form_up_to_a_phase(up: Up, page: Page, waiting: str) -> None:
    open_form(up, page, "train-recipe/short")
    choose_first(page, 0)
    run = submit(page)
    assert ask(up, f"flow_runs/{run}")["parameters"]["up_to"] == "kestrel"
    assert ended(up, page, run)["type"] == "COMPLETED"
    show(up, page, run)
    expect(page.get_by_text("Completed").first).to_be_visible()
    assert state_of(up, waiting)["type"] in {"SCHEDULED", "PENDING", "RUNNING"}


def test_the_phase_that_waited_starts_when_its_parent_is_past_its_gate(up: Up, page: Page, waiting: str) -> None:
    assert ended(up, page, waiting)["type"] == "COMPLETED"
    show(up, page, waiting)
    expect(page.get_by_text("Completed").first).to_be_visible()
    assert ask(up, f"flow_runs/{waiting}")["run_count"] == 2


def test_two_phases_are_compared(up: Up, page: Page) -> None:
    page.goto(f"{up.site}/compare")
    page.get_by_label("The first").select_option("short/proxy/kestrel")
    page.get_by_label("The second").select_option("short/proxy/ocelot")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="kestrel and ocelot")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^stop step 40 52"))).to_be_visible()
    assert page.locator("svg").count() > 0
